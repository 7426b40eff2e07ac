"""Rate limits of keys, as refilling buckets. Requests are counted on arrival, tokens when they are known: a key in debt waits.

Own code, because rate-limit libraries count by whole windows or keep an entry for every unit, and read the clock themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from harvester.errors import HarvesterError, QuotaError
from harvester.serve.access.identity import Identity
from jobs.access.limits import Limits

OPEN_WAIT_S = 1.0  # retry hint: by then, a request of the same key may have ended
FOLLOW_S = 5.0  # between two looks at the number of replicas
MAX_IN_WORK = 100  # requests of one key in an application of jobs and files; Ray Serve lets 1,000 of all clients in
MAX_KNOWN = 10_000  # accounts; beyond this, idle ones are dropped


@dataclass(slots=True)
class Bucket:
    """Refills at ``per_minute`` and holds a minute's worth. Its level may be negative, after units were taken without asking first."""

    per_minute: float
    level: float
    at_s: float

    @classmethod
    def full(cls, per_minute: float, now_s: float) -> Bucket:
        return cls(per_minute, per_minute, now_s)

    def wait_s(self, units: float, now_s: float) -> float:
        """Seconds until it holds ``units``, or is full; 0 where it does now."""
        self.level = min(self.per_minute, self.level + max(0.0, now_s - self.at_s) * self.per_minute / 60.0)
        self.at_s = max(self.at_s, now_s)
        return max(0.0, min(units, self.per_minute) - self.level) * 60.0 / self.per_minute

    def take(self, units: float) -> None:
        self.level -= units

    def change(self, per_minute: float, now_s: float) -> None:
        self.wait_s(0, now_s)
        self.per_minute, self.level = per_minute, min(self.level, per_minute)


@dataclass(slots=True)
class Account:
    """What one key has left, its open requests, and those and its reads together (``in_work``)."""

    requests: Bucket | None
    tokens: Bucket | None
    open_requests: int = 0
    in_work: int = 0

    def is_idle(self, now_s: float) -> bool:
        buckets = [bucket for bucket in (self.requests, self.tokens) if bucket is not None]
        return self.in_work == 0 and all(bucket.wait_s(bucket.per_minute, now_s) == 0.0 for bucket in buckets)


class FleetLedger(Protocol):
    async def living(self, model: str, asker: str) -> int: ...


class Quotas:
    """Used from one event loop. ``parts``: processes that the requests of a key are spread over; each allows its part of a limit.

    ``max_in_work``: of each key, reads included, whatever its own limits; None: no bound. Clients without a key are not told apart.
    """

    def __init__(self, now_s: Callable[[], float], parts: int = 1, max_in_work: int | None = None) -> None:
        self._now_s = now_s
        self._max_in_work = max_in_work
        self._parts = parts
        self._accounts: dict[tuple[str | None, Limits], Account] = {}

    def __len__(self) -> int:
        """Number of accounts kept."""
        return len(self._accounts)

    def spread(self, parts: int) -> None:
        """Allow another part of each rate from now on. What a key has left, or owes, stays, up to a minute's worth of its new part."""
        if parts == self._parts:
            return
        self._parts, now_s = parts, self._now_s()
        for (_, limits), account in self._accounts.items():
            for bucket, per_minute in ((account.requests, limits.requests_per_minute), (account.tokens, limits.tokens_per_minute)):
                if bucket is not None and per_minute is not None:
                    bucket.change(per_minute / parts, now_s)

    async def follow(self, ledger: FleetLedger, model: str, asker: str) -> None:
        """Spread each limit over the living replicas of ``model``, of which ``asker`` is this one, until cancelled.

        The number stays while the ledger does not answer, or knows no replica. It falls once two looks agree: a ledger that has just
        started does not know all replicas yet.
        """
        last = 0
        while True:
            with suppress(HarvesterError):
                living = await ledger.living(model, asker)
                if living > 0:
                    self.spread(max(living, last))
                    last = living
            await asyncio.sleep(FOLLOW_S)

    @contextmanager
    def entered(self, who: Identity, requests: int) -> Iterator[None]:
        """Count a request for so many answers (``requests``); it counts as open within the block. Raises `QuotaError`.

        A request whose body is to be read enters as one; `recount` counts the others.
        """
        account, limits, now_s = self._account(who), who.limits, self._now_s()
        if limits.open_requests is not None and account.open_requests >= self._part(limits.open_requests):
            raise _too_many(account.open_requests)
        self._check(account.tokens, 1, now_s, "tokens")
        self._check(account.requests, requests, now_s, "requests")
        with self.reading(who):
            if account.requests is not None:
                account.requests.take(requests)
            account.open_requests += 1
            try:
                yield
            finally:
                account.open_requests -= 1

    @contextmanager
    def reading(self, who: Identity) -> Iterator[None]:
        """A request that asks for no work of the model or of jobs is answered within the block. Raises `QuotaError`."""
        account = self._account(who)
        if self._max_in_work is not None and who.name is not None and account.in_work >= self._max_in_work:
            raise _too_many(account.in_work)
        account.in_work += 1
        try:
            yield
        finally:
            account.in_work -= 1

    def recount(self, who: Identity, requests: int) -> None:
        """Count a request, which entered as one, as so many. Raises `QuotaError`; then it stays counted as one: its body was read."""
        bucket, now_s = self._account(who).requests, self._now_s()
        if bucket is None or requests <= 1:
            return
        bucket.take(-1)
        has_passed = bucket.wait_s(requests, now_s) == 0.0
        bucket.take(requests if has_passed else 1)
        if not has_passed:
            self._check(bucket, requests, now_s, "requests")

    def _check(self, bucket: Bucket | None, units: int, now_s: float, counted: str) -> None:
        wait_s = 0.0 if bucket is None else bucket.wait_s(units, now_s)
        if bucket is not None and wait_s > 0.0:
            rate = bucket.per_minute * self._parts
            raise QuotaError(f"this key has used its {rate:,.0f} {counted} a minute; try again in {wait_s:.1f} s", wait_s, counted)

    def spend(self, who: Identity, tokens: int) -> None:
        """Count tokens of an answer, when they are known."""
        bucket = self._account(who).tokens
        if bucket is not None:
            bucket.wait_s(0, self._now_s())
            bucket.take(tokens)

    def _bucket(self, per_minute: int | None, now_s: float) -> Bucket | None:
        return None if per_minute is None else Bucket.full(per_minute / self._parts, now_s)

    def _part(self, limit: int) -> float:
        return max(1.0, limit / self._parts)

    def _account(self, who: Identity) -> Account:
        place, now_s = (who.counted_as, who.limits), self._now_s()
        if place not in self._accounts:
            if len(self._accounts) >= MAX_KNOWN:
                self._accounts = {name: one for name, one in self._accounts.items() if not one.is_idle(now_s)}
            limits = who.limits
            self._accounts[place] = Account(self._bucket(limits.requests_per_minute, now_s), self._bucket(limits.tokens_per_minute, now_s))
        return self._accounts[place]


def _too_many(in_work: int) -> QuotaError:
    return QuotaError(f"{in_work} requests of this key are in work, as many as it may have; wait for one", OPEN_WAIT_S)
