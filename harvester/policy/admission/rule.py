"""Admission of waiting offline requests, into the slots and KV blocks that are free beside the reserve for arrivals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Protocol

from harvester.policy.order.offline import OfflineRow
from harvester.policy.step.batch import Batch
from harvester.policy.step.guarantee import Lack, opened
from harvester.policy.step.view import StepView
from harvester.policy.view import PolicyConfig, Running

MAX_PASSED, MAX_PASSED_OF_JOB = 256, 64  # rows too large for now that are skipped in a step: of all jobs, and of one

Space = tuple[int, int]
"""Slots, and KV blocks as an admission counts them, that new offline requests may take."""

Rows = Callable[[Container[str]], Iterable[OfflineRow]]
"""The waiting rows in their order, without those of the given jobs: `OfflineOrder.rows`."""


class Admission(Protocol):
    """How much KV an offline request is charged, and which are admitted. `blocks` and `space` run in each step: O(running) at most."""

    def blocks(self, row: OfflineRow) -> int:
        """KV blocks that a waiting row is charged."""

    def holds(self, one: Running, blocks_of: Callable[[int], int]) -> int:
        """KV blocks that a running row counts as holding. ``blocks_of``: those of a request, by its computed tokens."""

    def space(self, view: StepView, batch: Batch, config: PolicyConfig) -> Space:
        """The slots and KV blocks that new rows may take. An idle engine always admits one row."""

    def admitted(self, rows: Rows, space: Space, view: StepView, batch: Batch, config: PolicyConfig) -> tuple[str, ...]:
        """Names of those of ``rows`` that are admitted within ``space``, in order. A row that does not fit blocks those behind it, or it
        would wait for ever. One that would not fit even if no other row ran is skipped: it waits for chat, not for rows. What ``space``
        holds of the reserve is for the rows of `StepView.owed` alone. May be called again for the same step."""

    def waits_for_others(self, row: OfflineRow, lack: Lack, view: StepView, batch: Batch, config: PolicyConfig) -> bool:
        """Whether a row that was refused would be admitted if of all rows only those of its job ran: it waits for those of other jobs.

        ``lack``: what its job lacks of its share. False too where the running rows will fill that share.
        """

    def ended(self, row: OfflineRow, answer_tokens: int | None) -> None:
        """The row ended with ``answer_tokens``; None: it was aborted."""

    def ran(self, computed: int, recomputed: int) -> None:
        """A step computed ``computed`` offline tokens. ``recomputed``: tokens to compute again, from it on, because KV ran out."""


class WorstCase:
    """Charges each row the KV of its prompt and longest allowed answer: a row that is admitted never lacks KV."""

    def blocks(self, row: OfflineRow) -> int:
        return row.final_blocks

    def holds(self, one: Running, blocks_of: Callable[[int], int]) -> int:
        return one.blocks_final

    def space(self, view: StepView, batch: Batch, config: PolicyConfig) -> Space:
        free = _free(view, batch)
        return opened(beside_reserve(view, config, free), view, free)

    def admitted(self, rows: Rows, space: Space, view: StepView, batch: Batch, config: PolicyConfig) -> tuple[str, ...]:
        beside_chat = view.total_blocks - rows_and_chat_blocks(view, batch)[1]
        most = most_first = beside_chat - kept(view, config)[1]
        usual, first = space, frozenset[str]()
        if view.owed is not None:
            most_first = max(most, min(beside_chat, view.owed.blocks))
            usual, first = beside_reserve(view, config, _free(view, batch)), view.owed.names
        waiting = passing(rows, lambda row: row.final_blocks <= (most_first if row.name in first else most)) if view.running else rows(())
        return tuple([row.name for row in within(waiting, self.blocks, space, usual, first)])

    def waits_for_others(self, row: OfflineRow, lack: Lack, view: StepView, batch: Batch, config: PolicyConfig) -> bool:
        beside_chat = view.total_blocks - rows_and_chat_blocks(view, batch)[1]
        most = max(beside_chat - kept(view, config)[1], min(beside_chat, lack.share_blocks))
        return sum([one.blocks_final for one in lack.own]) + row.final_blocks <= most

    def ended(self, row: OfflineRow, answer_tokens: int | None) -> None:
        """Answer lengths change nothing."""

    def ran(self, computed: int, recomputed: int) -> None:
        """KV never runs out for it."""


def _free(view: StepView, batch: Batch) -> int:
    """KV blocks that are free, less what the running requests and those read back may still need."""
    return view.free_blocks - batch.growth_blocks - view.loading_growth


def beside_reserve(view: StepView, config: PolicyConfig, free_blocks: int) -> Space:
    """The slots and KV blocks beside the reserve. ``free_blocks``: as admission counts them. An idle engine always has room for one row."""
    kept_slots, kept_blocks = kept(view, config)
    least = (0, 0) if view.running else (1, view.offline_next_blocks)
    return max(view.max_seqs - kept_slots - len(view.running), least[0]), max(free_blocks - kept_blocks, least[1])


def within(
    rows: Iterable[OfflineRow], needs: Callable[[OfflineRow], int], space: Space, usual: Space, first: Container[str]
) -> Iterator[OfflineRow]:
    """The first of ``rows`` that fit together into ``space``, up to one that does not. Others than ``first`` fit only into ``usual`` too.

    ``needs``: KV blocks of a row; ``first``: names. Reads no row that it has no slot for.
    """
    usual = min(space[0], usual[0]), min(space[1], usual[1])
    waiting, slots, blocks = iter(rows), 0, 0
    while slots < space[0] and (row := next(waiting, None)) is not None:
        most = space if row.name in first else usual
        slots, blocks = slots + 1, blocks + needs(row)
        if slots > most[0] or blocks > most[1]:
            return
        yield row


def passing(rows: Rows, waits_for_rows: Callable[[OfflineRow], bool]) -> Iterator[OfflineRow]:
    """Skip rows that wait for chat to go, and not for rows, so that they block nobody.

    After `MAX_PASSED_OF_JOB` of one job the rest of it is skipped; ends after `MAX_PASSED`. Rows without a job are of many clients: each
    counts for itself.
    """
    skipped, passed, count = Counter[str](), set[str](), 0
    for row in rows(passed):
        if waits_for_rows(row):
            yield row
            continue
        count += 1
        skipped[row.job] += 1
        if row.job and skipped[row.job] == MAX_PASSED_OF_JOB:
            passed.add(row.job)
        if count == MAX_PASSED:
            return


def rows_and_chat_blocks(view: StepView, batch: Batch) -> tuple[int, int]:
    """KV blocks of the offline requests by their own count, and those that running chat holds.

    A request counts the blocks of a prefix that it shares with others as its own. Where the chats together count more blocks than are in
    use, they share some, and hold what is in use beside the rows' count.
    """
    rows = batch.final_blocks - batch.growth_blocks + view.blocks_of_all(list(view.loading_rows.values()))
    used = view.total_blocks - view.free_blocks
    return rows, batch.chat_blocks if batch.chat_blocks <= used else max(0, used - rows)


def kept(view: StepView, config: PolicyConfig) -> Space:
    """The reserve in force now: nothing once no chat was open for `PolicyConfig.reserve_s`. The first arrival then preempts."""
    return reserved(view, config) if view.online_idle_s <= config.reserve_s else (0, 0)


def reserved(view: StepView, config: PolicyConfig) -> Space:
    """Slots and KV blocks kept for arrivals. Bursts get at most half of the engine: beyond that, preempting is cheaper."""
    if view.reserve is None:
        return config.reserved_slots, int(config.reserved_kv * view.total_blocks)
    slots, blocks = view.reserve
    return min(slots, view.max_seqs // 2), min(blocks, view.total_blocks // 2)
