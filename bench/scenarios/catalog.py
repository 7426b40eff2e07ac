"""Which scenarios there are."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.harness.options import Options
from harvester.errors import UsageError

Run = Callable[[Options], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """``module``, below `bench`, has a function ``run(options)`` that gives the scenario's own part of the result.

    ``simulated``: the module of its form in virtual time, where it has one.
    """

    module: str
    summary: str
    paced: bool = False  # chat comes at --rate or --share
    simulated: str | None = None

    def load(self, simulated: bool = False) -> Run:
        """Import the scenario's ``run``. Done only when it is run: a scenario may need an engine, listing scenarios does not.

        Raises `UsageError` if a simulated form is asked for and there is none.
        """
        module = self.simulated if simulated else self.module
        if module is None:
            named = ", ".join(name for name, scenario in SCENARIOS.items() if scenario.simulated)
            raise UsageError(f"--simulated: this scenario has no form in virtual time; these have: {named}")
        run: Run = importlib.import_module(f"bench.{module}").run
        return run


SCENARIOS = {
    "overhead": Scenario(
        "scenarios.engine.overhead", "TTFT and total time of one stream: raw vLLM, harvester's ingress, Serve's default proxy"
    ),
    "mlfq_sim": Scenario("scenarios.order.mlfq_sim", "simulated OPT-13B on an A100: request rates at equal normalized latency, by order"),
    "jobs": Scenario(
        "scenarios.job_path.jobs", "the job path with a scripted engine, kill and resume; a real engine against vLLM's run-batch"
    ),
    "ledger": Scenario(
        "scenarios.job_path.ledger", "slices a second that the ledger takes, by store, with every change synced; opening it again"
    ),
    "batch": Scenario(
        "scenarios.job_path.batch",
        "50,000 requests through the Batch API with a scripted engine; 20 batches at once; the API meanwhile",
    ),
    "transfer": Scenario(
        "scenarios.job_path.transfer", "a table of 10 GiB to a server over HTTP and its results back: memory of client and server"
    ),
    "coserve": Scenario(
        "scenarios.coserving.coserve",
        "chat of a trace beside batch work: online only, offline only, vLLM's priority policy, harvester",
        paced=True,
    ),
    "simulate": Scenario(
        "scenarios.coserving.simulate", "what the simulator predicts of harvester, against a real run on the same trace", paced=True
    ),
    "defaults": Scenario("scenarios.coserving.defaults", "what chat of vllm bench serve notices of a job where nothing is configured"),
    "phases": Scenario("scenarios.coserving.phases", "chat on, off and on again beside batch work", paced=True),
    "cycle": Scenario("scenarios.coserving.cycle", "chat and none in turns beside batch work, over whole cycles", paced=True),
    "burst": Scenario("scenarios.coserving.burst", "chat in bursts and at rising rates beside batch work", paced=True),
    "ablation": Scenario("scenarios.coserving.ablation", "the parts of harvester's scheduler, turned on one after the other", paced=True),
    "papers": Scenario("papers.scenario", "the figures of EconoServe, FastServe and ConServe, simulated, beside what the papers say"),
    "overload": Scenario(
        "scenarios.coserving.overload",
        "chat at 1, 3, 10 and half times what a server sustains, and beside a hostile request: first tokens, refusals",
    ),
    "soak": Scenario("scenarios.soak.soak", "jobs and chats while every kind of process is killed: rows lost, twice, wrong; how long shut"),
    "fleet": Scenario(
        "scenarios.soak.fleet", "a cluster of three machines without a shared disk that are lost in turns: rows, streams, how long shut"
    ),
    "routing": Scenario(
        "scenarios.engine.routing", "chat over two replicas: HAProxy's least connections, and Serve's proxies by predicted first token"
    ),
    "preempt": Scenario(
        "scenarios.engine.preempt", "ending a running step of offline work between two layers: cost, detection, same tokens"
    ),
    "scheduler": Scenario("scenarios.engine.scheduler", "what the plan of a step costs beside vLLM's own scheduler, without a model"),
    "checkpoint": Scenario(
        "scenarios.checkpoints.checkpoint",
        "what a preemption costs with recompute, swap and checkpoints, and checkpoints where KV is plentiful",
    ),
    "swap_link": Scenario(
        "scenarios.checkpoints.swap_link", "chat alone with little KV, copied ahead of time or when needed, over an emulated link"
    ),
    "gpu": Scenario("gpu.command", "what only a GPU can show, part by part; with options of its own: python -m bench gpu --help"),
    "admission": Scenario(
        "scenarios.admission.admission",
        "offline rows with little KV, by the rule that admits them: worst case, expected length, greedy; simulated GPUs and this machine",
    ),
    "ceiling": Scenario(
        "scenarios.ceiling.ceiling", "simulated: how much of the best possible work is done beside chat, on two cores, an A100 and H200s"
    ),
    "mlfq": Scenario("scenarios.order.mlfq", "the order among online requests at rising load: FCFS, naive MLFQ, fixed priority, skip-join"),
    "orders": Scenario(
        "scenarios.order.orders",
        "all orders among online requests at rising load, and who starves; --simulated: the same for OPT-13B on an A100",
        simulated="scenarios.order.orders_sim",
    ),
}
