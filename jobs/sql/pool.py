"""Runs queries of many clients on a few processes: which query is next, which may run long, which is refused for now."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

from jobs.errors import TooManyQueriesError
from jobs.sql.process import QueryProcesses
from jobs.sql.sandbox import SECONDS

Tables = Callable[[], Awaitable[Mapping[str, pa.Table | None]]]


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Only ``long_at_once`` of ``at_once`` processes run queries of more than ``quick_cpu_s``, so that short ones always get through.

    One client may run one long query fewer, but at least one.
    """

    at_once: int = 5
    client_at_once: int = 4  # so that another client finds a process free
    long_at_once: int = 3
    quick_cpu_s: float = 0.25
    seconds: float = SECONDS
    kept_seconds: float = 600.0  # for an answer that is kept as a file
    wait_s: float = 1.0
    max_waiting: int = 64


class QueryPool:
    """Runs queries for the server. Used from one event loop; a thread of its own watches each process."""

    def __init__(self, processes: QueryProcesses | None = None, limits: PoolLimits | None = None) -> None:
        self._processes = processes or QueryProcesses()
        self._limits = limits or PoolLimits()
        self._turns = Turns(self._limits)
        self._long = LongQueries(self._limits)
        self._threads = ThreadPoolExecutor(self._limits.at_once, thread_name_prefix="query")

    def start(self) -> None:
        """Start the fork server, so that the first query is as quick as later ones."""
        self._processes.start()

    def close(self) -> None:
        self._processes.close()
        self._threads.shutdown()

    async def ask(
        self,
        state_dir: Path,
        tables: Tables,
        query: str,
        *,
        limit_rows: int = 0,
        client: str,
        kept: Path | None = None,
        min_free_bytes: int = 0,
    ) -> bytes:
        """Run a query as `QueryProcesses.run` does. ``client`` identifies the client, for fairness.

        Raises `TooManyQueriesError` after ``wait_s`` without a free process, and where the query becomes one long query too many.
        """
        async with self._turns.turn(client, len(query)):
            known = await tables()
            seconds = self._limits.seconds if kept is None else self._limits.kept_seconds
            running = self._long.begin(client, seconds)
            run = partial(
                self._processes.run,
                state_dir,
                known,
                query,
                limit_rows=limit_rows,
                seconds=seconds,
                check_long=running.check_long,
                kept=kept,
                min_free_bytes=min_free_bytes,
            )
            try:
                return await asyncio.get_running_loop().run_in_executor(self._threads, run)
            finally:
                running.end()


class LongQueries:
    """Which queries may use more than ``quick_cpu_s``: the first ``long_at_once`` to get there, not all of one client. Thread-safe."""

    def __init__(self, limits: PoolLimits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._ends_s: dict[RunningQuery, float] = {}

    def begin(self, client: str, seconds: float) -> RunningQuery:
        """A query of ``client`` that is stopped after ``seconds``."""
        return RunningQuery(self, client, seconds, self._limits.quick_cpu_s)

    def enter(self, query: RunningQuery) -> None:
        """Count a query as long. Raises `TooManyQueriesError` where as many are running as may, of all clients or of its own."""
        with self._lock:
            if len(self._ends_s) >= self._limits.long_at_once:
                raise _too_many(f"{len(self._ends_s)} are running", self._ends_s.values())
            own_s = [end_s for one, end_s in self._ends_s.items() if one.client == query.client]
            most = max(1, self._limits.long_at_once - 1)
            if len(own_s) >= most:
                raise _too_many(f"one client may run {most} at once", own_s)
            self._ends_s[query] = time.monotonic() + query.seconds

    def leave(self, query: RunningQuery) -> None:
        with self._lock:
            self._ends_s.pop(query, None)


def _too_many(why: str, ends_s: Collection[float]) -> TooManyQueriesError:
    return TooManyQueriesError(
        f"the query is a long one, of which {why}; try again when one has ended, or narrow it",
        max(1, math.ceil(min(ends_s) - time.monotonic())),
    )


class RunningQuery:
    """Tracks one running query: whether it is long, and whether its client is gone."""

    def __init__(self, queries: LongQueries, client: str, seconds: float, quick_cpu_s: float) -> None:
        self.client, self.seconds = client, seconds
        self._queries = queries
        self._quick_cpu_s = quick_cpu_s
        self._is_long = self._is_given_up = False

    def check_long(self, cpu_s: float) -> bool:
        """Whether the query counts as long, given its CPU time so far. Raises `TooManyQueriesError` where it must end."""
        if self._is_given_up:
            raise TooManyQueriesError("the query was given up: its client is gone")
        if not self._is_long and cpu_s > self._quick_cpu_s:
            self._queries.enter(self)
            self._is_long = True
        return self._is_long

    def end(self) -> None:
        """Nobody waits for the query any more."""
        self._is_given_up = True
        self._queries.leave(self)


class Turns:
    """Assigns ``at_once`` processes to queries, at most ``client_at_once`` to one client.

    Next is the shortest query text of the client with the fewest running queries. A short text may run long too, but a query that takes
    long just to parse or plan has a long text; so it waits, and the others do not. Used from one event loop.
    """

    def __init__(self, limits: PoolLimits) -> None:
        self._limits = limits
        self._running: Counter[str] = Counter()
        self._waiting: dict[asyncio.Future[None], tuple[str, int]] = {}  # client, characters

    @asynccontextmanager
    async def turn(self, client: str, chars: int) -> AsyncIterator[None]:
        """Hold a process for the block. Raises `TooManyQueriesError` after ``wait_s``, or where ``max_waiting`` newer queries wait."""
        if self._may_run(client):
            self._running[client] += 1
        else:
            await self._wait(client, chars)
        try:
            yield
        finally:
            self._leave(client)

    async def _wait(self, client: str, chars: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = (client, chars)
        if len(self._waiting) > self._limits.max_waiting:
            self._refuse(next(iter(self._waiting)))
        try:
            await asyncio.wait([turn], timeout=self._limits.wait_s)
        except asyncio.CancelledError:
            if self._waiting.pop(turn, None) is None and turn.exception() is None:
                self._leave(client)
            raise
        if not turn.done():
            self._refuse(turn)
        turn.result()

    def _refuse(self, turn: asyncio.Future[None]) -> None:
        self._waiting.pop(turn)
        turn.set_exception(TooManyQueriesError(f"{self._limits.at_once} queries are running and others wait; try again in a moment"))

    def _leave(self, client: str) -> None:
        self._running[client] -= 1
        if not self._running[client]:
            del self._running[client]
        able = [(self._running[waiting], chars, turn) for turn, (waiting, chars) in self._waiting.items() if self._may_run(waiting)]
        if able:
            turn = min(able, key=lambda one: one[:2])[2]
            self._running[self._waiting.pop(turn)[0]] += 1
            turn.set_result(None)

    def _may_run(self, client: str) -> bool:
        return self._running.total() < self._limits.at_once and self._running[client] < self._limits.client_at_once
