"""The tail of a job: an idle replica takes rows over that a slow one has not begun. In virtual time, with scripted replicas."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import duckdb
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from connectors.errors import StorageError
from jobs.forecast.tail import MIN_LEFT_S, TailLease, slowest
from jobs.ledger.jobfile import read_job
from jobs.ledger.ledger import Ledger
from jobs.ledger.splits import NAME, Split, cut, note_split, noted_splits
from jobs.ledger.steal import LOOK_S
from jobs.run.feed import Feed
from jobs.spec import Lease, LeaseProgress, PartStats, SliceSpec
from jobs.testing import ScriptedEngine, scripted_plan
from tests.fakes.harvest_world import World, fleet
from tests.fakes.lost_ledger import at_work
from tests.fakes.virtual_loop import run_virtually

ROWS, REPLICAS, SLOTS, ROW_S, SLOWER = 1220, 4, 2, 1.0, 20
IDEAL_S = ROWS * ROW_S / SLOTS / (REPLICAS - 1 + 1 / SLOWER)


async def job_time_s(world: World) -> float:
    world.submit(ROWS)
    start_s = world.clock()
    async with AsyncExitStack() as stack:
        for number in range(REPLICAS):
            engine = ScriptedEngine(concurrency=SLOTS, delay_s=ROW_S * (SLOWER if number == 0 else 1))
            await stack.enter_async_context(at_work(world.runner(engine, f"replica-{number}")))
        while not world.ended():  # noqa: ASYNC110 - in virtual time
            await asyncio.sleep(0.5)
        return world.clock() - start_s


def test_a_replica_20_times_slower_hardly_delays_a_job(tmp_path: Path) -> None:
    world = fleet(tmp_path)
    took_s = run_virtually(job_time_s(world))
    rows = Counter(world.results().column("row_id").to_pylist())
    assert sorted(rows) == list(range(ROWS)), "every row"
    assert set(rows.values()) == {1}, "and none twice"
    assert world.show().rows_ok == ROWS
    assert world.show().rows_recomputed == 0
    assert world.ledger.counts()["scripted"]["leases_split"] > 0
    world.ledger.check()
    world.ledger.close()
    print(f"{took_s:.1f} s, ideal {IDEAL_S:.1f} s: {took_s / IDEAL_S:.3f}")
    assert took_s / IDEAL_S <= 1.15


def test_without_stealing_the_same_job_waits_for_the_slow_replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = fleet(tmp_path)
    monkeypatch.setattr(world.ledger._stealing, "want", lambda *given: None)
    took_s = run_virtually(job_time_s(world))
    world.ledger.close()
    print(f"{took_s:.1f} s, ideal {IDEAL_S:.1f} s: {took_s / IDEAL_S:.3f}")
    assert took_s / IDEAL_S > 1.5


# -- which lease ------------------------------------------------------------------------------------------------------------------


def test_the_lease_that_would_end_last_is_asked_first() -> None:
    leases = [
        TailLease("fast", 50, 100, 10.0),
        TailLease("slow", 20, 5, 10.0),
        TailLease("none yet", 30, 0, 10.0),
        TailLease("over", 1, 100, 10.0),
    ]
    assert slowest(leases, 2) == ["none yet", "slow"]
    assert slowest(leases, 9) == ["none yet", "slow", "fast"]
    assert leases[-1].left_s < MIN_LEFT_S


# -- what the holder gives --------------------------------------------------------------------------------------------------------


async def test_half_of_what_is_not_begun_is_given_and_none_of_it_begins() -> None:
    feed = Feed(range(100, 110), may_give=True)
    begun = [await feed.take() for _ in range(4)]
    told: list[int] = []

    async def tell(keep_rows: int) -> bool:
        told.append(keep_rows)
        return True

    assert await feed.give_back(tell) == 3
    assert told == [7]
    while feed.has_more():
        begun.append(await feed.take())
    assert begun == list(range(100, 107))
    assert await feed.give_back(tell) == 0


async def test_rows_that_the_ledger_does_not_take_are_begun_after_all() -> None:
    feed = Feed(range(4), may_give=True)
    answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    giving = asyncio.create_task(feed.give_back(lambda keep_rows: asyncio.wait_for(answer, None)))
    begun = [await feed.take()]
    await asyncio.sleep(0)
    begun.append(await feed.take())
    third = asyncio.create_task(_taken(feed))
    await asyncio.sleep(0)
    assert not third.done(), "it waits for the ledger's word"
    answer.set_result(False)
    assert await giving == 0
    assert [*begun, await third, await feed.take()] == [0, 1, 2, 3]


async def _taken(feed: Feed) -> int | None:
    return await feed.take()


@pytest.mark.parametrize("has_them", [False, True], ids=["the ledger never heard", "its answer was lost"])
async def test_rows_that_the_ledger_may_have_do_not_begin_until_it_has_told(has_them: bool) -> None:
    feed = Feed(range(4), may_give=True)
    told: list[int] = []

    async def tell(keep_rows: int) -> bool:
        told.append(keep_rows)
        if len(told) < 3:
            raise StorageError("the ledger is started again")
        return has_them

    with pytest.raises(StorageError):
        await feed.give_back(tell)
    assert [await feed.take(), await feed.take()] == [0, 1]
    third = asyncio.create_task(_taken(feed))
    with pytest.raises(StorageError):
        await feed.give_back(tell)
    assert not third.done()
    assert feed.has_more()
    assert await feed.give_back(tell) == (2 if has_them else 0)
    assert told == [2, 2, 2]
    assert await third == (None if has_them else 2)


@given(rows=st.integers(1, 40), steps=st.lists(st.booleans(), max_size=60))
@settings(deadline=None)
def test_each_row_is_begun_here_or_given_back_and_the_first_is_never_given(rows: int, steps: list[bool]) -> None:
    async def work() -> None:
        feed, kept = Feed(range(rows), may_give=True), rows
        begun: list[int | None] = []

        async def tell(keep_rows: int) -> bool:
            nonlocal kept
            assert len(begun) <= keep_rows < kept
            kept = keep_rows
            return True

        for take in steps:
            if take and feed.has_more():
                begun.append(await feed.take())
            elif not take:
                await feed.give_back(tell)
        while feed.has_more():
            begun.append(await feed.take())
        assert begun == list(range(kept))
        assert kept >= 1

    asyncio.run(work())


# -- the ledger -------------------------------------------------------------------------------------------------------------------


def leased(ledger: Ledger, holder: str, now_s: float) -> Lease:
    lease = ledger.lease(holder, "scripted", now_s)
    assert lease is not None
    return lease


def told(lease: Lease, unbegun: int, done: int = 0) -> LeaseProgress:
    return LeaseProgress(lease_id=lease.lease_id, rows_done=done, rows_unbegun=unbegun)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger(tmp_path / "ledger.sqlite", tmp_path / "jobs", lease_s=15.0, now_s=0.0, new_server=True)
    ledger.submit(scripted_plan("docs", 20, 10), new=True)
    return ledger


def test_a_replica_that_finds_nothing_makes_the_slowest_holder_give(ledger: Ledger) -> None:
    slow, fast = leased(ledger, "slow", 0.0), leased(ledger, "fast", 0.0)
    ledger.heartbeat("slow", [told(slow, 8, 1)], 10.0)
    ledger.heartbeat("fast", [told(fast, 3, 6)], 10.0)
    assert ledger.wanted("slow") == []
    assert ledger.lease("idle", "scripted", 10.0) is None
    assert ledger.wanted("fast") == []
    assert ledger.wanted("slow") == [slow.lease_id]
    assert ledger.wanted("slow") == [], "told once"
    assert ledger.split(slow.lease_id, 6)
    rest = leased(ledger, "idle", 10.0)
    assert (rest.slice.row_start, rest.slice.row_count, rest.slice.offset) == (slow.slice.row_start + 6, 4, slow.slice.offset + 6)
    ledger.check()


def test_a_replica_is_not_asked_for_its_own_rows_nor_twice_in_a_moment(ledger: Ledger) -> None:
    slow = leased(ledger, "slow", 0.0)
    leased(ledger, "fast", 0.0)
    ledger.heartbeat("slow", [told(slow, 8, 1)], 10.0)
    assert ledger.lease("slow", "scripted", 10.0) is None
    assert ledger.wanted("slow") == []
    assert ledger.lease("idle", "scripted", 10.0 + LOOK_S / 2) is None
    assert ledger.wanted("slow") == []
    assert ledger.lease("idle", "scripted", 10.0 + LOOK_S) is None
    assert ledger.wanted("slow") == [slow.lease_id]


def test_a_split_is_told_again_by_a_ledger_that_died_before_it_could_answer(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    first = Ledger(path, tmp_path / "jobs", lease_s=15.0, now_s=0.0, new_server=True)
    first.submit(scripted_plan("docs", 20, 10), new=True)
    lease = leased(first, "a", 0.0)
    assert first.split(lease.lease_id, 6)
    first.close()
    again = Ledger(path, tmp_path / "jobs", lease_s=15.0, now_s=1.0, new_server=False)
    assert again.split(lease.lease_id, 6), "the others are a slice of their own, whoever asks"
    assert again.split(lease.lease_id, 5), "and it may be split further"
    assert [row["row_count"] for row in again.table("leases").sort_by("slice_id").to_pylist()] == [5, 10, 4, 1]
    again.check()
    again.close()


def test_a_split_that_is_repeated_changes_nothing(ledger: Ledger) -> None:
    lease = leased(ledger, "a", 0.0)
    assert [ledger.split(lease.lease_id, 6) for _ in range(2)] == [True, True]
    assert [row["row_count"] for row in ledger.table("leases").sort_by("slice_id").to_pylist()] == [6, 10, 4]


@pytest.mark.parametrize("keep_rows", [0, 11], ids=["nothing", "more than there is"])
def test_a_slice_keeps_some_of_its_rows(ledger: Ledger, keep_rows: int) -> None:
    assert not ledger.split(leased(ledger, "a", 0.0).lease_id, keep_rows)


def test_a_slice_that_somebody_had_before_is_not_split(ledger: Ledger) -> None:
    """Its first holder, thought dead, may wake and publish all of its rows: those of the other half would be there twice."""
    lost = leased(ledger, "stopped", 0.0)
    ledger.expire(20.0)
    again = leased(ledger, "b", 20.0)
    assert again.slice == lost.slice
    assert not ledger.split(again.lease_id, 6)
    assert not ledger.split(lost.lease_id, 6)
    ledger.heartbeat("b", [told(again, 8, 1)], 30.0)
    leased(ledger, "c", 30.0)
    assert ledger.lease("idle", "scripted", 31.0) is None
    assert ledger.wanted("b") == []


def test_a_retried_slice_is_not_split(ledger: Ledger) -> None:
    for _ in range(2):
        lease = leased(ledger, "a", 0.0)
        ledger.commit(lease.lease_id, "docs", lease.slice.slice_id, PartStats(rows_ok=9, rows_error=1), 1.0)
    ledger.retry("docs", 2.0)
    assert not ledger.split(leased(ledger, "a", 2.0).lease_id, 6)


def test_a_ledger_made_anew_from_the_jobs_folder_has_the_slices_as_they_were_split(ledger: Ledger, tmp_path: Path) -> None:
    lease = leased(ledger, "a", 0.0)
    ledger.split(lease.lease_id, 6)
    ledger.split(lease.lease_id, 5)
    plan = read_job(tmp_path / "jobs" / "docs" / "job.json")
    now = {row["slice_id"]: (row["row_start"], row["row_count"]) for row in ledger.table("leases").to_pylist()}
    assert {one.slice_id: (one.row_start, one.row_count) for one in plan.slices} == now == {0: (0, 5), 1: (10, 10), 2: (6, 4), 3: (5, 1)}


def test_a_torn_line_and_a_split_that_never_came_to_be_are_left_out(tmp_path: Path, ledger: Ledger) -> None:
    lease = leased(ledger, "a", 0.0)
    ledger.split(lease.lease_id, 6)
    log = tmp_path / "jobs" / "docs" / NAME
    whole = log.read_bytes()
    log.write_bytes(whole + whole[:9] + b"torn")
    assert noted_splits(log.parent) == [Split(0, 6, 2)]
    note_split(log.parent, Split(1, 7, 3))
    assert noted_splits(log.parent) == [Split(0, 6, 2), Split(1, 7, 3)], "a note after a torn line is whole"
    log.write_bytes(whole)
    ledger.split(leased(ledger, "b", 0.0).lease_id, 7)
    log.write_bytes(log.read_bytes().replace(whole, whole * 2))
    slices = [SliceSpec(slice_id=i, group_index=0, offset=10 * i, row_start=10 * i, row_count=10) for i in range(2)]
    assert {one.slice_id: one.row_count for one in cut(slices, noted_splits(log.parent))} == {0: 6, 1: 7, 2: 4, 3: 3}


_names = itertools.count()


class Replicas:
    """Replicas that lease, give back, die, wake and publish in any order. A part holds what its writer believed to be the slice."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.now_s = ledger, 0.0
        self.parts: dict[int, range] = {}
        self.held: dict[str, Lease] = {}  # also those that the ledger gave up
        self.keeps: dict[str, int] = {}

    def lease(self) -> None:
        lease = self.ledger.lease("r", "scripted", self.now_s)
        if lease is not None:
            self.held[lease.lease_id], self.keeps[lease.lease_id] = lease, lease.slice.row_count

    def split(self, lease: Lease, keep_rows: int) -> None:
        if keep_rows < self.keeps[lease.lease_id] and self.ledger.split(lease.lease_id, keep_rows):
            self.keeps[lease.lease_id] = keep_rows

    def publish(self, lease: Lease) -> None:
        del self.held[lease.lease_id]
        start, rows = lease.slice.row_start, self.keeps[lease.lease_id]
        self.parts[lease.slice.slice_id] = range(start, start + rows)  # the last rename wins
        self.ledger.commit(lease.lease_id, "docs", lease.slice.slice_id, PartStats(rows_ok=rows), self.now_s)

    def finish(self) -> None:
        """The living do the rest; those thought dead wake after the end."""
        for _ in range(100):
            if self.ledger.show("docs").ended_at_s is not None:
                break
            self.lease()
            for lease in [one for one in self.held.values() if self.ledger.is_leased(one.lease_id)]:
                self.publish(lease)
        assert self.ledger.show("docs").ended_at_s is not None
        for lease in list(self.held.values()):
            self.publish(lease)


STEPS = st.tuples(st.sampled_from(["lease", "split", "publish", "stall"]), st.integers(0, 5), st.integers(1, 5))


@given(steps=st.lists(STEPS, max_size=20))
@example(steps=[("lease", 0, 1), ("stall", 0, 1), ("lease", 0, 1), ("split", 1, 3)])  # the first holder wakes at the end
@settings(deadline=None, max_examples=25)
def test_whatever_is_split_lost_and_leased_again_each_row_is_in_one_part(steps: list[tuple[str, int, int]]) -> None:
    name = f":memory:tail-{next(_names)}"
    with duckdb.connect(name):
        ledger = Ledger(Path(name), Path("/state/jobs"), lease_s=10.0, now_s=0.0, new_server=True)
        ledger.submit(scripted_plan("docs", 12, 6), new=True)
        replicas = Replicas(ledger)
        for act, which, keep_rows in steps:
            held = list(replicas.held.values())
            if act == "lease":
                replicas.lease()
            elif act == "stall":
                replicas.now_s += 11.0
            elif held and act == "split":
                replicas.split(held[which % len(held)], keep_rows)
            elif held:
                replicas.publish(held[which % len(held)])
            ledger.check()
        replicas.finish()
        ledger.check()
        assert sorted(row for part in replicas.parts.values() for row in part) == list(range(12))
        ledger.close()
