"""Running totals of what a scheduler schedules: token work, and how much of it was done before.

vLLM 0.32 exports preemptions, but no metric of recomputed tokens: `vllm:prompt_tokens_total` counts a prompt once, however often it is
prefilled. A position counts as recomputed when its request had been scheduled beyond it before; so preempted requests count, and so do
steps that were ended early. The cost is one comparison for each request in a step, the same for every system.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harvester.core import PRIORITY_OFFLINE, PRIORITY_ONLINE

PERIOD_S = 0.25


class Tally:
    """Appends one line of running totals to ``file``, at most every `PERIOD_S`; `bench.harness.measure.work.work_between` reads them."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._totals: dict[str, float] = {"steps": 0, "tokens": 0, "recomputed": 0, "offline": 0, "recomputed_s": 0.0}
        self._written_s = float("-inf")

    def count(self, scheduled: Mapping[str, int], requests: Mapping[str, Any], now_s: float) -> dict[str, int]:
        """Count one step: its tokens by request. ``requests``: the scheduler's; ``num_computed_tokens`` includes the step already.

        Returns the recomputed tokens by request.
        """
        totals, found = self._totals, {}
        totals["steps"] += bool(scheduled)
        for name, tokens in scheduled.items():
            request = requests.get(name)
            if request is None:
                continue
            end = request.num_computed_tokens
            seen = getattr(request, "bench_seen", 0)
            again = max(0, min(end, seen) - (end - tokens))
            totals["tokens"] += tokens
            totals["recomputed"] += again
            if again:
                found[name] = again
            if getattr(request, "priority", PRIORITY_ONLINE) >= PRIORITY_OFFLINE:
                totals["offline"] += tokens - again
            request.bench_seen = max(seen, end)
        if now_s - self._written_s >= PERIOD_S:
            self._written_s = now_s
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"at_s": now_s, **totals}) + "\n")
        return found

    def cost(self, recomputed_s: float) -> None:
        """Add the seconds of the last step that recomputed tokens took."""
        self._totals["recomputed_s"] += recomputed_s
