"""Records each step of an engine core, with its load and its time, and each request that ended.

One JSON list a line: ``["engine", KV blocks, tokens of one]`` first, then ``["step", at_s, *StepLoad, seconds, ended early, tokens computed
again]`` and ``["request", at_s, offline, prompt tokens, answer tokens, cached prompt tokens]``. Read by `bench.harness.measure.steps`.
"""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from typing import Any

from harvester.policy.model.load import StepLoad

PERIOD_S = 0.25


class StepRecord:
    """Appends to ``file``, at most every `PERIOD_S`. Steps are answered in the order in which they are planned."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._planned: deque[tuple[float, StepLoad, int]] = deque()
        self._answered_s = self._written_s = float("-inf")
        self._cached: dict[str, int] = {}
        self._lines: list[str] = []

    def engine(self, blocks: int, block_tokens: int) -> None:
        self._add("engine", blocks, block_tokens)

    def planned(self, load: StepLoad, new: dict[str, int], now_s: float, again_tokens: int = 0) -> None:
        """A step was planned. ``new``: requests seen for the first time, each with its cached prompt tokens.

        ``again_tokens``: recomputed tokens of the step.
        """
        self._planned.append((now_s, load, again_tokens))
        self._cached.update(new)

    def answered(self, now_s: float, ended_early: bool) -> None:
        """The oldest planned step was answered. A pause of up to 3 ms after the step before it counts as part of its time."""
        planned_s, load, again_tokens = self._planned.popleft()
        began_s = max(planned_s, self._answered_s) if planned_s - self._answered_s > 0.003 else self._answered_s
        self._answered_s = now_s
        if load.tokens:
            self._add("step", round(now_s, 6), *load, round(now_s - began_s, 7), ended_early, again_tokens)
        if now_s - self._written_s >= PERIOD_S:
            self._written_s = now_s
            with self._file.open("a", encoding="utf-8") as file:
                file.write("\n".join(self._lines) + "\n")
            self._lines.clear()

    def ended(self, request: Any, offline: bool, now_s: float) -> None:
        """vLLM's request has ended."""
        cached = self._cached.pop(request.request_id, 0)
        self._add("request", round(now_s, 6), offline, request.num_prompt_tokens, request.num_output_tokens, cached)

    def _add(self, *values: Any) -> None:
        self._lines.append(json.dumps(values))
