"""EconoServe's order among online requests, by three keys in ranges (section 3.4 of the paper)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harvester.policy.order.online import OnlineRequest

DEADLINES_S = (0.2, 0.5, 2.0)  # ranges of the time that is left to a deadline
RANGE_TOKENS = 128  # and of KV and predicted length


@dataclass(slots=True)
class _Task:
    due_s: float
    prompt_tokens: int
    answer_tokens: int
    steps: int = 0

    def key(self, now_s: float) -> tuple[int, int, int]:
        kv_tokens = self.prompt_tokens + self.steps if self.steps else 0
        return bisect_right(DEADLINES_S, self.due_s - now_s), -(kv_tokens // RANGE_TOKENS), -(self.answer_tokens // RANGE_TOKENS)


class Econo:
    """By the range of the time left to the answer's deadline; in it those with most KV first, so that it comes free; then the longest
    predicted answer; then the first that came.

    Past their deadlines all are in one range: there a short answer starves behind long ones. The paper's waiting requests keep their KV.
    Those of a paged engine hold none, so here KV counts from a request's first step, also where it has been taken since.
    """

    last_gives_kv = True

    def __init__(self) -> None:
        self._held: dict[str, _Task] = {}  # in order of arrival

    def arrive(self, request: OnlineRequest, now_s: float) -> None:
        self._held[request.name] = _Task(request.end_due_s, request.prompt_tokens, request.answer_tokens)

    def ran(self, names: Iterable[str], seconds: float, now_s: float) -> None:
        for name in names:
            if name in self._held:
                self._held[name].steps += 1

    def finish(self, name: str) -> None:
        del self._held[name]

    def order(self, now_s: float) -> Sequence[str]:
        return sorted(self._held, key=lambda name: self._held[name].key(now_s))

    def next_turn_s(self, now_s: float, batch: int) -> Mapping[str, float]:
        return {}
