"""Skip-join multi-level feedback queue: the order among online requests (FastServe 4.1, Algorithm 1).

How long an answer gets is not known, how long its prompt takes is. A request joins the first queue whose quantum covers its prompt, so that
a long prompt does not burn through queues that it cannot finish in, and sinks as it uses time: short answers overtake long ones.

Starvation: a request that did not run for ``starvation_s * 2**level`` goes to queue 0 for one step and then back. The paper has one time
for all queues, 300 ms. With more work than fits, every request waits longer than that: all are promoted all the time, the order is gone,
and KV is carried to and fro for a token each. What has run long can wait long: its latency per token grows by the same factor.
"""

from __future__ import annotations

from dataclasses import dataclass

from harvester.policy.order.enst import enst


@dataclass(slots=True)
class _Place:
    level: int
    attained_s: float  # in this level
    since_s: float  # waits since then
    ran_s: float | None = None  # end of its last step
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
        self._queues: list[dict[str, None]] = [{} for _ in range(levels)]  # dicts as ordered sets
        self._places: dict[str, _Place] = {}
        self._step_s = float("-inf")  # the latest step that anyone took part in
        self._look_s = float("-inf")  # nobody starves before then

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, request: str) -> bool:
        return request in self._places

    def quantum(self, level: int) -> float:
        """Seconds that a request may run in queue ``level`` before it sinks."""
        return float(self.quantum_s * 2**level)

    def level(self, request: str) -> int:
        return self._places[request].level

    def arrive(self, request: str, prefill_s: float, now_s: float) -> None:
        """Join the first queue whose quantum covers ``prefill_s``, the predicted time of the prompt (0: no skip-join)."""
        level = self._covering(0, prefill_s)
        self._places[request] = _Place(level, 0.0, now_s)
        self._queues[level][request] = None
        self._look_s = min(self._look_s, now_s + self._starvation_s)

    def ran(self, request: str, seconds: float, now_s: float, next_s: float = 0.0) -> None:
        """It took part in a step of ``seconds`` that ended at ``now_s``. ``next_s``: predicted time of its next one, where that is long.

        A used-up quantum moves it to the next lower queue that covers ``next_s``; one that was promoted goes back where it was.
        """
        place = self._places[request]
        self._step_s = place.since_s = place.ran_s = now_s
        place.attained_s += seconds
        if place.home is not None:  # the time that starvation bought is not held against it
            level, attained_s = place.home
            place.home = None
            self._move(request, level)
            place.attained_s = attained_s
        elif place.attained_s >= self.quantum(place.level) and place.level < len(self._queues) - 1:
            self._move(request, self._covering(place.level + 1, next_s))

    def finish(self, request: str) -> None:
        """It ended or was aborted."""
        place = self._places.pop(request)
        del self._queues[place.level][request]

    def order(self, now_s: float) -> list[str]:
        """Every request held, the one to serve first in front: by queue; in a queue those of the latest step, then by time of joining it.

        The second rule is the hysteresis: among equals the one that runs goes on, since changing costs KV and wins nothing.
        """
        if now_s >= self._look_s:
            self._promote(now_s)
        ordered: list[str] = []
        for queue in self._queues:
            running = [request for request in queue if self._places[request].ran_s == self._step_s]
            ordered += running
            if len(running) < len(queue):
                kept = set(running)
                ordered += [request for request in queue if request not in kept] if kept else queue
        return ordered

    def enst(self, now_s: float, batch: int) -> dict[str, float]:
        """Seconds until each is scheduled next, ``batch`` at a time (FastServe 4.2)."""
        levels = {request: place.level for request, place in self._places.items()}
        due_s = {name: place.since_s + self._starvation_s * self._growth**place.level - now_s for name, place in self._places.items()}
        return enst(levels, due_s, self.quantum_s, batch)

    def _covering(self, least: int, seconds: float) -> int:
        last = len(self._queues) - 1
        return next((level for level in range(min(least, last), last) if self.quantum(level) >= seconds), last)

    def _move(self, request: str, level: int) -> None:
        place = self._places[request]
        del self._queues[place.level][request]
        place.level, place.attained_s = level, 0.0
        self._queues[level][request] = None

    def _promote(self, now_s: float) -> None:
        self._look_s = now_s + self._starvation_s
        for request, place in self._places.items():
            if place.level == 0 or place.home is not None:
                continue
            due_s = place.since_s + self._starvation_s * self._growth**place.level
            if now_s >= due_s:
                place.home = (place.level, place.attained_s)
                self._move(request, 0)
            else:
                self._look_s = min(self._look_s, due_s)

    def check(self) -> None:
        """Raise AssertionError where a request is in no queue, in two, or in another than it thinks."""
        assert sorted(request for queue in self._queues for request in queue) == sorted(self._places)
        assert all(request in self._queues[place.level] for request, place in self._places.items())
        assert all(place.attained_s >= 0.0 for place in self._places.values())
