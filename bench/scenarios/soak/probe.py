"""What clients see of a server while its processes are killed: how long the API and chat were unavailable."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import httpx

from bench.harness.servers.server import READY_S

POLL_S = 0.1
CALM_S = 8.0  # after a loss, at least, even if all is answered sooner
PATIENCE_S = 5.0
SURE_S = 1.0  # of whole answers alone, after which a route counts as open
CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}


@dataclass
class Probe(threading.Thread):
    """Asks one route every `POLL_S` until `end`, without waiting for earlier answers.

    ``asked``: when each request was sent, in monotonic seconds, and whether its whole answer came.
    """

    url: str
    is_chat: bool
    asked: list[tuple[float, bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self._over = threading.Event()

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        asyncio.run(self._ask_on())

    async def _ask_on(self) -> None:
        async with httpx.AsyncClient(base_url=self.url, timeout=PATIENCE_S) as client, asyncio.TaskGroup() as open_ones:
            while not self._over.is_set():
                open_ones.create_task(self._ask(client))
                await asyncio.sleep(POLL_S)

    async def _ask(self, client: httpx.AsyncClient) -> None:
        began_s = time.monotonic()
        self.asked.append((began_s, await self._is_answered(client)))

    async def _is_answered(self, client: httpx.AsyncClient) -> bool:
        try:
            if not self.is_chat:
                return (await client.get("/api/jobs")).status_code == 200
            answer = await client.post("/v1/chat/completions", json=CHAT)
        except httpx.HTTPError:
            return False
        return answer.status_code == 200 and "data: [DONE]" in answer.text

    def end(self) -> None:
        self._over.set()
        self.join()

    def is_open(self, now_s: float) -> bool:
        """Whether a request sent in the last `SURE_S` has ended, and every one that has was answered whole."""
        last = [is_whole for began_s, is_whole in list(self.asked) if began_s >= now_s - SURE_S]
        return bool(last) and all(last)

    def longest_s(self, since_s: float) -> float:
        """The longest time, from ``since_s`` on, from a request that was not answered to the next one that was.

        Where none is answered any more, to the last one that was sent and told.
        """
        longest_s, failed_s, began_s = 0.0, None, since_s
        for began_s, is_whole in sorted(one for one in list(self.asked) if one[0] >= since_s - PATIENCE_S):
            if is_whole:
                longest_s, failed_s = longest_s if failed_s is None else max(longest_s, began_s - failed_s), None
            elif failed_s is None:
                failed_s = max(began_s, since_s)
        return longest_s if failed_s is None else max(longest_s, began_s - failed_s)

    def counted(self, since_s: float = 0.0) -> dict[str, int]:
        """Counts of the requests sent from ``since_s`` on."""
        told = [is_whole for began_s, is_whole in list(self.asked) if began_s >= since_s]
        return {"answered": sum(told), "failed": len(told) - sum(told)}


def are_open(probes: Iterable[Probe]) -> bool:
    now_s = time.monotonic()
    return all(probe.is_open(now_s) for probe in probes)


def wait_calm(is_well: Callable[[], bool]) -> None:
    """Wait `CALM_S`, and until ``is_well``. Raises `TimeoutError`."""
    end_s, calm_s = time.monotonic() + READY_S, time.monotonic() + CALM_S
    while time.monotonic() < calm_s or not is_well():
        if time.monotonic() > end_s:
            raise TimeoutError(f"the server did not come back within {READY_S:.0f} s")
        time.sleep(0.3)
