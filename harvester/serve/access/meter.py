"""What chat uses, by key: counted against its quota, on `/metrics`, and in the ledger's table ``usage``."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter as Tally
from collections.abc import Sequence
from typing import Protocol

from prometheus_client import REGISTRY, CollectorRegistry, Counter

from harvester.errors import HarvesterError
from harvester.serve.access.identity import Identity
from harvester.serve.access.quota import Quotas
from jobs.spec import Spent

log = logging.getLogger("harvester.access")

TELL_S = 5.0  # between two reports; a killed replica loses the usage since the last
LAST_TELL_S = 5.0  # that a process which ends waits for the ledger
LAST_RETRY_S = 0.5
MAX_LABELS = 100  # keys on `/metrics`; further ones are `other`


class UsageLedger(Protocol):
    async def spend(self, teller: str, number: int, spent: Sequence[Spent]) -> None: ...


class Meter:
    """Used from one event loop. `run` reports to the ledger until it is cancelled."""

    def __init__(self, quotas: Quotas, registry: CollectorRegistry = REGISTRY) -> None:
        self._quotas = quotas
        self._teller, self._number = secrets.token_hex(8), 0
        self._telling: list[Spent] = []  # reported, but not confirmed: it is sent again unchanged
        self._untold: Tally[tuple[str | None, str]] = Tally()  # by owner and column
        self._labels: set[str] = set()
        self._tokens = Counter("harvester_key_tokens", "Tokens of model requests by API key.", ["key", "kind"], registry=registry)
        self._requests = Counter("harvester_key_requests", "Answers of the engine by API key.", ["key"], registry=registry)
        self._refused = Counter(
            "harvester_refused_requests", "Requests refused before the model, by error code.", ["code"], registry=registry
        )

    def spent(self, who: Identity, prompt_tokens: int, output_tokens: int) -> None:
        """Count an answer that has ended."""
        self._quotas.spend(who, prompt_tokens + output_tokens)
        label = self._label(who.name or "none")
        self._requests.labels(label).inc()
        for kind, tokens in (("prompt", prompt_tokens), ("output", output_tokens)):
            self._tokens.labels(label, kind).inc(tokens)
            self._untold[who.name, f"{kind}_tokens"] += tokens
        self._untold[who.name, "requests"] += 1

    def refused(self, error: HarvesterError) -> None:
        self._refused.labels(error.code).inc()

    def _label(self, name: str) -> str:
        if name not in self._labels and len(self._labels) >= MAX_LABELS:
            return "other"
        self._labels.add(name)
        return name

    async def run(self, ledger: UsageLedger) -> None:
        while True:
            await asyncio.sleep(TELL_S)
            await self.tell(ledger)

    async def tell(self, ledger: UsageLedger) -> None:
        """Report new usage to the ledger. If that fails, it is reported later."""
        if not self._telling:
            self._telling = self._taken()
            self._number += 1
        if not self._telling:
            return
        try:
            await ledger.spend(self._teller, self._number, self._telling)
            self._telling = []
        except HarvesterError as error:
            log.warning("usage_waits %s", error.message)

    async def tell_last(self, ledger: UsageLedger) -> None:
        """`tell` all that was not reported yet, before this process ends. Usage that the ledger does not take in `LAST_TELL_S` is lost."""
        try:
            async with asyncio.timeout(LAST_TELL_S):
                while self._telling or self._untold:
                    await self.tell(ledger)  # first what was being told, if that was not confirmed
                    if self._telling:
                        await asyncio.sleep(LAST_RETRY_S)
        except TimeoutError:
            log.warning("usage_lost the ledger does not answer")
        except Exception:
            log.warning("usage_lost", exc_info=True)

    def _taken(self) -> list[Spent]:
        untold, self._untold = self._untold, Tally()
        names = {name for name, _ in untold}
        columns = ("requests", "prompt_tokens", "output_tokens")
        return [Spent(owner=name, kind="chat", **{column: untold[name, column] for column in columns}) for name in names]
