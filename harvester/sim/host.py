"""Host memory for KV checkpoints and the link to it: which blocks are copied when, and what a preempted request reads back.

As in `harvester.engine.checkpoints`, with the same `HostPool` but without data. The link is full duplex; where a step bounds both
directions, reading back goes before storing. Requests share no prefix here, so that every block has one owner.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from harvester.policy.kv.checkpoint import to_save
from harvester.policy.kv.hostpool import HostPool
from harvester.policy.view import Copies
from harvester.sim.engine import SimEngine
from harvester.sim.track import Track

Key = tuple[str, int, int]
"""Request, place of the KV block in it, tokens in the block."""


@dataclass(slots=True)
class _Copy:
    """``slots``: host slots that are still to be copied."""

    name: str
    slots: list[int]


@dataclass(slots=True)
class _Direction:
    """One direction of the link. ``spent_s``: time spent on the block in flight."""

    queue: deque[_Copy] = field(default_factory=deque)
    spent_s: float = 0.0


class SimHostMemory:
    """Host memory of one engine with ``engine.host_blocks``. Calls of a step: `begin`, `save`, `find` and `load`, `grant`, `advance`."""

    def __init__(self, engine: SimEngine) -> None:
        self.pool: HostPool[Key] = HostPool(engine.host_blocks)
        self._engine = engine
        self._out, self._back = _Direction(), _Direction()
        self._tails: dict[str, Key] = {}  # the partly filled blocks of preempted requests
        self._victims: set[str] = set()  # preempted for the step that is being scheduled
        self._copies = Copies()
        self._stored = 0  # blocks, since the last `measured_s`
        self._waited = 0  # blocks that the step waits for

    # While a step is scheduled

    def begin(self, copies: Copies | None) -> None:
        """Begin a step. ``copies``: what its plan wants copied beside it."""
        self._copies = copies or Copies(allowed=0, awaited=0, max_waited=0)
        self._victims.clear()
        self._waited = 0

    def save(self, track: Track) -> None:
        """The request is about to lose its KV: its unsaved blocks are copied at once, as many as the step may wait for."""
        name, tokens, size = track.name, track.computed, self._engine.block_tokens
        self._victims.add(name)
        self._flush(name)
        tail = (name, tokens // size, tokens % size)
        if self._tails.get(name) != tail or self.pool.state(tail) is None:
            self._forget_tail(name)
        partly = tail[2] if name not in self._tails else 0
        saved, most = self.saved(name), max(0, self._copies.max_waited - self._waited)
        full, with_tail = to_save(tokens // size, saved, partly, most)
        keys = [(name, place, size) for place in range(saved, saved + full)] + ([tail] if with_tail else [])
        slots = self.pool.store(name, keys) if keys else None
        if slots is None:
            return
        if with_tail:
            self._tails[name] = tail
        self.pool.stored(slots.values())
        self._waited += len(slots)

    def find(self, track: Track) -> int | None:
        """Tokens of a preempted request that can be read back; None while some are being written, and in the step that preempted it."""
        name, size, tokens = track.name, self._engine.block_tokens, 0
        if name in self._victims:
            return None
        keys = [(name, place, size) for place in range(self.saved(name))]
        for key in (*keys, *([self._tails[name]] if name in self._tails else [])):
            ready = self.pool.state(key)
            if ready is None:
                break
            if not ready:
                return None
            tokens += key[2]
        return tokens

    def load(self, track: Track, tokens: int) -> None:
        """Begin to read back the first ``tokens`` of its KV."""
        name, size = track.name, self._engine.block_tokens
        keys = [(name, place, size) for place in range(tokens // size)]
        slots = self.pool.load(name, [*keys, *([self._tails[name]] if tokens % size else [])])
        self._back.queue.append(_Copy(name, slots))
        if not track.offline:
            self._copies = Copies(self._copies.grants, self._copies.awaited, self._copies.awaited, self._copies.max_waited)

    def grant(self, running: Mapping[str, Track]) -> None:
        """Begin to store the blocks that the plan granted to requests that run."""
        grants, size = self._copies.grants, self._engine.block_tokens
        for name, granted in grants.items():
            track = running.get(name)
            if track is None or name in self._victims:
                continue
            self._forget_tail(name)
            saved = self.saved(name)
            keys = [(name, place, size) for place in range(saved, min(saved + granted, track.computed // size))]
            slots = self.pool.store(name, keys, grants.keys()) if keys else None
            if slots:
                self._out.queue.append(_Copy(name, list(slots.values())))

    # While a step runs

    @property
    def waited_s(self) -> float:
        """How long the step waits before it begins."""
        return self._waited * self._engine.block_copy_s

    def advance(self, seconds: float, bounded: bool = True) -> tuple[list[str], int]:
        """Move blocks over the link for ``seconds``, beside a step or without one (not ``bounded``).

        Returns the requests that have all of their KV back, and the number of blocks copied.
        """
        allowed = self._copies.allowed if bounded else None
        back = self._move(self._back, seconds, allowed)
        out = self._move(self._out, seconds, None if allowed is None else allowed - len(back))
        self.pool.loaded(slot for _, slot in back)
        self.pool.stored(slot for _, slot in out)
        self._stored += len(out)
        waiting = {copy.name for copy in self._back.queue}
        return [name for name in dict.fromkeys(name for name, _ in back) if name not in waiting], len(back) + len(out)

    def until_next_s(self) -> float:
        """Seconds until the next block is read back; inf where none is in flight."""
        return max(0.0, self._engine.block_copy_s - self._back.spent_s) if self._back.queue else math.inf

    def _move(self, way: _Direction, seconds: float, allowed: int | None) -> list[tuple[str, int]]:
        """Blocks that have crossed the link after ``seconds``: (request, slot)."""
        moved: list[tuple[str, int]] = []
        copy_s = self._engine.block_copy_s
        left_s = way.spent_s + seconds
        while way.queue and left_s >= copy_s and (allowed is None or len(moved) < allowed):
            copy = way.queue[0]
            moved.append((copy.name, copy.slots.pop(0)))
            left_s -= copy_s
            if not copy.slots:
                way.queue.popleft()
        way.spent_s = min(left_s, copy_s) if way.queue and len(moved) != allowed else 0.0
        return moved

    # What is on the host

    def saved(self, name: str) -> int:
        """Full blocks of the request, from its first, that are on the host or on the way."""
        tail = self._tails.get(name)
        return self.pool.held(name) - (tail is not None and self.pool.state(tail) is not None)

    def measured_s(self) -> float | None:
        """Seconds to store one block, as measured since the last call; None where no copy ended."""
        stored, self._stored = self._stored, 0
        return self._engine.block_copy_s if stored else None

    def release(self, name: str) -> None:
        """The request has ended."""
        self.pool.release(name)
        self._tails.pop(name, None)

    def _flush(self, name: str) -> None:
        """The step waits for the request's blocks that are being stored, since they will be overwritten."""
        for copy in [copy for copy in self._out.queue if copy.name == name]:
            self._out.queue.remove(copy)
            self.pool.stored(copy.slots)
            self._waited += len(copy.slots)

    def _forget_tail(self, name: str) -> None:
        tail = self._tails.pop(name, None)
        if tail is not None:
            self.pool.forget(name, tail)

    def check(self) -> None:
        """Raise AssertionError where a slot is lost, or a copy has none."""
        self.pool.check()
        assert all(copy.slots for way in (self._out, self._back) for copy in way.queue)
        assert self._engine.host_blocks or not self.pool.used
