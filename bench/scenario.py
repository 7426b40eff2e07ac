"""Which scenarios there are, and what each is told."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Options:
    """``seconds``: about how long one timed run of an engine takes; None leaves it to the scenario. ``set``: by name, see `bench.knobs`."""

    model: str | None = None
    seconds: float | None = None
    quick: bool = False
    seed: int = 0
    set: dict[str, float] = field(default_factory=dict)


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
    "mlfq_sim": Scenario("bench.mlfq_sim", "simulated OPT-13B on an A100: request rates at equal normalized latency, by order"),
    "jobs": Scenario("bench.jobs", "the job path with a scripted engine, kill and resume; a real engine against vLLM's run-batch"),
    "batch": Scenario("bench.batch", "50,000 requests through the Batch API with a scripted engine; 20 batches at once; the API meanwhile"),
    "coserve": Scenario("bench.coserve", "chat of a trace beside batch work: online only, offline only, vLLM's priority policy, harvester"),
    "phases": Scenario("bench.phases", "chat on, off and on again beside batch work"),
    "burst": Scenario("bench.burst", "chat in bursts and at rising rates beside batch work"),
    "ablation": Scenario("bench.ablation", "the parts of harvester's scheduler, turned on one after the other"),
    "preempt": Scenario("bench.preempt", "ending a running step of offline work between two layers: cost, detection, same tokens"),
    "scheduler": Scenario("bench.scheduler", "what the plan of a step costs beside vLLM's own scheduler, without a model"),
    "checkpoint": Scenario(
        "bench.checkpoint", "what a preemption costs with recompute, swap and checkpoints, and checkpoints where KV is plentiful"
    ),
    "swap_link": Scenario("bench.swap_link", "chat alone with little KV, copied ahead of time or when needed, over an emulated link"),
    "gpu": Scenario("bench.gpu.command", "what only a GPU can show, part by part; with options of its own: python -m bench gpu --help"),
    "mlfq": Scenario("bench.mlfq", "the order among online requests at rising load: FCFS, naive MLFQ, fixed priority, skip-join"),
}
