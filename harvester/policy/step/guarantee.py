"""The minimum share of the engine that a job near its deadline is guaranteed, applied to the plan of a step.

While the job holds less than its share of both slots and KV, its rows are admitted before those of other jobs. They may use reserved slots
and KV that are free now; rows of other jobs may not. Of several such jobs a step serves the one that holds the least of its share.

Chat stays first: an arrival that finds no slot or KV still preempts. Only with `above_slo` may a step exceed the SLO, so that offline work
has its share of the step's time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING

from harvester.policy.step.view import StepView
from harvester.policy.view import EngineView, Running

if TYPE_CHECKING:
    from harvester.policy.admission.rule import Rows
    from harvester.policy.order.offline import Late, OfflineRow


def stretched_s(limit_s: float, view: StepView, online_s: float) -> float:
    """Seconds that the step may last: ``limit_s``, or more with `above_slo`. ``online_s``: time of its chat alone."""
    given = view.guarantee
    return max(limit_s, online_s / (1.0 - given.share)) if given is not None and given.above_slo else limit_s


def owed(late: Late | None, view: EngineView, known: Mapping[str, OfflineRow], holds: Callable[[Running], int]) -> tuple[int, int] | None:
    """Slots and KV blocks that the job lacks of its share; None if it has its share of either, or no row can be admitted.

    ``known``: the offline rows that have not ended; ``holds``: KV blocks that a running one is counted with. O(running) below the share.
    """
    max_seqs = view.max_seqs - view.loading
    if late is None or view.waiting or len(view.running) >= max_seqs:
        return None
    slots = math.ceil(late.share * max_seqs)
    if late.held - view.loading >= slots:
        return None
    own = [one for one in view.running if one.offline and (row := known.get(one.name)) is not None and row.job == late.job]
    slots -= len(own)
    blocks = math.ceil(late.share * view.total_blocks) - sum([holds(one) for one in own])
    return (slots, blocks) if slots > 0 and blocks > 0 else None


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


def first_rows(rows: Rows, job: str, count: int) -> list[OfflineRow]:
    """The first ``count`` waiting rows of the job."""
    return list(islice(rows(_AllBut(job)), count))


class _AllBut:
    """All jobs but one."""

    def __init__(self, job: str) -> None:
        self._job = job

    def __contains__(self, job: object) -> bool:
        return job != self._job
