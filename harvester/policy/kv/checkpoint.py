"""Which KV blocks are copied to host memory, and how fast (ConServe 4.4, "Adaptive Checkpointing Policy").

A checkpoint is worth its copy only where its request loses its KV. Nothing is copied while KV is plentiful. Below a threshold of free KV
the number of requests covered grows with the pressure, as random early detection drops more packets the fuller its queue is. Requests are
covered in the order in which they would lose their KV. Copies are just fast enough to be complete when the free blocks are used up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

RISE, FALL = 0.5, 0.05  # weight of a step in the average pressure: quick to begin, slow to stop
FILL = 0.1  # weight of a step in the average consumption
FIRST_BLOCKS = 2  # copied in a step, until the time of a copy is known
ONLINE_SHARE = 0.02  # share of its time that copies may add to a step with online work
OFFLINE_SHARE = 0.25  # the same for a step without, and for one in which online work waits for its own copies
LINK_SHARE = 0.5  # maximum copy time as a share of any step, however little the copies slow it
CPU_COST, CUDA_COST = 1.0, 0.04  # slowdown of the concurrent step per second of copying (docs/design/0018)
WAIT_SHARE = 0.02  # share of the TTFT SLO that a step may wait for the unsaved blocks of its victims
MIN_WAITED = 4  # blocks that a step may always wait for


@dataclass(frozen=True, slots=True)
class Holder:
    """A running request. ``blocks``: full KV blocks that are computed; ``saved``: how many of them, from the first, are on the host."""

    name: str
    blocks: int
    saved: int
    offline: bool = True


@dataclass(frozen=True, slots=True)
class CopyView:
    """``requests``: in the order in which they would lose their KV."""

    requests: Sequence[Holder]
    free_blocks: int
    total_blocks: int
    limit_blocks: int  # most copies in this step
    room: Callable[[int], int]  # blocks that the host has memory for, up to a given number


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Shares of KV that is free. ``start``: copying begins; ``full``: every offline request is covered."""

    start: float = 0.5
    full: float = 0.1
    online: bool = True

    def __post_init__(self) -> None:
        if not 0.0 <= self.full < self.start <= 1.0:
            raise ValueError(f"full={self.full} must be at least 0 and below start={self.start}, and that at most 1")


def ramp(free: float, start: float, full: float) -> float:
    """Share of the requests to cover where ``free`` of the KV is free: 0 from ``start`` on, 1 at ``full`` and below, linear between."""
    return min(1.0, max(0.0, (start - free) / (start - full)))


def limit_blocks(step_s: float, slack_s: float, block_s: float | None, online: bool, cost: float = CPU_COST) -> int:
    """Maximum blocks to copy during a step of ``step_s``. ``slack_s``: slack to the SLO; ``block_s``: seconds of one copy; ``cost``:
    slowdown of the step per second of copying.

    Copies may add little to a step with online work, and never more than its slack. They may add more to a step without, where one block is
    always allowed, so that copying never stops. The same holds where an online request waits for the copies: each further step costs it
    more than they cost the others. An engine that has not measured a copy begins with a few.
    """
    if block_s is None or block_s <= 0.0:
        return FIRST_BLOCKS if slack_s > 0.0 or not online else 0
    added_s = min(ONLINE_SHARE * step_s, slack_s) if online else OFFLINE_SHARE * step_s
    return max(0 if online else 1, int(min(added_s / cost, LINK_SHARE * step_s) / block_s))


def waited_blocks(ttft_s: float, block_s: float | None) -> int:
    """Maximum unsaved blocks of victims that a step waits for, when they make room for an arrival with this TTFT SLO."""
    return MIN_WAITED if not block_s else max(MIN_WAITED, int(WAIT_SHARE * ttft_s / block_s))


class Coverage:
    """Chooses the blocks to copy; keeps averages from step to step. Call `plan` once a step."""

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self._used = 0.0  # average share of KV in use
        self._online = 0.0  # the same without what offline work holds, which gives way to online work
        self._filled = 0.0  # blocks that fill up in a step, on average
        self._blocks: Mapping[str, int] = {}

    @property
    def free(self) -> float:
        """Share of KV that is free, on average."""
        return 1.0 - self._used

    def plan(self, view: CopyView) -> dict[str, int]:
        """Number of blocks to copy by request in this step, from its first unsaved one; O(requests).

        In total at most ``limit_blocks`` and what there is room for, and none of a request that is wholly saved.
        """
        self._observe(view)
        chosen = self._chosen(view)
        backlog = sum(kept.blocks - kept.saved for kept in chosen)
        allowed = view.room(min(self._speed(backlog, view.free_blocks), view.limit_blocks)) if backlog > 0 else 0
        grants: dict[str, int] = {}
        for kept in chosen:
            blocks = min(kept.blocks - kept.saved, allowed)
            if blocks > 0:
                grants[kept.name] = blocks
                allowed -= blocks
        return grants

    def _observe(self, view: CopyView) -> None:
        total = max(1, view.total_blocks)
        offline = sum(kept.blocks for kept in view.requests if kept.offline)
        self._used = _average(self._used, 1.0 - view.free_blocks / total)
        self._online = _average(self._online, max(0.0, 1.0 - (view.free_blocks + offline) / total))
        filled = sum(max(0, kept.blocks - self._blocks[kept.name]) for kept in view.requests if kept.name in self._blocks)
        self._filled += FILL * (filled - self._filled)
        self._blocks = {kept.name: kept.blocks for kept in view.requests}

    def _chosen(self, view: CopyView) -> list[Holder]:
        """The first requests of each class, as many as the ramp says, and partly saved ones while there is any pressure.

        The ramp of online work begins midway between the thresholds. KV of offline work counts as free there: chat takes it first.
        """
        start, full = self._thresholds.start, self._thresholds.full
        offline = [kept for kept in view.requests if kept.offline]
        online = [kept for kept in view.requests if not kept.offline] if self._thresholds.online else []
        chosen: list[Holder] = []
        for kept, free, begin in ((offline, self.free, start), (online, 1.0 - self._online, (start + full) / 2)):
            share = ramp(free, begin, full)
            if share > 0.0:
                count = math.ceil(round(share * len(kept), 6))
                chosen += kept[:count]
                chosen += [one for one in kept[count:] if one.saved]
        return chosen

    def _speed(self, backlog: int, free_blocks: int) -> int:
        """Blocks per step: those that fill up meanwhile, and enough of the backlog to finish it when the free blocks are used up."""
        return math.ceil(self._filled + backlog * max(1.0, self._filled) / max(1, free_blocks))


def _average(average: float, value: float) -> float:
    return average + (RISE if value > average else FALL) * (value - average)


def to_save(blocks: int, saved: int, tail_tokens: int, limit_blocks: int) -> tuple[int, bool]:
    """What a request that loses its KV now may still save: how many of its unsaved full blocks, and whether the partly filled one.

    The step waits for these copies, so there are at most ``limit_blocks``; any further blocks are discarded. The partly filled block is
    of use only behind all others.
    """
    missing = max(0, blocks - saved)
    full = min(missing, limit_blocks)
    return full, tail_tokens > 0 and full == missing and full < limit_blocks
