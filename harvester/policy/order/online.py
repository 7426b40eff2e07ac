"""Whose turn it is among the online requests, where more have come than the engine has slots, tokens or KV for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from harvester.policy.order.mlfq import Mlfq

FIRST_QUANTUM_S = 0.01  # until a step was measured
MIN_QUANTUM_S = 0.0005
STEPS = 256  # in which the shortest step is looked for


@dataclass(frozen=True, slots=True)
class OnlineRequest:
    """A chat request that has come. A lower ``priority`` goes first, whatever the order among equals.

    ``expected_tokens``: of its answer. ``due_s``: when its first token is due. ``blocks``: KV blocks that its prompt needs.
    ``arrived_s``: when it reached the server. `Brain` fills in ``prefill_s``, the predicted time of its prompt, and ``expected_s``, that of
    prompt and answer together.
    """

    name: str
    priority: int = 0
    prompt_tokens: int = 1
    expected_tokens: int = 1
    prefill_s: float = 0.0
    expected_s: float = 0.0
    due_s: float = 0.0
    blocks: int = 1
    arrived_s: float = 0.0


class OnlineOrder(Protocol):
    """An order of online requests. It is told of each once, and of every step that any of them took part in.

    ``now_s`` is one monotonic clock. Calls for a name that is not held raise KeyError.
    """

    def arrive(self, request: OnlineRequest, now_s: float) -> None: ...

    def ran(self, names: Iterable[str], seconds: float, now_s: float) -> None:
        """These took part in a step of ``seconds`` that ended at ``now_s``; names that have ended may be among them."""

    def finish(self, name: str) -> None: ...

    def order(self, now_s: float) -> Sequence[str]:
        """The one to serve first in front. One that is left out is not served."""

    def next_turn_s(self, now_s: float, batch: int) -> Mapping[str, float]:
        """Seconds until each is scheduled next, ``batch`` at a time. Empty where the order cannot tell: nobody swaps out then."""


class Fcfs:
    """First come, first served: stock vLLM. Its subclasses sort by a key that a request has from its arrival on."""

    def __init__(self) -> None:
        self._held: dict[str, float] = {}  # with the key that they are sorted by; in order of arrival

    def _key(self, request: OnlineRequest) -> float:
        return 0.0

    def arrive(self, request: OnlineRequest, now_s: float) -> None:
        self._held[request.name] = self._key(request)

    def ran(self, names: Iterable[str], seconds: float, now_s: float) -> None:
        """What ran changes nothing."""

    def finish(self, name: str) -> None:
        del self._held[name]

    def order(self, now_s: float) -> Sequence[str]:
        return sorted(self._held, key=self._held.__getitem__)

    def next_turn_s(self, now_s: float, batch: int) -> Mapping[str, float]:
        return {}


class ShortestFirst(Fcfs):
    """The shortest expected answer first."""

    def _key(self, request: OnlineRequest) -> float:
        return request.expected_s


class ShortestPrompt(Fcfs):
    """Fixed priority by prompt length, preemptive (FastServe 4.1, first strawman)."""

    def _key(self, request: OnlineRequest) -> float:
        return float(request.prompt_tokens)


class EarliestDeadline(Fcfs):
    """The first token that is due first."""

    def _key(self, request: OnlineRequest) -> float:
        return request.due_s


class SkipJoin:
    """Skip-join MLFQ (FastServe 4.1). Its first quantum is the shortest of the last steps.

    ``skip``: requests join the queue that covers their prompt; without it all join the first one (naive MLFQ).
    """

    def __init__(self, mlfq: Mlfq, skip: bool = True) -> None:
        self._mlfq, self._skip = mlfq, skip
        self._steps_s: deque[float] = deque(maxlen=STEPS)

    def arrive(self, request: OnlineRequest, now_s: float) -> None:
        self._mlfq.arrive(request.name, request.prefill_s if self._skip else 0.0, now_s)

    def ran(self, names: Iterable[str], seconds: float, now_s: float) -> None:
        self._steps_s.append(seconds)
        self._mlfq.quantum_s = max(MIN_QUANTUM_S, min(self._steps_s))
        for name in names:
            if name in self._mlfq:
                self._mlfq.ran(name, seconds, now_s)

    def finish(self, name: str) -> None:
        self._mlfq.finish(name)

    def order(self, now_s: float) -> Sequence[str]:
        return self._mlfq.order(now_s)

    def next_turn_s(self, now_s: float, batch: int) -> Mapping[str, float]:
        return self._mlfq.enst(now_s, batch)


def by_priority(order: Sequence[str], priority: Mapping[str, int]) -> dict[str, int]:
    """Place of each in ``order``, 0 first, where a lower ``priority`` goes before all others."""
    if len(set(priority.values())) > 1:
        order = sorted(order, key=priority.__getitem__)
    return {name: place for place, name in enumerate(order)}


def left_out(running: Sequence[str], waiting: Mapping[str, int], ranks: Mapping[str, int], slots: int, free_blocks: int) -> frozenset[str]:
    """Those of ``running`` that give their slot in this step to one that goes before them; their KV stays.

    ``waiting``: KV blocks that each waiting one needs. One that finds no KV takes no slot, and none behind it is admitted before it.
    One that is not in ``ranks`` has no turn.
    """
    if len(running) <= slots and (len(running) + len(waiting) <= slots or not waiting) and all(name in ranks for name in running):
        return frozenset()
    chosen: set[str] = set()
    open_door = True
    for name in sorted((name for name in (*running, *waiting) if name in ranks), key=ranks.__getitem__):
        if len(chosen) == slots:
            break
        if name in waiting:
            open_door = open_door and waiting[name] <= free_blocks
            if not open_door:
                continue
            free_blocks -= waiting[name]
        chosen.add(name)
    return frozenset(running) - chosen
