"""vLLM: KV in blocks as it is needed, first come, first served; whoever finds none preempts the newest.

Today's (0.32): prompts in chunks beside decodes, lost KV is computed again. The paper's (0.1, SOSP 2023): prompts in steps of their own,
before decodes; lost KV is swapped to the host and back while the step waits; a new prompt leaves 1% of the blocks free.
"""

from __future__ import annotations

from collections.abc import Mapping

from bench.papers.engine.admission import BLOCK
from bench.papers.engine.order import FCFS
from bench.papers.systems.system import Parts, System
from harvester.policy.admission.rule import Admission, WorstCase
from harvester.policy.order.offline import Fcfs, OfflineOrder, OfflineRow
from harvester.policy.step.batch import Batch
from harvester.policy.step.view import StepView
from harvester.policy.view import PolicyConfig


class Greedy(WorstCase):
    """Every row that waits may begin; the engine admits those whose prompts find blocks."""

    def blocks(self, row: OfflineRow) -> int:
        return 0

    def space(self, view: StepView, batch: Batch, config: PolicyConfig) -> tuple[int, int]:
        return view.max_seqs - len(view.running), view.total_blocks


def first_come(predicted: Mapping[str, int]) -> OfflineOrder:
    return Fcfs()


def greedy(predicted: Mapping[str, int]) -> Admission:
    return Greedy()


TODAY: dict[str, float] = {"step_tokens": 2048, "order": FCFS, "allocation": BLOCK}
OF_2023: dict[str, float] = {**TODAY, "step_tokens": 2560, "prompts_first": True, "swaps": True, "watermark": 0.01}

VLLM = System("vllm", lambda setting, dataset: TODAY, parts=Parts(first_come, greedy))
VLLM_2023 = System("vllm_2023", lambda setting, dataset: OF_2023)
