"""DistServe: prompts on one GPU, generation on another, KV sent between the two; twice the GPUs of the other systems.

The pools run one after the other: what the first has computed is the load of the second. Under first come, first served, a request that
waits for KV in the second pool would otherwise have waited before the first, so that its end is the same. Lost KV is swapped, as in vLLM
0.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.papers.engine import columns
from bench.papers.engine.admission import BLOCK
from bench.papers.engine.order import FCFS
from bench.papers.engine.run import Figures, figures_of, played
from bench.papers.loads import Load, drawn
from bench.papers.machines import Setting, rules_of

ETHERNET_BYTES_PER_S = 12.5e9  # 100 Gb/s (EconoServe 2.4)
RULES: dict[str, float] = {"step_tokens": 2048, "order": FCFS, "allocation": BLOCK, "swaps": True}


@dataclass(frozen=True, slots=True)
class DistServe:
    """``link_bytes_per_s``: between the two pools."""

    name: str = "distserve"
    gpus: int = 2
    link_bytes_per_s: float = ETHERNET_BYTES_PER_S

    def simulate(self, load: Load, setting: Setting) -> Figures:
        requests, allowed_s = drawn(load, setting)
        found: Any = requests
        prompts, arrived_s, output = _copy(found), found.arrival_s.copy(), found.output.copy()
        prompts.output = 1
        rules = rules_of(setting, **RULES)
        first = played(prompts, rules)
        sent_s = _sent(prompts.end_s, found.prompt * setting.transfer_token_s(self.link_bytes_per_s))
        found.end_s = found.first_s = prompts.end_s
        more = np.flatnonzero(output > 1)
        more = more[np.argsort(sent_s[more], kind="stable")]
        tasks = found[more]
        tasks.arrival_s, tasks.computed, tasks.reached, tasks.emitted = sent_s[more], tasks.prompt, tasks.prompt, 1
        second = played(tasks, rules)
        found.end_s[more], found.preemptions[more] = tasks.end_s, tasks.preemptions
        found.arrival_s = arrived_s
        return figures_of(requests, allowed_s, [first, second])


def _sent(ready_s: Any, seconds: Any) -> Any:
    """When the KV of each is there: one is sent after the other, in the order in which they are ready."""
    sent_s, free_s = np.empty(len(ready_s)), 0.0
    for place in np.argsort(ready_s, kind="stable"):
        free_s = max(free_s, float(ready_s[place])) + float(seconds[place])
        sent_s[place] = free_s
    return sent_s


def _copy(found: Any) -> Any:
    made: Any = columns.requests(len(found))
    made[:] = found
    return made


DISTSERVE = DistServe()
