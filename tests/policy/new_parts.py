"""Policies that the product does not have: each is one class, and one line in a table."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from itertools import islice

import pytest

from harvester.policy import parts
from harvester.policy.admission.rule import WorstCase
from harvester.policy.order import offline, online
from harvester.policy.order.offline import OfflineRow
from harvester.policy.order.online import OnlineRequest


class NewestFirst(online.Fcfs):
    """Last come, first served."""

    def _key(self, request: OnlineRequest) -> float:
        return -self._came


class OneByOne(online.Fcfs):
    """First come, first served, and nobody else until that one has ended."""

    def order(self, now_s: float) -> Iterable[str]:
        return islice(super().order(now_s), 1)

    def among(self, names: Collection[str], now_s: float) -> Sequence[str]:
        return [name for name in self.order(now_s) if name in names]


class SmallestFirst(offline.Fcfs):
    """The row that needs the least KV."""

    def rows(self, passed: Container[str] = ()) -> Iterator[OfflineRow]:
        return iter(sorted(super().rows(passed), key=lambda row: row.final_blocks))


class Half(WorstCase):
    """Every row is counted with half of the KV that it may need."""

    def blocks(self, row: OfflineRow) -> int:
        return -(-row.final_blocks // 2)


def enter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put them into the tables, for the length of one test."""
    monkeypatch.setitem(parts.ONLINE_ORDERS, "newest", lambda config: NewestFirst())
    monkeypatch.setitem(parts.ONLINE_ORDERS, "one_by_one", lambda config: OneByOne())
    monkeypatch.setitem(parts.OFFLINE_ORDERS, "smallest", lambda config: SmallestFirst())
    monkeypatch.setitem(parts.ADMISSIONS, "half", lambda config: Half())
