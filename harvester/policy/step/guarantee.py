"""The minimum share of the engine that a job near its deadline is guaranteed, applied to the plan of a step.

While the job holds less than its share of both slots and KV, its rows are admitted before those of other jobs. They may use reserved slots
and KV that are free now; rows of other jobs may not. Of several such jobs a step serves the one that holds the fewest slots for its share,
among those that it can give a row. A job keeps others out only while its next row waits for their rows. Where its own rows or chat leave it
no room, the others go on as if it had no guarantee.

Chat stays first: an arrival that finds no slot or KV still preempts. Only with `above_slo` may a step exceed the SLO, so that offline work
has its share of the step's time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from harvester.policy.step.view import StepView
from harvester.policy.view import EngineView, Running

MAX_TRIED = 8  # late jobs that a step looks for a row of

if TYPE_CHECKING:
    from harvester.policy.admission.rule import Rows
    from harvester.policy.order.offline import Late, OfflineRow
    from harvester.policy.step.batch import Batch


def stretched_s(limit_s: float, view: StepView, online_s: float) -> float:
    """Seconds that the step may last: ``limit_s``, or more with `above_slo`. ``online_s``: time of its chat alone."""
    given = view.guarantee
    return max(limit_s, online_s / (1.0 - given.share)) if given is not None and given.above_slo else limit_s


class Lack(NamedTuple):
    """What a late job lacks of its share: ``slots`` and KV ``blocks``, both above 0.

    ``share_blocks``: KV blocks of its whole share; ``own``: its running rows.
    """

    job: str
    slots: int
    blocks: int
    share_blocks: int = 0
    own: Sequence[Running] = ()


def owed(late: Sequence[Late], view: EngineView, known: Mapping[str, OfflineRow], holds: Callable[[Running], int]) -> list[Lack]:
    """What the jobs ``late`` lack, in their order, without those that have their share of slots or KV. Empty if no row can be admitted.

    ``known``: the offline rows that have not ended; ``holds``: KV blocks that a running one is counted with. O(running) for all jobs
    together; O(jobs) while all have their slots.
    """
    max_seqs = view.max_seqs - view.loading
    if not late or view.waiting or len(view.running) >= max_seqs:
        return []
    below = {one.job: one.share for one in late if one.held - view.loading < math.ceil(one.share * max_seqs)}
    if not below:
        return []
    own: dict[str, list[Running]] = {job: [] for job in below}
    for one in view.running:
        if one.offline and (row := known.get(one.name)) is not None and row.job in own:
            own[row.job].append(one)
    lacks = list[Lack]()
    for job, share in below.items():
        rows, share_blocks = own[job], math.ceil(share * view.total_blocks)
        blocks = share_blocks - sum([holds(one) for one in rows])
        lacks.append(Lack(job, math.ceil(share * max_seqs) - len(rows), blocks, share_blocks, rows))
    return [lack for lack in lacks if lack.slots > 0 and lack.blocks > 0]


def in_turn(lacks: Sequence[Lack], view: EngineView, batch: Batch, rows: Rows, needs: Callable[[OfflineRow], int]) -> list[Lack]:
    """``lacks`` in the order in which a step tries them: first the jobs whose next row fits into the KV that they lack, beside chat.

    A job with long rows may lack less than a row for hours, or wait for chat to go: the others must not wait with it. ``needs``: KV blocks
    that a waiting row is charged. O(1) with one job, otherwise a look at the first row of each.
    """
    if len(lacks) < 2:
        return list(lacks)
    used, chat = view.total_blocks - view.free_blocks, batch.chat_blocks
    if chat > used:  # the chats share some, and hold what is in use beside the rows
        chat = max(0, used - (batch.final_blocks - batch.growth_blocks))
    room = view.total_blocks - chat
    return sorted(lacks, key=lambda one: sum([needs(row) for row in first_rows(rows, one.job, 1)]) > min(one.blocks, room))


def opened(space: tuple[int, int], view: StepView, free_blocks: int) -> tuple[int, int]:
    """``space`` (slots and KV blocks that new offline requests may take), raised to what the first rows of `StepView.owed` need.

    ``free_blocks``: KV blocks that are free, as admission counts them.
    """
    if view.owed is None:
        return space
    slots = min(view.max_seqs - len(view.running), len(view.owed.names))
    blocks = min(free_blocks, view.owed.blocks, view.owed.first_blocks)
    return max(space[0], slots), max(space[1], blocks)


def led(rows: Rows, first: Sequence[OfflineRow]) -> Rows:
    """``rows`` with those of ``first`` before the others."""
    names = {row.name for row in first}

    def ordered(passed: Container[str]) -> Iterator[OfflineRow]:
        return chain(
            (row for row in first if row.job not in passed),
            (row for row in rows(passed) if row.name not in names),
        )

    return ordered


def no_rows(passed: Container[str]) -> Iterator[OfflineRow]:
    """`Rows` of which there are none."""
    return iter(())


def first_rows(rows: Rows, job: str, count: int) -> list[OfflineRow]:
    """The first ``count`` waiting rows of the job."""
    return list(islice(rows(_AllBut(job)), count))


class _AllBut:
    """All jobs but one."""

    def __init__(self, job: str) -> None:
        self._job = job

    def __contains__(self, job: object) -> bool:
        return job != self._job
