"""A device whose streams run when they are told to, in any order that streams and events allow: what a GPU may do, on its worst day."""

from __future__ import annotations

import ctypes
import random
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class Event:
    """A `Mark`."""

    device: LaggingDevice
    reached: bool = False
    at_s: float = 0.0

    def query(self) -> bool:
        return self.reached

    def synchronize(self) -> None:
        self.device.host_waits += 1
        while not self.reached:
            assert self.device.advance(1), "the event waits for itself"

    def elapsed_time(self, end: Event, /) -> float:
        return 1000 * (end.at_s - self.at_s)


@dataclass
class Pinned:
    """``max_bytes``: what may be pinned; None: no limit."""

    max_bytes: int | None = None
    ranges: dict[int, int] = field(default_factory=dict)
    asked: int = 0


class LaggingDevice:
    """A `CopyDevice` of `harvester.engine.worker.device`, over the memory of this process. An operation takes a millisecond."""

    lags = True

    def __init__(self, rng: random.Random, pinned: Pinned | None = None) -> None:
        self.rng = rng
        self.pinned = Pinned() if pinned is None else pinned
        self.streams: dict[str, deque[tuple[str, Any]]] = {name: deque() for name in ("steps", "out", "back", "awaited")}
        self.host_waits = 0
        self._now_s = 0.0

    # What the copier asks for

    def enter_thread(self) -> None:
        pass

    def pin(self, address: int, size_bytes: int) -> bool:
        assert address % 4096 == size_bytes % 4096 == 0, "whole pages"
        self.pinned.asked += 1
        if self.pinned.max_bytes is not None and sum(self.pinned.ranges.values()) + size_bytes > self.pinned.max_bytes:
            return False
        self.pinned.ranges[address] = size_bytes
        return True

    def unpin(self, address: int) -> None:
        assert not any(stream for name, stream in self.streams.items() if name != "steps"), "copies may still be on their way"
        del self.pinned.ranges[address]

    def mark(self, *, timed: bool = False) -> Event:
        event = Event(self)
        self.streams["steps"].append(("record", event))
        return event

    def hold(self, mark: Any) -> None:
        self.streams["steps"].append(("wait", mark))

    def copy(self, lane: str, after: Any, batches: Sequence[Any]) -> Any:
        from harvester.engine.worker.device import Span

        began, ended, stream = Event(self), Event(self), self.streams[lane]
        stream.extend([("wait", after), ("record", began)])
        for batch in batches:
            found = zip(batch.sources, batch.targets, batch.sizes, strict=True)
            copies = [self._copy(int(source), int(target), int(size), batch.to_device) for source, target, size in found]
            self.rng.shuffle(copies)
            stream.extend(("run", copy) for copy in copies)
        stream.append(("record", ended))
        return Span(began, ended)

    def _copy(self, source: int, target: int, size_bytes: int, to_device: bool) -> Callable[[], object]:
        if to_device and self.rng.random() < 0.5:  # a copy engine may read host memory before its stream comes to the copy
            early = ctypes.string_at(source, size_bytes)
            return lambda: ctypes.memmove(target, early, size_bytes)
        return lambda: ctypes.memmove(target, source, size_bytes)

    # What a test does with it

    def launch(self, work: Callable[[], None]) -> None:
        """Queue ``work`` on the stream of the steps."""
        self.streams["steps"].append(("run", work))

    def advance(self, operations: int, still: Collection[str] = ()) -> int:
        """Run at most ``operations``, each of a random stream that is not ``still``. Returns how many ran."""
        for done in range(operations):
            able = [stream for name, stream in self.streams.items() if stream and name not in still and self._able(stream[0])]
            if not able:
                return done
            self._run(self.rng.choice(able).popleft())
        return operations

    def finish_steps(self, until: Event | None = None, still: Collection[str] = ()) -> None:
        """Run what was launched on the stream of the steps, all or up to ``until``, and only those copies that it waits for."""
        while self.streams["steps"] and not (until is not None and until.reached):
            if self._able(self.streams["steps"][0]):
                self._run(self.streams["steps"].popleft())
            else:
                assert self.advance(1, still), "the steps wait for themselves, or for what stands still"

    def drain(self) -> None:
        while self.advance(1000):
            pass
        assert not any(self.streams.values()), "streams wait for each other"

    def _able(self, operation: tuple[str, Any]) -> bool:
        kind, what = operation
        return kind != "wait" or what.reached

    def _run(self, operation: tuple[str, Any]) -> None:
        kind, what = operation
        if kind == "run":
            self._now_s += 0.001
            what()
        elif kind == "record":
            what.reached, what.at_s = True, self._now_s
