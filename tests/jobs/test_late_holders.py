"""Holders that are late: what they write or say after their lease was lost costs no row, doubles none, and ends no replica."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from connectors.errors import StorageError
from connectors.memory import MemorySink
from jobs.config import HarvestConfig
from jobs.engine import Prompt, RowError
from jobs.run import runner as runner_module
from jobs.run.slice import STATS_KEY
from jobs.spec import Lease, PartStats
from jobs.states import JobState
from jobs.testing import DirectLedger, ScriptedEngine, last_line
from tests.fakes.harvest_world import LEASE_S, World, fleet, harvest, until
from tests.fakes.lost_ledger import at_work
from tests.fakes.virtual_loop import run_virtually

ROWS, CUT_OFF_S = 40, 20.0


class SlowSink(MemorySink):
    """A storage whose writes wait until told to go on, then succeed or fail. ``partial``: only parts of a few rows wait."""

    def __init__(self, *, fails: bool = False, partial: bool = False) -> None:
        super().__init__()
        self.begun, self.go_on, self.fails, self.partial = threading.Event(), threading.Event(), fails, partial

    def write(self, name: str, table: pa.Table, metadata: Mapping[str, str]) -> None:
        if not self.partial or STATS_KEY not in metadata:
            self.begun.set()
            self.go_on.wait(60)
            if self.fails:
                raise StorageError("cannot write: the storage does not answer")
        super().write(name, table, metadata)


def held_after_two() -> ScriptedEngine:
    """An engine that answers two rows, and the others when it is told to go on."""
    answered = 0

    def answer(prompt: Prompt) -> str:
        nonlocal answered
        answered += 1
        if answered == 3:
            engine.hold()
        return last_line(prompt)

    engine = ScriptedEngine(concurrency=1, answer=answer)
    return engine


def of_one_slice(folder: Path) -> tuple[World, SlowSink]:
    """A world where a job of 8 rows is one slice, and the first job's parts of a few rows are slow to write."""
    world = World(folder)
    world.harvest = world.harvest.model_copy(update={"min_slice_rows": 8, "slices_per_job": 1})
    sink = world.sinks["docs-0001"] = SlowSink(partial=True)
    return world, sink


async def lost_while_it_writes(world: World, job_id: str, engine: ScriptedEngine, sink: SlowSink) -> None:
    """Pause the job; while its holder writes the finished rows, let its lease end and the job go on."""
    await until(lambda: engine.finished >= 2)
    world.ledger.pause(job_id, world.clock())
    await until(sink.begun.is_set)
    world.clock.advance(LEASE_S + 1)
    world.ledger.expire(world.clock())
    world.ledger.resume(job_id, world.clock())


@pytest.mark.parametrize("fails", [False, True], ids=["published", "not published"])
async def test_a_job_that_was_removed_under_its_slow_holder_does_not_end_the_replica(
    tmp_path: Path, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "STORAGE_WAIT_S", 0.01)
    world = World(tmp_path)
    slow = SlowSink(fails=fails)
    job_id = world.submit(4)
    world.sinks[job_id] = slow
    async with at_work(world.runner(ScriptedEngine())) as task:
        await until(slow.begun.is_set)
        world.ledger.cancel(job_id, world.clock())
        world.clock.advance(LEASE_S + 1)  # the holder's heartbeats do not renew leases of a cancelled job
        world.ledger.expire(world.clock())
        assert world.show(job_id).state is JobState.CANCELLED
        world.ledger.remove(job_id)
        slow.go_on.set()
        other = world.submit(4, "other")
        await until(lambda: task.done() or world.ended(other))
        assert not task.done(), task.exception()
        assert world.show(other).rows_ok == 4
    world.ledger.close()


async def test_rows_of_a_paused_slice_that_arrive_late_cover_no_whole_part(tmp_path: Path) -> None:
    world, sink = of_one_slice(tmp_path)
    job_id, engine = world.submit(8), held_after_two()
    async with at_work(world.runner(engine, "a")):
        await lost_while_it_writes(world, job_id, engine, sink)
        async with at_work(world.runner(ScriptedEngine(), "b")):
            await until(lambda: world.ended(job_id))
        assert (world.show(job_id).state, world.show(job_id).rows_ok) == (JobState.COMPLETED, 8)
        assert world.results().num_rows == 8
        sink.go_on.set()
        engine.go_on()
        await asyncio.sleep(0.5)
        await until(lambda: world.ended(job_id))
    assert (world.show(job_id).state, world.results().column("row_id").to_pylist()) == (JobState.COMPLETED, list(range(8)))
    world.ledger.check()
    world.ledger.close()


class LateCommit(DirectLedger):
    """A ledger at which a commit arrives only when it is told to."""

    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()

    async def commit(self, lease_id: str, job_id: str, slice_id: int, stats: PartStats) -> bool:
        self.begun.set()
        await self.go_on.wait()
        return await super().commit(lease_id, job_id, slice_id, stats)


async def test_rows_that_arrive_late_cover_no_part_that_is_published_and_not_committed(tmp_path: Path) -> None:
    world, sink = of_one_slice(tmp_path)
    job_id, engine, late = world.submit(8), held_after_two(), LateCommit(world.ledger, world.clock)
    async with at_work(world.runner(engine, "a")):
        await lost_while_it_writes(world, job_id, engine, sink)
        async with at_work(world.runner(ScriptedEngine(), "b", late)):
            await until(late.begun.is_set)
            sink.go_on.set()
            await until(lambda: any(lease.is_part_doubtful for lease in world.ledger._book.leases.values()))
            late.go_on.set()
            engine.go_on()
            await until(lambda: world.ended(job_id))
    assert (world.show(job_id).state, world.results().column("row_id").to_pylist()) == (JobState.COMPLETED, list(range(8)))
    world.ledger.check()
    world.ledger.close()


class OneLease(LateCommit):
    """Cut off once it has a lease."""

    leased = False

    async def lease(self, holder: str, model: str) -> Lease | None:
        lease = None if self.leased else await super().lease(holder, model)
        self.leased = self.leased or lease is not None
        return lease


class Overtaken(SlowSink):
    """A storage where a write that waits lands between the first and the second look of the slice's next holder."""

    def __init__(self) -> None:
        super().__init__()
        self.landed, self.looks = threading.Event(), 0

    def write(self, name: str, table: pa.Table, metadata: Mapping[str, str]) -> None:
        super().write(name, table, metadata)
        self.landed.set()

    def metadata(self, name: str) -> Mapping[str, str] | None:
        if self.begun.is_set() and not self.go_on.is_set():
            self.looks += 1
            if self.looks == 2:
                self.landed.clear()
                self.go_on.set()
                assert self.landed.wait(60)
        return super().metadata(name)


async def test_a_retry_that_is_published_while_its_next_holder_begins_has_each_row_once(tmp_path: Path) -> None:
    def refuse(prompt: Prompt) -> str:
        if last_line(prompt) == "row 1":
            raise RowError("refused", "not now")
        return last_line(prompt)

    world = World(tmp_path)
    sink = world.sinks["docs-0001"] = Overtaken()
    sink.go_on.set()
    job_id, late = world.submit(4), OneLease(world.ledger, world.clock)
    await harvest(world, ScriptedEngine(answer=refuse))
    world.ledger.retry(job_id, world.clock())
    sink.go_on.clear()
    sink.begun.clear()
    async with at_work(world.runner(ScriptedEngine(), "a", late)):
        await until(sink.begun.is_set)
        world.clock.advance(LEASE_S + 1)
        world.ledger.expire(world.clock())
        engine = ScriptedEngine()
        async with at_work(world.runner(engine, "b")):
            await until(lambda: world.ended(job_id))
    assert (sink.looks, engine.calls) == (2, 0)
    assert world.results().column("row_id").to_pylist() == list(range(4))
    assert (world.show().state, world.show().rows_ok, world.show().rows_error) == (JobState.COMPLETED, 4, 0)
    world.ledger.check()
    world.ledger.close()


class CutOff(DirectLedger):
    """As `LedgerActor._reach`: what gets no answer is asked again until there is one. The first split arrives, and its answer does not:
    the replica is cut off for a while."""

    splits = 0

    async def split(self, lease_id: str, keep_rows: int) -> bool:
        self.splits += 1
        taken = await super().split(lease_id, keep_rows)
        if self.splits > 1:
            return taken
        assert taken
        await asyncio.sleep(CUT_OFF_S)  # RayActorError, and again, and again
        return await super().split(lease_id, keep_rows)


async def rows_of(world: World) -> Counter[int]:
    world.submit(ROWS)
    cut_off = CutOff(world.ledger, world.clock)
    slow = ScriptedEngine(concurrency=4, delay_s=8.0)
    async with at_work(world.runner(slow, "slow", cut_off)) as one:
        await asyncio.sleep(3.0)
        async with at_work(world.runner(ScriptedEngine(concurrency=4, delay_s=0.2), "fast")):
            await asyncio.sleep(9.0)
            slow.delay_s = 0.05  # whatever made it slow is over
            await asyncio.sleep(60.0)
            assert not one.done()
            assert world.ended()
    return Counter(world.results().column("row_id").to_pylist())


def test_rows_whose_split_was_answered_too_late_are_in_one_part(tmp_path: Path) -> None:
    world = fleet(tmp_path)
    world.harvest = HarvestConfig(min_slice_rows=ROWS, slices_per_job=1)
    rows = run_virtually(rows_of(world))
    world.ledger.close()
    assert sorted(rows) == list(range(ROWS))
    assert set(rows.values()) == {1}, [row for row, times in rows.items() if times > 1]


class NoSplit(DirectLedger):
    """A ledger that cannot note a split, because its disk is full."""

    async def split(self, lease_id: str, keep_rows: int) -> bool:
        raise StorageError("cannot write splits.log: no space left on device")


async def dropped(world: World) -> tuple[JobState, int]:
    """State of the job, and its finished rows, ten minutes after it was resumed."""
    job_id = world.submit(8)
    engine = ScriptedEngine(concurrency=1, delay_s=2.0)
    async with at_work(world.runner(engine, "a", NoSplit(world.ledger, world.clock))) as task:
        await asyncio.sleep(1.5)
        assert world.ledger.lease("idle", "scripted", world.clock()) is None  # another replica finds nothing to do
        await asyncio.sleep(10.0)
        world.ledger.pause(job_id, world.clock())
        await asyncio.sleep(5.0)
        world.ledger.resume(job_id, world.clock())
        await asyncio.sleep(600.0)
        assert not task.done()
    return world.show(job_id).state, world.show(job_id).rows_ok


def test_a_slice_dropped_before_the_ledger_told_leaves_its_slot(tmp_path: Path) -> None:
    world = fleet(tmp_path)
    world.harvest = HarvestConfig(min_slice_rows=8, slices_per_job=1)
    ended = run_virtually(dropped(world))
    world.ledger.close()
    assert ended == (JobState.COMPLETED, 8)


class Broken(DirectLedger):
    """A ledger with a bug: its first lease raises."""

    faults = 1

    async def lease(self, holder: str, model: str) -> Lease | None:
        if self.faults:
            self.faults -= 1
            raise KeyError("docs")
        return await super().lease(holder, model)


async def test_a_fault_in_the_ledger_does_not_end_the_replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "STORAGE_WAIT_S", 0.01)
    world = World(tmp_path)
    job_id = world.submit(4)
    async with at_work(world.runner(ScriptedEngine(), "a", Broken(world.ledger, world.clock))) as task:
        await until(lambda: task.done() or world.ended(job_id))
        assert not task.done(), task.exception()
    assert world.show(job_id).rows_ok == 4
    world.ledger.close()
