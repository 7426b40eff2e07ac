"""The checkpoint policy: which KV blocks are copied to the host, and which online requests give up KV for others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from harvester.policy.kv.checkpoint import CopyView, Coverage, Holder, Thresholds, limit_blocks, waited_blocks
from harvester.policy.order.enst import Resident, swap_out
from harvester.policy.view import Copies, EngineView, Running
from harvester.policy.waiting import Waiting

AVERAGE = 0.1  # weight of the newest step
MAX_GAP_S = 5.0  # a longer gap between two steps does not count as step time


Turns = Callable[[Collection[str]], Mapping[str, float]]
"""Seconds until each of the given requests is scheduled next; one that is left out is unknown."""


@dataclass(frozen=True, slots=True)
class CopyState:
    """Checkpoints of an engine while a step runs. ``holders``: running requests in the order in which they would lose their KV.

    ``room``: KV blocks that the host has memory for, up to a given number. ``block_s``: seconds of one copy, as measured since the last
    call; None: none ended.
    """

    holders: tuple[Holder, ...]
    free_blocks: int
    total_blocks: int
    room: Callable[[int], int]
    now_s: float
    block_s: float | None


class KvPolicy(Protocol):
    """Called once a step each: `swap_out` and `copies` for its plan, `choose_copies` while it runs."""

    @property
    def max_waited(self) -> int:
        """Maximum unsaved KV blocks of its victims that a step waits for."""

    def swap_out(self, view: EngineView, ranks: Mapping[str, int], turns_s: Turns) -> tuple[int, ...]:
        """Places of the running online requests that give up their KV for the first that waits. ``turns_s``: `OnlineOrder.next_turn_s`."""

    def copies(self, view: EngineView, ranks: Mapping[str, int], limit_s: float, alone: bool) -> Copies | None:
        """What to copy beside a step that may last ``limit_s``. ``alone``: it holds no online work. None: there are no checkpoints."""

    def choose_copies(self, state: CopyState) -> None:
        """Choose what the next step copies."""


class NoCheckpoints:
    """No checkpoints: KV that is lost is computed again."""

    max_waited = 0

    def swap_out(self, view: EngineView, ranks: Mapping[str, int], turns_s: Turns) -> tuple[int, ...]:
        return ()

    def copies(self, view: EngineView, ranks: Mapping[str, int], limit_s: float, alone: bool) -> Copies | None:
        return None

    def choose_copies(self, state: CopyState) -> None:
        """Nothing is copied."""


class Checkpoints:
    """Incremental checkpoints under memory pressure (ConServe 4.4), and proactive swapping of online requests (FastServe 4.2).

    ``cost``: slowdown of the concurrent step per second of copying. ``ttft_s``: the TTFT SLO. ``wait_blocks``: maximum unsaved blocks of
    victims that a step waits for; None: as many as take a share of ``ttft_s``.
    """

    def __init__(self, thresholds: Thresholds, cost: float, ttft_s: float, wait_blocks: int | None = None) -> None:
        self._coverage = Coverage(thresholds)
        self._cost, self._ttft_s, self._wait_blocks = cost, ttft_s, wait_blocks
        self._grants: Mapping[str, int] = {}
        self._limit = 0  # maximum blocks to copy during the step planned last
        self._step_s = 0.0
        self._block_s: float | None = None
        self._sent_s: float | None = None
        self.max_waited = 0

    def swap_out(self, view: EngineView, ranks: Mapping[str, int], turns_s: Turns) -> tuple[int, ...]:
        first, need = _first(view, ranks), _short_blocks(view, ranks)
        if first is None or need <= 0:
            return ()
        online = {one.name: place for place, one in enumerate(view.running) if not one.offline}
        next_turn_s = turns_s([first.name, *online])
        if first.name not in next_turn_s:
            return ()
        places = {name: place for name, place in online.items() if name in next_turn_s}
        residents = [Resident(name, next_turn_s[name], *_blocks(view.running[place])) for name, place in places.items()]
        chosen = swap_out(residents, need, next_turn_s[first.name], self._block_s or 0.0, self.max_waited)
        return tuple(places[name] for name in chosen)

    def copies(self, view: EngineView, ranks: Mapping[str, int], limit_s: float, alone: bool) -> Copies:
        step_s, slack_s = self._step_s, limit_s - self._step_s
        awaited = limit_blocks(step_s, slack_s, self._block_s, online=False, cost=self._cost)
        within = limit_blocks(step_s, slack_s, self._block_s, online=not alone, cost=self._cost)
        self._limit = awaited if _short_blocks(view, ranks) > 0 else within
        self.max_waited = waited_blocks(self._ttft_s, self._block_s) if self._wait_blocks is None else self._wait_blocks
        if alone:
            return Copies(self._grants, None, None, self.max_waited)
        return Copies(self._grants, awaited if view.loading_online else max(1, self._limit), awaited, self.max_waited)

    def choose_copies(self, state: CopyState) -> None:
        if self._sent_s is not None and state.now_s - self._sent_s < MAX_GAP_S:
            self._step_s += AVERAGE * (state.now_s - self._sent_s - self._step_s)
        self._sent_s = state.now_s if state.holders else None
        if state.block_s is not None:
            self._block_s = state.block_s if self._block_s is None else self._block_s + AVERAGE * (state.block_s - self._block_s)
        seen = CopyView(state.holders, state.free_blocks, state.total_blocks, self._limit, state.room)
        self._grants = self._coverage.plan(seen)


def _blocks(one: Running) -> tuple[int, int]:
    return one.full_blocks, one.unsaved


def _first(view: EngineView, ranks: Mapping[str, int]) -> Waiting | None:
    name = min((name for name in ranks if name in view.waiting), key=ranks.__getitem__, default=None)
    return None if name is None else view.waiting.get(name)


def _short_blocks(view: EngineView, ranks: Mapping[str, int]) -> int:
    """KV blocks that the next online request lacks where no offline work holds any; 0 or less where it lacks none."""
    first = _first(view, ranks)
    if first is None or any(one.offline for one in view.running):
        return 0
    return first.blocks - view.free_blocks
