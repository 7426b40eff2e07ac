"""EconoServe's order among online requests, by three keys in ranges (section 3.4 of the paper)."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from harvester.policy.order.online import OnlineRequest
from harvester.policy.order.ranking import Key, MovingRanking

DEADLINES_S = (0.2, 0.5, 2.0)  # ranges of the time that is left to a deadline
RANGE_TOKENS = 128  # width of the ranges of KV and of predicted length
ROUNDING_S = 1e-6  # ranges are checked this much early, rather than late


@dataclass(slots=True)
class _Task:
    priority: int
    came: int
    due_s: float
    prompt_tokens: int
    answer_tokens: int
    steps: int = 0

    def key(self, now_s: float) -> Key:
        kv_tokens = self.prompt_tokens + self.steps if self.steps else 0
        wide = RANGE_TOKENS
        return self.priority, self.range(now_s), -(kv_tokens // wide), -(self.answer_tokens // wide), self.came

    def range(self, now_s: float) -> int:
        """The range of the time that is left to its deadline."""
        return bisect_right(DEADLINES_S, self.due_s - now_s)

    def changes_s(self, now_s: float) -> float:
        """When it comes into the next range; inf where there is none."""
        place = self.range(now_s)
        return self.due_s - DEADLINES_S[place - 1] if place else math.inf


class Econo:
    """Sorts by the range of the time left to the answer's deadline; then most KV first, so that it comes free; then the longest predicted
    answer; then by arrival.

    Past their deadlines all are in one range: there a short answer starves behind long ones. The paper's waiting requests keep their KV.
    Those of a paged engine hold none, so here KV counts from a request's first step, even if it was preempted since.
    """

    preempts_last = True

    def __init__(self) -> None:
        self._ranking = MovingRanking[_Task]()
        self._changes: list[tuple[float, str]] = []  # a heap: when the range of one that has not begun changes
        self._came = 0

    def arrive(self, request: OnlineRequest, now_s: float) -> None:
        self._came += 1
        task = _Task(request.priority, self._came, request.end_due_s, request.prompt_tokens, request.answer_tokens)
        self._ranking.put(request.name, task, now_s)
        self._await(request.name, task, now_s)

    def ran(self, names: Iterable[str], seconds: float, now_s: float) -> None:
        for task in self._ranking.begun(names):
            task.steps += 1

    def finish(self, name: str) -> None:
        self._ranking.drop(name)

    def order(self, now_s: float) -> Iterable[str]:
        changed = set[str]()
        while self._changes and self._changes[0][0] <= now_s + ROUNDING_S:
            changed.add(heappop(self._changes)[1])
        for name, task in self._ranking.stale(changed, now_s).items() if changed else ():
            self._await(name, task, now_s)
        return self._ranking.order(now_s)

    def among(self, names: Collection[str], now_s: float) -> Sequence[str]:
        return self._ranking.among(names, now_s)

    def next_turn_s(self, names: Collection[str], now_s: float, batch: int) -> Mapping[str, float]:
        return {}

    def _await(self, name: str, task: _Task, now_s: float) -> None:
        changes_s = task.changes_s(now_s)
        if changes_s < math.inf:
            heappush(self._changes, (changes_s, name))
