"""The bounds of a simulated engine, in vLLM's units, and what its steps and copies cost."""

from __future__ import annotations

from dataclasses import dataclass

from harvester.sim.cost import Cost


@dataclass(frozen=True, slots=True)
class SimEngine:
    """``host_blocks``: KV blocks that host memory holds for checkpoints; 0: no checkpoints, lost KV is computed again.

    ``block_copy_s``: seconds to copy one, in either direction. ``copy_cost``: slowdown of the concurrent step per second of copying.
    ``layers``: of the model; between two, a step of offline work alone may end for an arrival; 0: such steps run to their end. A safepoint
    costs ``safepoint_s``, and one is wanted every ``detect_s``, or more often where the plan says so.
    ``end_beside_chat``: a step in which chat decodes may end early too.
    ``latest_gives_way``: where KV runs out in the middle of a step, the latest arrival is preempted, rows first, as in stock vLLM by
    priority; else the last in the plan's order.
    ``max_ttft_delay_fraction``, ``max_slowdown``: see `harvester.policy.step.preempt.Arrival`.
    """

    cost: Cost
    total_blocks: int
    max_seqs: int = 256
    max_tokens: int = 2048  # vLLM's max_num_batched_tokens
    block_tokens: int = 16
    host_blocks: int = 0
    block_copy_s: float = 0.0
    copy_cost: float = 0.0
    layers: int = 0
    safepoint_s: float = 0.0
    detect_s: float = 0.03
    end_beside_chat: bool = False
    latest_gives_way: bool = False
    max_slowdown: float | None = None
    max_ttft_delay_fraction: float = 1.0

    def blocks(self, tokens: int) -> int:
        """KV blocks that hold ``tokens``."""
        return -(-tokens // self.block_tokens)
