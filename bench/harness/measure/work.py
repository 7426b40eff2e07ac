"""Token work that an engine did in a span of time, as `bench.harness.engine.tally` wrote it down."""

from __future__ import annotations

import bisect
import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Work:
    """Token positions computed in a span of time. ``recomputed``: those computed before. ``offline``: new ones of offline work.

    ``recomputed_s``: time spent on recomputing, by harvester's latency model; 0 where stock vLLM plans.
    """

    steps: int
    tokens: int
    recomputed: int
    offline: int = 0
    recomputed_s: float = 0.0


def work_between(path: Path, begin_s: float, end_s: float) -> Work:
    """What `bench.harness.engine.tally` wrote, as the difference between the last line before ``end_s`` and before ``begin_s``."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    times = [line["at_s"] for line in lines]

    def between(key: str) -> Any:
        begin, end = (bisect.bisect_right(times, when_s) for when_s in (begin_s, end_s))
        return (lines[end - 1].get(key, 0) if end else 0) - (lines[begin - 1].get(key, 0) if begin else 0)

    return Work(*(between(field.name) for field in fields(Work)))
