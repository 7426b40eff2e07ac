"""Which waiting offline requests are admitted: slots and KV blocks beside the reserve for arrivals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from harvester.policy.order.offline import OfflineRow
from harvester.policy.step.batch import Batch
from harvester.policy.step.guarantee import opened
from harvester.policy.step.view import StepView
from harvester.policy.view import PolicyConfig

MAX_PASSED = 64  # rows too large for now that are passed over in a step

Space = tuple[int, int]
"""Slots, and KV blocks as an admission counts them, that new offline requests may take."""


class Admission(Protocol):
    """A rule for the KV that offline requests are counted with. The first two are called in each step: O(running) at most."""

    def blocks(self, row: OfflineRow) -> int:
        """KV blocks that are counted for a waiting row."""

    def space(self, view: StepView, batch: Batch, config: PolicyConfig) -> Space:
        """What may be taken at most. An idle engine always takes one."""

    def admitted(self, rows: Iterable[OfflineRow], space: Space, view: StepView, batch: Batch, config: PolicyConfig) -> tuple[str, ...]:
        """Names of those of ``rows`` that are admitted within ``space``: the first ones, since one that does not fit keeps those behind it
        out, or it would wait for ever. One that would not fit if no other row ran keeps nobody out: it waits for chat, not for them. May be
        asked again for the same step."""

    def ended(self, row: OfflineRow, answer_tokens: int | None) -> None:
        """The row has ended by itself with so many tokens; None: it was aborted."""

    def ran(self, computed: int, recomputed: int) -> None:
        """A step computed so many offline tokens, of which so many again because KV ran out."""


class WorstCase:
    """Every row is counted with the KV of its prompt and its longest allowed answer: a row that is admitted never lacks KV."""

    def blocks(self, row: OfflineRow) -> int:
        return row.final_blocks

    def space(self, view: StepView, batch: Batch, config: PolicyConfig) -> Space:
        kept_slots, kept_blocks = kept(view, config)
        slots = view.max_seqs - kept_slots - len(view.running)
        free = view.free_blocks - batch.growth_blocks - view.loading_growth
        least = (0, 0) if view.running else (1, view.offline_next_blocks)
        return opened((max(slots, least[0]), max(free - kept_blocks, least[1])), view, batch, free, batch.final_blocks)

    def admitted(self, rows: Iterable[OfflineRow], space: Space, view: StepView, batch: Batch, config: PolicyConfig) -> tuple[str, ...]:
        slots, blocks = space
        names: list[str] = []
        most = view.total_blocks - kept(view, config)[1] - batch.chat_blocks
        waiting = passing(rows, lambda row: row.final_blocks <= most) if view.running else rows
        for row in waiting if slots > 0 else ():
            blocks -= self.blocks(row)
            if blocks < 0:
                break
            names.append(row.name)
            if len(names) == slots:
                break
        return tuple(names)

    def ended(self, row: OfflineRow, answer_tokens: int | None) -> None:
        """How long answers are changes nothing."""

    def ran(self, computed: int, recomputed: int) -> None:
        """KV never runs out for it."""


def passing(rows: Iterable[OfflineRow], fits_alone: Callable[[OfflineRow], bool]) -> Iterator[OfflineRow]:
    """Without the rows that would not fit if no other row ran: they keep nobody out. So many of them, and nobody looks further."""
    passed = 0
    for row in rows:
        if fits_alone(row):
            yield row
        elif (passed := passed + 1) == MAX_PASSED:
            return


def kept(view: StepView, config: PolicyConfig) -> Space:
    """What is kept back for arrivals now. Where no chat has come for `PolicyConfig.reserve_s` it is nothing: the first arrival evicts."""
    return reserved(view, config) if view.online_idle_s <= config.reserve_s else (0, 0)


def reserved(view: StepView, config: PolicyConfig) -> Space:
    """Slots and KV blocks kept for arrivals. Bursts get at most half of the engine: beyond that, evicting is the cheaper way."""
    if view.reserve is None:
        return config.reserved_slots, int(config.reserved_kv * view.total_blocks)
    slots, blocks = view.reserve
    return min(slots, view.max_seqs // 2), min(blocks, view.total_blocks // 2)
