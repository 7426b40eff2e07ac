"""Safepoints: places between the layers of a forward pass where a step of offline work may end early (ConServe 4.3).

They sit before the attention of every n-th layer, inside vLLM's attention op. That op stays Python in eager mode, under `torch.compile` and
with piecewise CUDA graphs, where hooks on modules do not run.

All ranks of a tensor-parallel group must end at the same place, or the others wait in a collective for ever. Rank 0 decides, and writes the
decision to the shared state one safepoint ahead: between two safepoints lies an all-reduce, which no rank leaves before rank 0 has written
and entered it. Where threads run ahead of their device, rank 0 decides two safepoints ahead. Each rank then waits at a safepoint until its
device has reached the one before. Without that bound an abort would save nothing.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from harvester.engine.shared.state import Field, SharedState
from harvester.engine.worker.device import Device, Mark
from harvester.engine.worker.places import SafepointSite

NEVER = 1 << 30


def ahead(ranks: int, lags: bool) -> int:
    """Safepoints between decision and end. ``lags``: see `Device`."""
    return 0 if ranks == 1 else 2 if lags else 1


def segments(ranks: int, lags: bool) -> int:
    """Most segments, from one safepoint to the next, that a device still computes after a signal."""
    return 1 + ahead(ranks, lags) + int(lags)


class StepAborted(Exception):
    """The step ended at a safepoint. Its results do not count."""


class Safepoints:
    """Safepoints of one worker. ``chaos``: the probability that a step ends at a random safepoint without being asked, for tests."""

    def __init__(self, shared: SharedState, *, leader: bool, ranks: int, device: Device, chaos: float = 0.0, seed: int = 0) -> None:
        self._shared = shared
        self._leader = leader
        self._device = device
        self._ahead = ahead(ranks, device.lags)
        self._chaos, self._random = chaos, random.Random(seed)
        self._step = 0
        self._place = 0
        self._end_at = NEVER
        self._wanted_at = NEVER
        self._passed_mark: Mark | None = None
        self._every = 1
        self._layers = 0
        self._passed, self._cost_s = 0, 0.0

    def install(self, places: Sequence[SafepointSite]) -> None:
        """Wrap each of these places, at least one, so that a safepoint may stand there."""
        for number, place in enumerate(places):
            setattr(place.owner, place.attribute, self._guarded(number, getattr(place.owner, place.attribute)))
        self._layers = len(places)
        if self._leader:
            self._shared[Field.PLACES] = len(places)

    def _guarded(self, number: int, forward: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any, **kwargs: Any) -> Any:
            if self._step and number % self._every == 0:
                self._check()
            return forward(*args, **kwargs)

        return guarded

    def arm(self, step: int, every: int = 1) -> None:
        """From now on the forward pass is that of ``step``, with a safepoint at every ``every``-th layer."""
        self._step, self._every, self._place, self._passed_mark = step, every, 0, None
        self._end_at = NEVER
        places = -(-self._layers // every)
        self._wanted_at = self._random.randrange(places) if self._chaos and self._random.random() < self._chaos else NEVER

    def disarm(self) -> None:
        if self._leader and self._passed:
            self._shared[Field.SAFEPOINT_S] = self._cost_s / self._passed
        self._step = 0

    def _check(self) -> None:
        began_s = time.perf_counter()
        reached = self._advance() if self._device.lags else None
        place, self._place = self._place, self._place + 1
        cost_s = time.perf_counter() - began_s
        if reached is not None:  # not a cost: the device has work queued up meanwhile
            reached.synchronize()
            if place == 1 and self._leader:
                self._shared.began(self._step, time.monotonic(), on_device=True)
        began_s = time.perf_counter()
        self._decide(place)
        self._passed, self._cost_s = self._passed + 1, self._cost_s + cost_s + time.perf_counter() - began_s
        if place == self._end_at:
            raise StepAborted

    def _decide(self, place: int) -> None:
        shared = self._shared
        if self._leader:
            asked = shared.should_end(self._step) or place >= self._wanted_at
            if asked and self._end_at == NEVER:
                self._end_at = place + self._ahead
                shared.decide(self._step, self._end_at)
        elif self._end_at == NEVER:
            decided = shared.decided(self._step)
            self._end_at = NEVER if decided is None else decided

    def _advance(self) -> Mark | None:
        """Mark this place in the device's queue; returns the mark of the safepoint before, if there was one."""
        before, self._passed_mark = self._passed_mark, self._device.mark()
        return before
