"""Which waiting offline requests are admitted: slots and KV blocks beside the reserve for arrivals."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from harvester.policy.order.offline import OfflineRow
from harvester.policy.step.batch import Batch
from harvester.policy.step.guarantee import opened
from harvester.policy.step.view import StepView
from harvester.policy.view import PolicyConfig


class Admission(Protocol):
    """A rule for the KV that offline requests are counted with. Called in each step: O(running) at most."""

    def blocks(self, row: OfflineRow) -> int:
        """KV blocks that are counted for a waiting row."""

    def space(self, view: StepView, batch: Batch, config: PolicyConfig) -> tuple[int, int]:
        """Slots, and KV blocks as `blocks` counts them, that new offline requests may take. An idle engine always takes one."""


class WorstCase:
    """Every row is counted with the KV of its prompt and its longest allowed answer: a row that is admitted never lacks KV."""

    def blocks(self, row: OfflineRow) -> int:
        return row.final_blocks

    def space(self, view: StepView, batch: Batch, config: PolicyConfig) -> tuple[int, int]:
        """Where no chat has come for `PolicyConfig.reserve_s` nothing is kept back: the first arrival evicts."""
        kept_slots, kept_blocks = reserved(view, config) if view.online_idle_s <= config.reserve_s else (0, 0)
        slots = view.max_seqs - kept_slots - len(view.running)
        blocks = view.free_blocks - batch.growth_blocks - view.loading_growth - kept_blocks
        least = (0, 0) if view.running else (1, view.offline_next_blocks)
        return opened((max(slots, least[0]), max(blocks, least[1])), view, batch)


def reserved(view: StepView, config: PolicyConfig) -> tuple[int, int]:
    """Slots and KV blocks kept for arrivals. Bursts get at most half of the engine: beyond that, evicting is the cheaper way."""
    if view.reserve is None:
        return config.reserved_slots, int(config.reserved_kv * view.total_blocks)
    slots, blocks = view.reserve
    return min(slots, view.max_seqs // 2), min(blocks, view.total_blocks // 2)


def admitted(rows: Iterable[OfflineRow], slots: int, blocks: int, admission: Admission) -> tuple[str, ...]:
    """Names of the first of ``rows`` that fit; one that does not fit keeps those behind it out, or it would wait for ever."""
    names: list[str] = []
    for row in rows if slots > 0 else ():
        blocks -= admission.blocks(row)
        if blocks < 0:
            break
        names.append(row.name)
        if len(names) == slots:
            break
    return tuple(names)
