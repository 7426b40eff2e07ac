"""FastServe and what it is compared with, as orders and KV policies of the brain (`bench.scenarios.order.mlfq_sim` has them).

FasterTransformer runs a batch to its end. FastServe-FCFS is the same engine first come, first served; vLLM is the one of its time, in the
compiled loop. The ablations: one starvation time for all queues, as in the paper; naive MLFQ; fixed priority by prompt length; KV that is
swapped when it is needed, or computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.papers.engine import columns
from bench.papers.engine.run import played
from bench.papers.machines import Setting, rules_of
from bench.papers.systems.vllm import OF_2023
from bench.scenarios.order.mlfq_sim import SYSTEMS
from harvester.sim.trace import Request

BRAINS = {
    "fastertransformer": SYSTEMS["run_to_completion"],
    "fastserve_fcfs": SYSTEMS["fcfs"],
    "fastserve": SYSTEMS["skip_join_mlfq"],
    "flat_starvation": SYSTEMS["skip_join_mlfq_flat_starvation"],
    "naive_mlfq": SYSTEMS["naive_mlfq"],
    "fixed_priority": SYSTEMS["fixed_priority"],
    "fastserve_reactive": SYSTEMS["skip_join_mlfq_reactive"],
    "fastserve_recompute": SYSTEMS["skip_join_mlfq_recompute"],
}
VLLM = "vllm_2023"


def by_vllm(setting: Setting, trace: Sequence[Request]) -> Any:
    """``trace`` by vLLM 0.1; records of `bench.papers.engine.columns.Request`, in order of arrival."""
    requests: Any = columns.requests(len(trace))
    requests.arrival_s = [one.arrival_s for one in trace]
    requests.prompt, requests.output = [one.prompt_tokens for one in trace], [one.output_tokens for one in trace]
    played(requests, rules_of(setting, **OF_2023))
    return requests
