"""Whose turn it is among the online requests: skip-join MLFQ, or first come, first served; and who waits where slots are short."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from harvester.policy.order.mlfq import Mlfq

FIRST_QUANTUM_S = 0.01  # until a step was measured
MIN_QUANTUM_S = 0.0005
STEPS = 256  # in which the shortest step is looked for


class OnlineTurns:
    """Requests by id. ``mlfq`` None: first come, first served. A lower ``priority`` always goes first."""

    def __init__(self, mlfq: Mlfq | None) -> None:
        self._mlfq = mlfq
        self._priority: dict[str, int] = {}  # in order of arrival
        self._steps_s: deque[float] = deque(maxlen=STEPS)

    def __contains__(self, request: str) -> bool:
        return request in self._priority

    def __len__(self) -> int:
        return len(self._priority)

    def arrive(self, request: str, priority: int, prefill_s: float, now_s: float) -> None:
        """``prefill_s``: predicted time of its prompt."""
        self._priority[request] = priority
        if self._mlfq is not None:
            self._mlfq.arrive(request, prefill_s, now_s)

    def ran(self, requests: Iterable[str], seconds: float, now_s: float) -> None:
        """These took part in a step of ``seconds``."""
        if self._mlfq is None:
            return
        self._steps_s.append(seconds)
        self._mlfq.quantum_s = max(MIN_QUANTUM_S, min(self._steps_s))
        for request in requests:
            if request in self._mlfq:
                self._mlfq.ran(request, seconds, now_s)

    def forget(self, request: str) -> None:
        del self._priority[request]
        if self._mlfq is not None:
            self._mlfq.finish(request)

    def enst(self, now_s: float, batch: int) -> dict[str, float]:
        """Seconds until each is scheduled next; empty where the order is first come, first served."""
        return self._mlfq.enst(now_s, batch) if self._mlfq is not None else {}

    def ranks(self, now_s: float) -> dict[str, int]:
        """Place of each in the order, 0 first."""
        order = self._mlfq.order(now_s) if self._mlfq is not None else list(self._priority)
        if len(set(self._priority.values())) > 1:
            order = sorted(order, key=self._priority.__getitem__)
        return {request: place for place, request in enumerate(order)}


def left_out(running: Sequence[str], waiting: Mapping[str, int], ranks: Mapping[str, int], slots: int, free_blocks: int) -> frozenset[str]:
    """Those of ``running`` that give their slot in this step to one that goes before them; their KV stays.

    ``waiting``: KV blocks that each waiting one needs. One that finds no KV takes no slot, and none behind it is admitted before it.
    """
    if len(running) <= slots and (len(running) + len(waiting) <= slots or not waiting):
        return frozenset()
    chosen: set[str] = set()
    open_door = True
    for request in sorted((*running, *waiting), key=ranks.__getitem__):
        if len(chosen) == slots:
            break
        if request in waiting:
            open_door = open_door and waiting[request] <= free_blocks
            if not open_door:
                continue
            free_blocks -= waiting[request]
        chosen.add(request)
    return frozenset(running) - chosen
