"""vLLM's own admission as a part of a brain, for comparison: a row is admitted while the KV of its tokens so far fits."""

from __future__ import annotations

from harvester.policy.admission.rule import Space, WorstCase, kept
from harvester.policy.order.offline import OfflineRow
from harvester.policy.step.batch import Batch
from harvester.policy.step.view import StepView
from harvester.policy.view import PolicyConfig


class Greedy(WorstCase):
    """Tokens that answers will still need are not counted: the newest rows lose their KV again and again."""

    def blocks(self, row: OfflineRow) -> int:
        return row.blocks

    def space(self, view: StepView, batch: Batch, config: PolicyConfig) -> Space:
        kept_slots, kept_blocks = kept(view, config)
        least = (0, 0) if view.running else (1, view.offline_next_blocks)
        return max(view.max_seqs - kept_slots - len(view.running), least[0]), max(view.free_blocks - kept_blocks, least[1])
