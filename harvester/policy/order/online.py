"""The orders of online requests: which go first where there are more than the engine has slots, tokens or KV for."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from harvester.policy.order.mlfq import Mlfq
from harvester.policy.order.ranking import Key, MovingRanking, Ranking

FIRST_QUANTUM_S = 0.01  # until a step was measured
MIN_QUANTUM_S = 0.0005
STEPS = 256  # latest steps, the shortest of which sets the quantum
OVERDUE_TOKENS = 16  # assumed to be left of an answer longer than predicted


@dataclass(frozen=True, slots=True)
class OnlineRequest:
    """A chat request. A lower ``priority`` goes first, whatever the order among equals.

    ``kind``: requests of one kind have answers of similar length. ``max_tokens``: of its answer. ``due_s``: when its first token is due;
    ``tpot_s``: its TPOT SLO. ``blocks``: KV blocks that its prompt needs. ``arrived_s``: when it reached the server.
    `Brain` fills in ``expected_tokens``, the predicted length of its answer, where the adapter knows none, and the predicted times
    ``prefill_s`` of its prompt and ``token_s`` of one token of its answer.
    """

    name: str
    priority: int = 0
    prompt_tokens: int = 1
    kind: str = ""
    max_tokens: int = 1
    expected_tokens: int | None = None
    prefill_s: float = 0.0
    token_s: float = 0.0
    due_s: float = 0.0
    tpot_s: float = math.inf
    blocks: int = 1
    arrived_s: float = 0.0

    @property
    def answer_tokens(self) -> int:
        """Predicted length of its answer; without a prediction, the maximum."""
        return self.max_tokens if self.expected_tokens is None else self.expected_tokens

    @property
    def expected_s(self) -> float:
        """Predicted time of prompt and answer."""
        return self.prefill_s + self.answer_tokens * self.token_s

    @property
    def end_due_s(self) -> float:
        """When its whole answer is due, with ``tpot_s`` for each token. Without a TPOT SLO: when its first token is due."""
        return self.due_s + (self.answer_tokens * self.tpot_s if self.tpot_s < math.inf else 0.0)


class OnlineOrder(Protocol):
    """An order of online requests. It is told of each once, and of every step that any of them took part in.

    Thousands may wait while a step serves the first few: what is called each step must not visit the others. A lower
    `OnlineRequest.priority` goes before all others. ``now_s`` is one monotonic clock. Calls for a name that is not held raise KeyError.
    """

    @property
    def preempts_last(self) -> bool:
        """Which online request is preempted where KV runs out. True: the last in this order; False: the newest, as in vLLM."""

    def arrive(self, request: OnlineRequest, now_s: float) -> None: ...

    def ran(self, names: Iterable[str], seconds: float, now_s: float) -> None:
        """These took part in a step of ``seconds`` that ended at ``now_s``; names that have ended may be among them."""

    def finish(self, name: str) -> None: ...

    def order(self, now_s: float) -> Iterable[str]:
        """Names in serving order, computed lazily. One that is left out is not served."""

    def among(self, names: Collection[str], now_s: float) -> Sequence[str]:
        """Those of ``names`` that are in the order, in its order."""

    def next_turn_s(self, names: Collection[str], now_s: float, batch: int) -> Mapping[str, float]:
        """Seconds until each is scheduled next, ``batch`` at a time. Empty where the order cannot tell: nobody swaps out then."""


class Fcfs:
    """First come, first served: stock vLLM. Nobody starves. Its subclasses sort by a key of each request, the least first."""

    preempts_last = False  # the newest is the last

    def __init__(self) -> None:
        self._ranking = Ranking()
        self._came = 0

    def _key(self, request: OnlineRequest) -> float:
        return 0.0

    def arrive(self, request: OnlineRequest, now_s: float) -> None:
        self._came += 1
        self._ranking.put(request.name, (request.priority, self._key(request), self._came))

    def ran(self, names: Iterable[str], seconds: float, now_s: float) -> None:
        """What ran changes nothing."""

    def finish(self, name: str) -> None:
        self._ranking.drop(name)

    def order(self, now_s: float) -> Iterable[str]:
        return self._ranking.order()

    def among(self, names: Collection[str], now_s: float) -> Sequence[str]:
        return self._ranking.among(names)

    def next_turn_s(self, names: Collection[str], now_s: float, batch: int) -> Mapping[str, float]:
        return {}


@dataclass(slots=True)
class _Job:
    """``answer_tokens``: as predicted; ``made``: tokens made so far, one a step."""

    priority: int
    came: int
    prefill_s: float
    token_s: float
    answer_tokens: int
    made: int = 0

    @property
    def left_s(self) -> float:
        """Predicted time left. An answer longer than predicted counts as near its end: its KV costs most to compute again."""
        left = self.answer_tokens - self.made if self.made < self.answer_tokens else OVERDUE_TOKENS
        return (0.0 if self.made else self.prefill_s) + left * self.token_s

    def key(self, now_s: float) -> Key:
        return self.priority, self.left_s, self.came


class ShortestFirst:
    """The shortest predicted remaining time first. A long answer starves while shorter ones fill the engine."""

    preempts_last = True

    def __init__(self) -> None:
        self._ranking = MovingRanking[_Job]()
        self._came = 0

    def arrive(self, request: OnlineRequest, now_s: float) -> None:
        self._came += 1
        job = _Job(request.priority, self._came, request.prefill_s, request.token_s, request.answer_tokens)
        self._ranking.put(request.name, job, now_s)

    def ran(self, names: Iterable[str], seconds: float, now_s: float) -> None:
        for job in self._ranking.begun(names):
            job.made += 1

    def finish(self, name: str) -> None:
        self._ranking.drop(name)

    def order(self, now_s: float) -> Iterable[str]:
        return self._ranking.order(now_s)

    def among(self, names: Collection[str], now_s: float) -> Sequence[str]:
        return self._ranking.among(names, now_s)

    def next_turn_s(self, names: Collection[str], now_s: float, batch: int) -> Mapping[str, float]:
        return {}


class ShortestPrompt(Fcfs):
    """Fixed priority by prompt length, preemptive (FastServe 4.1, first strawman). Long prompts starve."""

    def _key(self, request: OnlineRequest) -> float:
        return float(request.prompt_tokens)


class EarliestDeadline(Fcfs):
    """The answer that is due first, by the SLO of its class. Nobody starves: whoever comes later than a deadline is due after it."""

    preempts_last = True

    def _key(self, request: OnlineRequest) -> float:
        return request.end_due_s


class SkipJoin:
    """Skip-join MLFQ (FastServe 4.1). Its first quantum is the shortest of the last steps.

    ``skip``: requests join the queue that covers their prompt; without it all join the first one (naive MLFQ). Nobody starves: see `Mlfq`.
    """

    preempts_last = False  # the last has made most, all of which would be computed again

    def __init__(self, mlfq: Mlfq, skip: bool = True) -> None:
        self._mlfq, self._skip = mlfq, skip
        self._steps_s: deque[float] = deque(maxlen=STEPS)

    def arrive(self, request: OnlineRequest, now_s: float) -> None:
        self._mlfq.arrive(request.name, request.prefill_s if self._skip else 0.0, now_s, request.priority)

    def ran(self, names: Iterable[str], seconds: float, now_s: float) -> None:
        self._steps_s.append(seconds)
        self._mlfq.quantum_s = max(MIN_QUANTUM_S, min(self._steps_s))
        for name in names:
            if name in self._mlfq:
                self._mlfq.ran(name, seconds, now_s)
        self._mlfq.prepare()

    def finish(self, name: str) -> None:
        self._mlfq.finish(name)

    def order(self, now_s: float) -> Iterable[str]:
        return self._mlfq.order(now_s)

    def among(self, names: Collection[str], now_s: float) -> Sequence[str]:
        return self._mlfq.among(names)

    def next_turn_s(self, names: Collection[str], now_s: float, batch: int) -> Mapping[str, float]:
        return self._mlfq.enst(names, now_s, batch)
