"""How long a step may take by the TPOT SLO of the online requests that decode in it, applied to each gap or to the mean gap."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Protocol

from harvester.policy.view import Running

SHORTEST, LONGEST = 0.5, 3.0  # times the TPOT SLO: bounds of a single gap where only the mean counts


class GapRule(Protocol):
    """A rule for the gap until the next token. Called once a step: O(online requests)."""

    def allowed_s(self, running: Iterable[Running], now_s: float) -> float | None:
        """Seconds until the earliest next token is due; None: each step may take the strictest TPOT SLO."""

    def ran(self, names: Iterable[str], now_s: float) -> None:
        """A step with these online requests ended."""

    def finish(self, name: str) -> None:
        """The request ended. Unknown names are ignored."""


class EachGap:
    """Each gap meets the TPOT SLO."""

    def allowed_s(self, running: Iterable[Running], now_s: float) -> float | None:
        return None

    def ran(self, names: Iterable[str], now_s: float) -> None:
        """Past gaps do not matter."""

    def finish(self, name: str) -> None:
        """Nothing is kept."""


class MeanGap:
    """The mean gap of a request meets the TPOT SLO: token n is due n TPOTs after the first one.

    Steps may be longer after short ones, which gives offline work more of their time; single gaps are then late.
    """

    def __init__(self) -> None:
        self._first_s: dict[str, float] = {}
        self._tokens: dict[str, int] = {}  # since then

    def allowed_s(self, running: Iterable[Running], now_s: float) -> float | None:
        least_s: float | None = None
        for one in running:
            if one.offline or not one.decoding or one.tpot_s == math.inf:
                continue
            first_s, tokens = self._first_s.setdefault(one.name, now_s), self._tokens.setdefault(one.name, 0)
            left_s = first_s + (tokens + 1) * one.tpot_s - now_s
            own_s = min(max(left_s, SHORTEST * one.tpot_s), LONGEST * one.tpot_s)
            least_s = own_s if least_s is None else min(least_s, own_s)
        return least_s

    def ran(self, names: Iterable[str], now_s: float) -> None:
        for name in names:
            if name in self._tokens:
                self._tokens[name] += 1

    def finish(self, name: str) -> None:
        self._first_s.pop(name, None)
        self._tokens.pop(name, None)
