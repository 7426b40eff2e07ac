"""Which scenarios there are, and what each is told."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Options:
    """``seconds``: about how long one timed run of an engine takes; None leaves it to the scenario."""

    model: str | None = None
    seconds: float | None = None
    quick: bool = False
    seed: int = 0


Run = Callable[[Options], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """``module`` has a function ``run(options)`` that gives the scenario's own part of the result."""

    module: str
    summary: str

    def load(self) -> Run:
        """Imported only when it is run: scenarios may need an engine, the list of them does not."""
        run: Run = importlib.import_module(self.module).run
        return run


SCENARIOS = {
    "overhead": Scenario("bench.overhead", "TTFT and total time of one stream: raw vLLM, harvester's ingress, Serve's default proxy"),
    "jobs": Scenario("bench.jobs", "the job path with a scripted engine, kill and resume; a real engine against vLLM's run-batch"),
}
