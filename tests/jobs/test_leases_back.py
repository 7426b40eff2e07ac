"""Leases and files that a replica lets go: all of them, whatever is cancelled or fails on the way."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.errors import StorageError
from connectors.memory import MemorySink
from connectors.open import open_source
from jobs.config import HarvestConfig
from jobs.engine import EngineGone
from jobs.ledger.ledger import Ledger
from jobs.plan.job import plan_job
from jobs.run.runner import Runner
from jobs.run.spool.records import Spool
from jobs.run.spool.spools import Spools
from jobs.run.telling import despite_cancellation
from jobs.spec import JobRequest, Lease, LeaseProgress, SourceSpec
from jobs.storage.folder import StateFolder
from jobs.testing import DirectLedger, ManualClock, ScriptedEngine

HARVEST = HarvestConfig(heartbeat_s=0.01, lease_s=60.0, idle_poll_s=0.005, min_slice_rows=4, slices_per_job=4)
PATIENCE_S = 20.0


class Place:
    """A ledger with one job of 16 rows in four slices."""

    def __init__(self, path: Path) -> None:
        self.folder = StateFolder(path / "state")
        self.folder.prepare()
        self.clock = ManualClock()
        self.ledger = Ledger(Path(":memory:"), self.folder.jobs, lease_s=HARVEST.lease_s, now_s=self.clock(), new_server=True)
        source = path / "docs.parquet"
        pq.write_table(pa.table({"text": [f"row {number}" for number in range(16)]}), source)
        inline = {"prompt": "Answer.\n{text}", "max_tokens": 8}
        request = JobRequest(source=SourceSpec(uri=str(source)), task="echo", task_inline=inline, column="text")
        with open_source(str(source), snapshot_dir=self.folder.snapshot("docs-0001")) as opened:
            plan = plan_job(request, opened, model="scripted", harvest=HARVEST, now_s=self.clock(), token="0001")
        self.ledger.submit(plan, new=True)

    def runner(self, engine: ScriptedEngine, client: DirectLedger) -> Runner:
        return Runner("a", client, engine, self.folder, HARVEST, lambda folder, job_id: MemorySink(), self.clock)

    def leased(self) -> int:
        return sum(line["state"] == "leased" for line in self.ledger.table("leases").to_pylist())


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.ledger.check()
    place.ledger.close()


class FarLedger(DirectLedger):
    """Each lease comes back a little later than the one before."""

    released = 0

    async def release(self, lease_id: str) -> None:
        self.released += 1
        for _ in range(20 * self.released):
            await asyncio.sleep(0)
        await super().release(lease_id)


async def test_a_lease_on_its_way_back_arrives_though_another_slice_ends_meanwhile(place: Place) -> None:
    client, engine = FarLedger(place.ledger, place.clock), ScriptedEngine(concurrency=32)
    engine.hold()
    task = asyncio.create_task(place.runner(engine, client).run())
    async with asyncio.timeout(PATIENCE_S):
        while engine.running < 16:  # noqa: ASYNC110 - the engine has no event for it
            await asyncio.sleep(0.001)
    engine.die()
    with pytest.raises(EngineGone):
        await task
    assert client.released >= 4, "and one more where a slice that was back was leased again meanwhile"
    assert place.leased() == 0


class LateLedger(DirectLedger):
    """The second lease is given ``late`` turns of the event loop after the first one has come back."""

    def __init__(self, ledger: Ledger, clock: ManualClock, late: int) -> None:
        super().__init__(ledger, clock)
        self.late, self.leases, self.back = late, 0, asyncio.Event()

    async def lease(self, holder: str, model: str) -> Lease | None:
        self.leases += 1
        if self.leases > 1:
            await self.back.wait()
            for _ in range(self.late):
                await asyncio.sleep(0)
        return await super().lease(holder, model)

    async def release(self, lease_id: str) -> None:
        self.back.set()
        await super().release(lease_id)


@pytest.mark.parametrize("late", range(12))
async def test_a_lease_whose_work_had_not_begun_goes_back_too(place: Place, late: int) -> None:
    client, engine = LateLedger(place.ledger, place.clock, late), ScriptedEngine(concurrency=32)
    engine.die()
    with pytest.raises(EngineGone):
        await place.runner(engine, client).run()
    assert place.leased() == 0


async def test_a_call_that_must_arrive_ends_before_its_cancellation_goes_on() -> None:
    arrived = asyncio.Event()

    async def call() -> None:
        for _ in range(10):
            await asyncio.sleep(0)
        arrived.set()

    task = asyncio.create_task(despite_cancellation(call(), 5.0))
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert arrived.is_set()


async def test_a_call_that_never_ends_is_given_up_some_time_after_the_cancellation() -> None:
    task = asyncio.create_task(despite_cancellation(asyncio.Event().wait(), 0.0))
    await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class SlowSpools(Spools):
    """Opening a spool blocks until the test lets it go on."""

    opening, go_on = threading.Event(), threading.Event()

    def open(self, lease: Lease, kept: Container[int] = ()) -> Spool:
        spool = super().open(lease, kept)
        self.opening.set()
        assert self.go_on.wait(PATIENCE_S)
        return spool


async def test_a_slice_dropped_while_it_is_opened_leaves_no_file_open(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.run.runner.Spools", SlowSpools)
    SlowSpools.opening.clear()
    SlowSpools.go_on.clear()
    runner = place.runner(ScriptedEngine(concurrency=4), DirectLedger(place.ledger, place.clock))
    task = asyncio.create_task(runner.run())
    async with asyncio.timeout(PATIENCE_S):
        while not SlowSpools.opening.is_set():  # noqa: ASYNC110 - of a thread
            await asyncio.sleep(0.001)
    (job,) = place.ledger.jobs()
    place.ledger.cancel(job.id, place.clock())
    async with asyncio.timeout(PATIENCE_S):
        while place.leased():  # noqa: ASYNC110 - the drop comes with a heartbeat
            await asyncio.sleep(0.001)
    SlowSpools.go_on.set()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    spools = place.folder.jobs / job.id / "spool"
    assert any(spools.iterdir()), "it was opened"
    assert [path for path in open_files() if path.is_relative_to(spools)] == []


async def test_a_runner_that_ends_while_a_slice_is_opened_does_not_hold_up_the_event_loop(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.run.runner.Spools", SlowSpools)
    SlowSpools.opening.clear()
    SlowSpools.go_on.clear()
    task = asyncio.create_task(place.runner(ScriptedEngine(concurrency=4), DirectLedger(place.ledger, place.clock)).run())
    async with asyncio.timeout(PATIENCE_S):
        while not SlowSpools.opening.is_set():  # noqa: ASYNC110 - of a thread
            await asyncio.sleep(0.001)
    task.cancel()
    for _ in range(100):  # what else is on the loop, such as chats, goes on
        await asyncio.sleep(0)
    assert not task.done()
    SlowSpools.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_spool_whose_first_write_fails_leaves_no_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, data: bytes) -> int:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    with monkeypatch.context() as disk:
        disk.setattr("jobs.run.spool.records.os.write", full)
        with pytest.raises(StorageError, match="Disk quota exceeded"):
            Spool(tmp_path / "slice-0.jsonl")
    assert [path for path in open_files() if path.is_relative_to(tmp_path)] == []


def open_files() -> list[Path]:
    """Of this process."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the listing's own
            found.append(entry.readlink())
    return found


class MistakenLedger(DirectLedger):
    """A ledger with a bug: its first heartbeat raises."""

    beats = 0

    async def heartbeat(self, holder: str, progress: Sequence[LeaseProgress]) -> list[str]:
        self.beats += 1
        if self.beats == 1:
            raise KeyError("of a mistake")
        return await super().heartbeat(holder, progress)


async def test_a_heartbeat_that_fails_by_a_mistake_ends_no_replica(place: Place) -> None:
    client, engine = MistakenLedger(place.ledger, place.clock), ScriptedEngine(concurrency=32)
    engine.hold()
    task = asyncio.create_task(place.runner(engine, client).run())
    async with asyncio.timeout(PATIENCE_S):
        while client.beats < 3 and not task.done():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
