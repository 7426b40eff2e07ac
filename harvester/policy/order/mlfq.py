"""Skip-join multi-level feedback queue: the order among online requests (FastServe 4.1, Algorithm 1).

The length of an answer is not known; the time of its prompt is. A request joins the first queue whose quantum covers its prompt, so that a
long prompt does not pass through queues that it cannot finish in. It sinks as it uses time: short answers overtake long ones.

Starvation: a request that did not run for ``starvation_s * 2**level`` goes to queue 0 for one step and then back. The paper has one time
for all queues, 300 ms. With more work than fits, every request waits longer than that: all are promoted all the time, the order is lost,
and KV is swapped out and in for one token each. A request that has run long can wait long: its latency per token grows by the same factor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count

from harvester.policy.order.enst import enst

MAX_PROMOTED = 256  # at a time: a promoted request still waits for its turn
MIN_STALE = 64  # heap entries of requests that have ended; fewer are not worth a rebuild


@dataclass(slots=True)
class _Place:
    number: int  # in order of arrival
    priority: int
    level: int
    joined: int  # when it joined its queue: a number counted over all
    since_s: float  # waits since then
    attained_s: float = 0.0  # time used in this level
    home: tuple[int, float] | None = None  # level and attained time before a promotion


class Mlfq:
    """Queues 0 (first served) to ``levels - 1``; the quantum of queue i is ``quantum_s * 2**i``.

    The owner calls `arrive` once a request, `ran` after each step a request took part in, `finish` at its end, and `order` before a step.
    ``now_s`` is one clock throughout and never goes back; requests of one step share one ``now_s``. Not thread-safe. Calls for an id that
    is not held raise KeyError.
    """

    def __init__(self, levels: int, quantum_s: float, starvation_s: float, starvation_growth: float = 2.0) -> None:
        """``quantum_s``: the engine's shortest step. ``starvation_s``: how long one of queue 0 may wait, ``starvation_growth`` times as
        long in each next queue (1: the paper's).
        """
        if levels < 1 or quantum_s <= 0.0 or starvation_s <= 0.0:
            raise ValueError(f"levels={levels}, quantum_s={quantum_s} and starvation_s={starvation_s} must be positive")
        self.quantum_s = quantum_s  # may be set again when the measured shortest step changes
        self._starvation_s = starvation_s
        self._growth = starvation_growth
        self._levels = levels
        self._queues: dict[int, list[dict[str, None]]] = {}  # by priority and level; dicts as ordered sets
        self._places: dict[str, _Place] = {}
        self._numbers = count()
        self._step_s = float("-inf")  # end of the latest step that any request took part in
        self._latest: set[str] = set()  # the requests that did, and have not ended
        self._first: dict[tuple[int, int], list[str]] | None = None  # ``_latest`` by priority and level, in joining order; None: not known
        self._starving: list[tuple[float, str]] = []  # a heap: when each one below queue 0 and not promoted starves, or earlier

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, request: str) -> bool:
        return request in self._places

    def quantum(self, level: int) -> float:
        """Seconds that a request may run in queue ``level`` before it sinks."""
        return float(self.quantum_s * 2**level)

    def level(self, request: str) -> int:
        return self._places[request].level

    def arrive(self, request: str, prefill_s: float, now_s: float, priority: int = 0) -> None:
        """Join the first queue whose quantum covers ``prefill_s``, the predicted time of the prompt (0: no skip-join).

        Each ``priority`` has queues of its own; those of a lower number are served first.
        """
        if priority not in self._queues:
            self._queues[priority] = [{} for _ in range(self._levels)]
        number = next(self._numbers)
        self._places[request] = place = _Place(number, priority, self._covering(0, prefill_s), number, now_s)
        self._queues[priority][place.level][request] = None
        self._watch(request, place)

    def ran(self, request: str, seconds: float, now_s: float, next_s: float = 0.0) -> None:
        """It took part in a step of ``seconds`` that ended at ``now_s``. ``next_s``: predicted time of its next step, if that is long.

        With its quantum used up it sinks to the next queue that covers ``next_s``. A promoted request goes back to its old queue.
        """
        place, self._first = self._places[request], None
        if now_s != self._step_s:
            self._latest.clear()
        self._latest.add(request)
        self._step_s = place.since_s = now_s
        place.attained_s += seconds
        if place.home is not None:  # the promoted step does not count against its quantum
            level, attained_s = place.home
            place.home = None
            self._move(request, level)
            place.attained_s = attained_s
            self._watch(request, place)
        elif place.attained_s >= self.quantum(place.level) and place.level < self._levels - 1:
            is_watched = place.level > 0
            self._move(request, self._covering(place.level + 1, next_s))
            if not is_watched:
                self._watch(request, place)

    def prepare(self) -> dict[tuple[int, int], list[str]]:
        """Compute ahead what the next `order` needs: the requests of the latest step by priority and level, in joining order."""
        if self._first is None:
            self._first = self._running()
        return self._first

    def finish(self, request: str) -> None:
        """It ended or was aborted."""
        place = self._places.pop(request)
        del self._queues[place.priority][place.level][request]
        if request in self._latest:
            self._latest.remove(request)
            if self._first is not None:
                self._first[place.priority, place.level].remove(request)
        if not any(self._queues[place.priority]):
            del self._queues[place.priority]
        if len(self._starving) > 2 * len(self._places) + MIN_STALE:
            self._starving = [(due_s, name) for due_s, name in self._starving if name in self._places]
            heapify(self._starving)

    def order(self, now_s: float) -> Iterator[str]:
        """All requests in serving order: by queue; within a queue those of the latest step first, then by time of joining.

        The second rule is the hysteresis: among equals the one that runs goes on, since a switch costs KV and gains nothing. The iterator
        is lazy, and nothing may change while it is read.
        """
        self._promote(now_s)
        return self._walk()

    def among(self, requests: Iterable[str]) -> list[str]:
        """Those of ``requests`` that are held, in the order of the last call of `order`."""
        places, latest = self._places, self._latest
        known = [(name, one) for name in requests if (one := places.get(name)) is not None]
        found = sorted([(one.priority, one.level, name not in latest, one.joined, name) for name, one in known])
        return [key[-1] for key in found]

    def enst(self, requests: Iterable[str], now_s: float, batch: int) -> dict[str, float]:
        """Seconds until each is scheduled next, ``batch`` at a time (FastServe 4.2)."""
        places = {name: self._places[name] for name in requests if name in self._places}
        due_s = {name: self._due_s(place) - now_s for name, place in places.items()}
        counts = [sum([len(queues[level]) for queues in self._queues.values()]) for level in range(self._levels)]
        return enst({name: place.level for name, place in places.items()}, due_s, counts, self.quantum_s, batch)

    def _walk(self) -> Iterator[str]:
        running = self.prepare()
        for priority, queues in sorted(self._queues.items()):
            for level, queue in enumerate(queues):
                first = running.get((priority, level), ())
                yield from first
                if len(first) < len(queue):
                    yield from (name for name in queue if name not in self._latest) if first else queue

    def _running(self) -> dict[tuple[int, int], list[str]]:
        """Those of the latest step by priority and level, in the order in which they joined."""
        running: dict[tuple[int, int], list[str]] = {}
        latest = [(place.joined, name, place) for name, place in ((name, self._places[name]) for name in self._latest)]
        for _, name, place in sorted(latest):
            running.setdefault((place.priority, place.level), []).append(name)
        return running

    def _covering(self, least: int, seconds: float) -> int:
        last = self._levels - 1
        return next((level for level in range(min(least, last), last) if self.quantum(level) >= seconds), last)

    def _move(self, request: str, level: int) -> None:
        place, self._first = self._places[request], None
        queues = self._queues[place.priority]
        del queues[place.level][request]
        place.level, place.attained_s, place.joined = level, 0.0, next(self._numbers)
        queues[level][request] = None

    def _due_s(self, place: _Place) -> float:
        """When the request starves."""
        return place.since_s + self._starvation_s * self._growth**place.level

    def _watch(self, request: str, place: _Place) -> None:
        if place.level > 0:
            heappush(self._starving, (self._due_s(place), request))

    def _promote(self, now_s: float) -> None:
        """Promote starving requests to queue 0, in order of arrival; at most `MAX_PROMOTED` at a time, the longest overdue first."""
        due: dict[str, _Place] = {}
        while self._starving and self._starving[0][0] <= now_s and len(due) < MAX_PROMOTED:
            name = heappop(self._starving)[1]
            place = self._places.get(name)
            if place is None or place.level == 0 or place.home is not None:
                continue
            if self._due_s(place) <= now_s:
                due[name] = place
            else:
                self._watch(name, place)
        for name, place in sorted(due.items(), key=lambda item: item[1].number):
            place.home = (place.level, place.attained_s)
            self._move(name, 0)

    def check(self) -> None:
        """Raise AssertionError where a request is in no queue, in two, or in another than it thinks."""
        assert sorted(name for queues in self._queues.values() for queue in queues for name in queue) == sorted(self._places)
        assert all(name in self._queues[place.priority][place.level] for name, place in self._places.items())
        assert all(place.attained_s >= 0.0 for place in self._places.values())
        assert all(any(queues) for queues in self._queues.values())
        assert self._latest <= self._places.keys()
        assert self._first is None or self._first.items() >= self._running().items()
        watched = {name for _, name in self._starving}
        assert all(name in watched for name, place in self._places.items() if place.level > 0 and place.home is None)
