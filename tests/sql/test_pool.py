"""Which of many callers gets a process: turns, long queries, and what the others are told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from harvester.errors import TooManyQueriesError
from jobs.sql.pool import LongQueries, PoolLimits, QueryPool, Turns

PATIENT = PoolLimits(at_once=1, long_at_once=1, wait_s=600.0, max_waiting=3)


async def _hold(turns: Turns, client: str, told: list[str], let_go: asyncio.Event, chars: int = 9) -> None:
    async with turns.turn(client, chars):
        told.append(client)
        await let_go.wait()


async def test_the_shortest_text_is_next_and_all_have_their_turn() -> None:
    turns, told, let_go = Turns(PATIENT), list[str](), asyncio.Event()
    holders = []
    for name, chars in (("a", 1), ("b", 90_000), ("c", 8)):
        holders.append(asyncio.create_task(_hold(turns, name, told, let_go, chars)))
        await asyncio.sleep(0)
    let_go.set()
    await asyncio.gather(*holders)
    assert told == ["a", "c", "b"]


async def test_the_client_with_fewest_running_is_next() -> None:
    turns, told = Turns(PoolLimits(at_once=2, client_at_once=2, wait_s=600.0)), list[str]()
    first, let_go = asyncio.Event(), asyncio.Event()
    holders = [asyncio.create_task(_hold(turns, "flood", told, gate)) for gate in (first, let_go, let_go)]
    await asyncio.sleep(0)
    holders.append(asyncio.create_task(_hold(turns, "other", told, let_go)))
    holders.append(asyncio.create_task(_hold(turns, "flood", told, let_go)))
    await asyncio.sleep(0)
    first.set()
    await holders[0]
    await asyncio.sleep(0)
    assert told == ["flood", "flood", "other"]
    let_go.set()
    await asyncio.gather(*holders)


async def test_one_client_leaves_a_process_to_others() -> None:
    turns, told = Turns(PoolLimits(at_once=2, client_at_once=1, wait_s=600.0)), list[str]()
    first, let_go = asyncio.Event(), asyncio.Event()
    holders = [asyncio.create_task(_hold(turns, name, told, gate)) for name, gate in (("a", first), ("a", let_go), ("b", let_go))]
    await asyncio.sleep(0)
    assert told == ["a", "b"]
    first.set()
    await holders[0]
    let_go.set()
    await asyncio.gather(*holders)
    assert told == ["a", "b", "a"]


async def test_a_turn_that_is_handed_on_is_held() -> None:
    turns, told, first, let_go = Turns(PATIENT), list[str](), asyncio.Event(), asyncio.Event()
    holders = [asyncio.create_task(_hold(turns, name, told, gate)) for name, gate in (("a", first), ("b", let_go))]
    await asyncio.sleep(0)
    first.set()
    await holders[0]
    holders.append(asyncio.create_task(_hold(turns, "c", told, let_go)))
    for _ in range(5):
        await asyncio.sleep(0)
    assert told == ["a", "b"]
    let_go.set()
    await asyncio.gather(*holders)
    assert told == ["a", "b", "c"]


async def test_where_too_many_wait_the_one_that_waited_longest_is_told_to_come_back() -> None:
    turns, told, let_go = Turns(PATIENT), list[str](), asyncio.Event()
    holders = []
    for name in ("running", "oldest", "b", "c", "d"):
        holders.append(asyncio.create_task(_hold(turns, name, told, let_go)))
        await asyncio.sleep(0)
    with pytest.raises(TooManyQueriesError):
        await holders[1]
    let_go.set()
    await asyncio.gather(holders[0], *holders[2:])
    assert told == ["running", "b", "c", "d"]


async def test_a_wait_is_short() -> None:
    turns, let_go = Turns(PoolLimits(at_once=1, wait_s=0.01)), asyncio.Event()
    holder = asyncio.create_task(_hold(turns, "a", [], let_go))
    await asyncio.sleep(0)
    with pytest.raises(TooManyQueriesError) as caught:
        await _hold(turns, "b", [], let_go)
    assert (caught.value.http_status, caught.value.retry_after_s) == (429, 1)
    let_go.set()
    await holder


async def test_one_that_goes_while_it_waits_leaves_its_turn_to_others() -> None:
    turns, told, let_go = Turns(PATIENT), list[str](), asyncio.Event()
    holder = asyncio.create_task(_hold(turns, "a", told, let_go))
    await asyncio.sleep(0)
    gone = [asyncio.create_task(_hold(turns, name, told, let_go)) for name in ("b", "c")]
    await asyncio.sleep(0)
    gone[0].cancel()  # while it waits
    await asyncio.sleep(0)
    let_go.set()
    await holder
    gone[1].cancel()  # with a turn that it has not begun
    await asyncio.gather(*gone, return_exceptions=True)
    await asyncio.wait_for(_hold(turns, "d", told, let_go), 600)
    assert told == ["a", "d"]


def test_only_few_may_stay_for_long_and_a_place_that_is_left_is_free() -> None:
    long = LongQueries(PoolLimits(long_at_once=1, quick_cpu_s=0.5))
    first, second = long.begin("a", 10.0), long.begin("b", 10.0)
    assert [first.check_long(cpu_s) for cpu_s in (0.1, 0.6, 0.7)] == [False, True, True]
    assert not second.check_long(0.4)
    with pytest.raises(TooManyQueriesError) as caught:
        second.check_long(0.6)
    assert 1 <= caught.value.retry_after_s <= 10
    first.end()
    assert second.check_long(0.6)


def test_one_client_leaves_a_long_query_to_others() -> None:
    long = LongQueries(PoolLimits(quick_cpu_s=0.5))
    first, second, third, other, late = (long.begin(client, 10.0) for client in ("a", "a", "a", "b", "c"))
    assert first.check_long(0.6)
    assert second.check_long(0.6)
    with pytest.raises(TooManyQueriesError, match="one client may run 2 at once"):
        third.check_long(0.6)
    assert other.check_long(0.6)
    with pytest.raises(TooManyQueriesError, match="of which 3 are running"):
        late.check_long(0.6)
    first.end()
    assert third.check_long(0.6)


def test_a_refused_query_is_told_when_the_first_long_one_must_have_ended() -> None:
    long = LongQueries(PoolLimits(long_at_once=2, quick_cpu_s=0.5))
    kept, later, third = long.begin("a", 600.0), long.begin("b", 900.0), long.begin("c", 10.0)
    assert kept.check_long(0.6)
    assert later.check_long(0.6)
    with pytest.raises(TooManyQueriesError) as caught:
        third.check_long(0.6)
    assert 10 < caught.value.retry_after_s <= 600


class _Processes:
    """Fake processes that run no query: they record what they were given, and ask once whether the query may run long."""

    def __init__(self) -> None:
        self.given: list[Any] = []
        self.ended = False

    def start(self) -> None: ...

    def close(self) -> None:
        self.ended = True

    def run(self, state_dir: Any, tables: Mapping[str, Any], query: str, **options: Any) -> bytes:
        options.pop("check_long")(0.0)
        self.given.append((tables, query, options))
        return b"{}"


async def test_the_pool_reads_the_tables_when_it_is_the_querys_turn(tmp_path: Any) -> None:
    processes = _Processes()
    pool = QueryPool(processes, PoolLimits(seconds=7.0))  # type: ignore[arg-type]

    async def tables() -> dict[str, Any]:
        return {"jobs": None}

    assert await pool.ask(tmp_path, tables, "select 1", limit_rows=3, client="a") == b"{}"
    assert processes.given == [({"jobs": None}, "select 1", {"limit_rows": 3, "seconds": 7.0, "kept": None, "min_free_bytes": 0})]
    pool.close()
    assert processes.ended


class _Long(_Processes):
    """Fake processes whose queries are long and run until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.let_go = threading.Event(), threading.Event()

    def run(self, state_dir: Any, tables: Mapping[str, Any], query: str, **options: Any) -> bytes:
        assert options["check_long"](1.0)
        self.begun.set()
        assert self.let_go.wait(600)
        return super().run(state_dir, tables, query, **options)


async def test_a_kept_query_holds_its_place_for_as_long_as_it_may_run(tmp_path: Any) -> None:
    processes = _Long()
    pool = QueryPool(processes, PoolLimits(long_at_once=1, seconds=7.0, kept_seconds=70.0))  # type: ignore[arg-type]

    async def tables() -> dict[str, Any]:
        return {}

    kept = asyncio.create_task(pool.ask(tmp_path, tables, "select 1", client="a", kept=tmp_path / "answer"))
    assert await asyncio.to_thread(processes.begun.wait, 600)
    with pytest.raises(TooManyQueriesError) as caught:
        await pool.ask(tmp_path, tables, "select 2", client="b")
    processes.let_go.set()
    assert await kept == b"{}"
    pool.close()
    assert 7 < caught.value.retry_after_s <= 70
    assert [options["seconds"] for _, _, options in processes.given] == [70.0]
