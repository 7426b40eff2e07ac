"""Two hundred hostile queries of ten kinds, and what they do to `select 1` beside them: ``python -m tests.doors.hostile_sql``."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from harvester.core import Role
from harvester.serve.access.gate import Gate
from harvester.serve.access.identity import Identity
from harvester.serve.http.jobs.jobs_api import jobs_api
from jobs.config import HarvestConfig
from jobs.ledger.ledger import Ledger
from jobs.plan.planner import JobPlanner
from jobs.sql.pool import PoolLimits, QueryPool
from jobs.storage.folder import StateFolder
from jobs.testing import DirectLedger, ManualClock

KINDS = 10
PROBE_S = 0.1  # between two probes
Send = Callable[[str, str], Awaitable[httpx.Response]]


def hostile(count: int) -> Iterator[str]:
    """``count`` queries that DuckDB would parse, plan or run for minutes, or whose answers or memory would be huge."""
    for number in range(count):
        size = 1 + number // KINDS
        yield (
            "select " + "(" * (2900 + size),
            "select " + "(" * 450 + f", {size}, " + "(" * 40,
            "select 1" + " union all select 1" * (4900 + size),
            "select " + " union all select ".join(f"(select count(*) from range({n}))" for n in range(800 + size)),
            "select count(*) from " + ", ".join(f"range(100000000) t{n}" for n in range(7 + size % 3)) + f" where {size} < t0.range",
            f"with recursive t(n) as (select {size} union all select n + 1 from t) select count(*) from t",
            "select '" + "x" * (90_000 + size) + "' || repeat('x', 2_000_000_000)",
            "select " + ", ".join(f"{n + size} as c{n}" for n in range(9_000)),
            f"select list_sum(list_transform(range({size}0_000_000_000), x -> x * x))",
            f"select sum(hash(a.range || b.range)) from range(1_000_000_000) a, range({size}00) b group by a.range order by 1",
        )[number % KINDS]


class Named:
    """Each bearer token is the name of a client."""

    def asks_for_key(self) -> bool:
        return True

    def identify(self, bearer: str) -> Identity | None:
        return Identity(bearer, frozenset({Role.ADMIN}))


@asynccontextmanager
async def serving(root: Path, limits: PoolLimits):
    """Send a query or a GET to the jobs application over its own transport, as client ``name``."""
    clock, folder = ManualClock(), StateFolder(root)
    folder.prepare()
    ledger = Ledger(Path(":memory:"), folder.jobs, lease_s=10.0, now_s=clock(), new_server=True)
    pool = QueryPool(limits=limits)
    pool.start()

    async def info() -> dict[str, object]:
        return {"context_tokens": 512}

    app = jobs_api(DirectLedger(ledger, clock), JobPlanner(folder, HarvestConfig(), "tiny"), info, gate=Gate(Named()), queries=pool)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://jobs", timeout=None) as http:

        async def send(name: str, query: str) -> httpx.Response:
            headers = {"authorization": f"Bearer {name}"}
            return await (http.post("/sql", json={"query": query}, headers=headers) if query else http.get("/jobs", headers=headers))

        yield send
    await asyncio.to_thread(pool.close)
    ledger.close()


async def attack(send: Send, count: int, at_once: int, name: str) -> Counter[int]:
    """Send ``count`` hostile queries, ``at_once`` at a time. Returns how many got each status."""
    left, statuses = hostile(count), Counter[int]()

    async def one() -> None:
        for query in left:
            statuses[(await send(name, query)).status_code] += 1

    await asyncio.gather(*(one() for _ in range(at_once)))
    return statuses


async def probe(send: Send, query: str, is_over: asyncio.Event) -> tuple[Counter[int], list[float]]:
    """Send ``query`` again and again until ``is_over``: the statuses, and the seconds that each took."""
    statuses, took_s = Counter[int](), list[float]()
    while not is_over.is_set():
        began_s = time.monotonic()
        statuses[(await send("victim", query)).status_code] += 1
        took_s.append(time.monotonic() - began_s)
        await asyncio.sleep(PROBE_S)
    return statuses, took_s


async def measured(count: int, at_once: int, name: str, limits: PoolLimits) -> dict[str, object]:
    """Attack as client ``name`` beside two probes that are client ``victim``."""
    with TemporaryDirectory() as root:
        async with serving(Path(root), limits) as send:
            is_over = asyncio.Event()
            assert (await send("victim", "select 1")).status_code == 200
            probes = [asyncio.create_task(probe(send, query, is_over)) for query in ("select 1", "")]
            statuses = await attack(send, count, at_once, name)
            is_over.set()
            found: dict[str, object] = {"hostile": dict(statuses), "at_once": at_once}
            for what, task in zip(("select 1", "GET /jobs"), probes, strict=True):
                answered, took_s = await task
                took_s.sort()
                rank = {f"p{share}_s": round(took_s[min(len(took_s) * share // 100, len(took_s) - 1)], 3) for share in (50, 99)}
                found[what] = {"statuses": dict(answered), **rank}
            return found


if __name__ == "__main__":
    for client in ("attacker", "victim"):
        print(json.dumps({"client": client} | asyncio.run(measured(200, 8, client, PoolLimits()))), flush=True)
