"""One job over machines that share no disk: whoever takes over finds what the others did, and a lost disk costs what was not sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.errors import StorageError
from jobs.engine import Prompt, RowError
from jobs.ledger.splits import noted_splits
from jobs.removal import remove_files
from jobs.repair.repair import repair
from jobs.run.runner import Runner
from jobs.run.slice import open_parts
from jobs.sql.fetch import fetch_results
from jobs.sql.query import batches, connect, run
from jobs.states import JobState
from jobs.storage.folder import StateFolder
from jobs.storage.inputs import kept_input
from jobs.storage.mirror import Mirror
from jobs.storage.place import known_folder, settle_storage
from jobs.testing import DirectLedger, ScriptedEngine, last_line
from tests.fakes.lost_ledger import LostLedger, at_work
from tests.storage.machines import LEASE_S, Machines, until

ROWS = 24


@pytest.fixture
def machines(tmp_path: Path, uri: str) -> Iterator[Machines]:
    made = Machines(tmp_path, uri)
    yield made
    made.ledger.check()
    made.ledger.close()


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Rows in a file that all machines see."""
    path = tmp_path / "docs.parquet"
    pq.write_table(pa.table({"text": [f"row {number}" for number in range(ROWS)]}), path)
    return path


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """Rows that are copied when a job is made of them."""
    path = tmp_path / "docs.jsonl"
    path.write_text("".join(json.dumps({"text": f"row {number}"}) + "\n" for number in range(ROWS)))
    return path


def outputs(machines: Machines, name: str, job_id: str) -> list[str]:
    return [row["output"] for row in machines.rows(name, job_id)]


WHOLE = [f"row {number}" for number in range(ROWS)]


async def published_unheard(machines: Machines, job_id: str) -> None:
    """Machine a puts all parts into the storage, and dies before the ledger hears of one."""
    client = LostLedger(machines.ledger, machines.clock)
    client.lose()
    async with at_work(machines.runner("a", ScriptedEngine(), client)):
        await until(lambda: machines.head.mirror and len(machines.head.mirror.names(machines.head.results(job_id))) == ROWS // 8)


async def test_machines_share_a_job_whose_rows_only_the_first_has_read(machines: Machines, lines: Path) -> None:
    job = machines.submit(lines)
    lines.unlink()
    engines = [ScriptedEngine(concurrency=4, delay_s=0.002) for _ in range(2)]
    async with at_work(machines.runner("a", engines[0])), at_work(machines.runner("b", engines[1])):
        await until(lambda: machines.ledger.show(job.id).ended_at_s is not None)
    view = machines.ledger.show(job.id)
    assert (view.state, view.rows_ok, view.rows_recomputed) == (JobState.COMPLETED, ROWS, 0)
    assert all(engine.calls for engine in engines)
    assert outputs(machines, "c", job.id) == WHOLE
    assert view.results == machines.head.results_address(job.id)


async def test_a_query_on_another_machine_reads_what_it_names(machines: Machines, table: Path) -> None:
    first, second = machines.submit(table), machines.submit(table, new=True)
    await machines.harvest("a", ScriptedEngine())
    there = machines.folder("c")
    query = f"select count(*), min(output) from results('{first.id}')"
    fetch_results(there, query, [second.id, first.id])
    assert not there.results(second.id).exists()
    with connect(there.root, machines.ledger.table) as connection:
        (answer,) = batches(run(connection, there.root, query))
    assert list(answer.to_pylist()[0].values()) == [ROWS, "row 0"]


async def test_a_machine_whose_disk_is_lost_costs_the_rows_that_it_had_not_sent(machines: Machines, table: Path) -> None:
    job = machines.submit(table)
    client, engine = LostLedger(machines.ledger, machines.clock), ScriptedEngine(concurrency=2)
    done = 5

    def answer(prompt: Prompt) -> str:
        if engine.finished >= done:
            engine.hold()
        return last_line(prompt)

    engine.answer = answer
    runner = machines.runner("a", engine, client, spool_send_s=0.02)
    spool = machines.head.spool(job.id, 0, 0)
    assert machines.head.mirror is not None
    async with at_work(runner):
        await until(lambda: machines.head.mirror and (machines.head.mirror.read(spool) or b"").count(b'"row_id"') >= done)
        client.lose()
    machines.lose("a")
    machines.clock.advance(2 * LEASE_S)
    other = ScriptedEngine()
    view = await machines.harvest("b", other)
    assert (view.state, view.rows_ok) == (JobState.COMPLETED, ROWS)
    assert other.calls <= ROWS - done
    assert outputs(machines, "c", job.id) == WHOLE
    assert not machines.head.mirror.has(machines.head.spools(job.id) / spool.name)


async def test_a_machine_that_leaves_costs_nothing(machines: Machines, table: Path) -> None:
    job = machines.submit(table)
    engine = ScriptedEngine(concurrency=2, delay_s=0.005)
    runner = machines.runner("a", engine)
    async with at_work(runner):
        await until(lambda: engine.finished >= 3)
        await runner.leave()
    machines.lose("a")
    other = ScriptedEngine()
    view = await machines.harvest("b", other)
    assert (view.rows_ok, view.rows_recomputed) == (ROWS, 0)
    assert engine.calls + other.calls == ROWS
    assert outputs(machines, "c", job.id) == WHOLE


async def test_a_part_that_nobody_heard_of_is_adopted_by_another_machine(machines: Machines, table: Path) -> None:
    job = machines.submit(table)
    await published_unheard(machines, job.id)
    machines.lose("a")
    machines.clock.advance(2 * LEASE_S)
    other = ScriptedEngine()
    view = await machines.harvest("b", other)
    assert (view.rows_ok, other.calls) == (ROWS, 0)


async def test_a_part_that_is_on_one_disk_alone_is_none(machines: Machines, table: Path) -> None:
    job = machines.submit(table)
    await machines.harvest("a", ScriptedEngine())
    folder = machines.folder("a")
    assert folder.mirror is not None
    folder.mirror.remove(folder.results(job.id) / "part-000001.parquet")
    assert (folder.results(job.id) / "part-000001.parquet").exists()
    assert {row["row_id"] for row in machines.rows("b", job.id)} == {*range(8), *range(16, 24)}
    assert open_parts(folder, job.id).metadata("part-000001") is None


async def test_failed_rows_are_retried_on_another_machine(machines: Machines, table: Path) -> None:
    job = machines.submit(table)

    def fail_some(prompt: Prompt) -> str:
        if last_line(prompt).endswith("3"):
            raise RowError("prompt_rejected", "no")
        return last_line(prompt)

    view = await machines.harvest("a", ScriptedEngine(answer=fail_some))
    assert view.rows_error == 3
    machines.lose("a")
    machines.ledger.retry(job.id, machines.clock())
    other = ScriptedEngine()
    view = await machines.harvest("b", other)
    assert (view.rows_ok, view.rows_error, other.calls) == (ROWS, 0, 3)
    assert outputs(machines, "c", job.id) == WHOLE


async def test_a_damaged_part_is_put_aside_in_the_storage_and_computed_again(machines: Machines, table: Path) -> None:
    job = machines.submit(table)
    await published_unheard(machines, job.id)
    mirror, part = machines.head.mirror, machines.head.results(job.id) / "part-000002.parquet"
    assert mirror is not None
    data = mirror.read(part)
    assert data is not None
    mirror.put(part, data[:60] + bytes([data[60] ^ 1]) + data[61:])
    machines.lose("a")
    machines.clock.advance(2 * LEASE_S)
    view = await machines.harvest("b", ScriptedEngine())
    assert view.rows_ok == ROWS
    assert "part-000002.parquet.damaged" in mirror.names(machines.head.results(job.id))
    assert outputs(machines, "c", job.id) == WHOLE


async def test_a_removed_job_is_gone_everywhere(machines: Machines, lines: Path) -> None:
    job, other = machines.submit(lines), machines.submit(lines, new=True)
    view = await machines.harvest("a", ScriptedEngine())
    machines.ledger.remove(job.id)
    remove_files(machines.head, job.id, kept_input(machines.head, machines.ledger.show(other.id).source))
    assert machines.head.mirror is not None
    assert job.id not in machines.head.mirror.names(machines.head.jobs)
    assert not (machines.head.jobs / job.id).exists()
    assert view.id == other.id
    assert outputs(machines, "c", other.id) == WHOLE


async def test_ledger_and_jobs_are_made_again_from_the_storage_alone(machines: Machines, lines: Path, tmp_path: Path) -> None:
    settle_storage(machines.head, machines.uri, may_adopt=True)
    done, half = machines.submit(lines), machines.submit(lines, new=True)
    client = DirectLedger(machines.ledger, machines.clock)
    lease = await client.lease("x", "scripted")
    assert lease is not None
    assert await client.split(lease.lease_id, 3)
    await client.release(lease.lease_id)
    machines.ledger.pause(half.id, machines.clock())
    async with at_work(machines.runner("a", ScriptedEngine())):
        await until(lambda: machines.ledger.show(done.id).ended_at_s is not None)
    assert len(noted_splits(machines.root / "ledger" / "jobs" / lease.job.id)) == 1
    for name in ("head", "ledger", "a"):
        machines.lose(name)
    new = StateFolder(tmp_path / "new")
    new.prepare()
    settle_storage(new, machines.uri, may_adopt=True)
    report = repair(known_folder(new.root))
    assert sorted(report.restored) == sorted([done.id, half.id])
    assert report.problems == []
    assert report.slices_found == 4
    again = Machines(tmp_path, machines.uri, known_folder(new.root))
    for job in (done, half):
        if again.ledger.show(job.id).state is JobState.PAUSED:
            again.ledger.resume(job.id, again.clock())
    view = await again.harvest("b", ScriptedEngine())
    again.ledger.check()
    again.ledger.close()
    assert view.rows_ok == ROWS
    for job in (done, half):
        assert outputs(again, "c", job.id) == WHOLE


async def test_a_storage_that_does_not_answer_delays_a_slice_and_loses_nothing(
    machines: Machines, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.run.runner.STORAGE_WAIT_S", 0.01)
    send, is_away = Mirror.send, True

    def away(self: Mirror, path: Path, *, source: Path | None = None) -> None:
        if is_away:
            raise StorageError("cannot write there: the storage is away")
        send(self, path, source=source)

    job = machines.submit(table)
    monkeypatch.setattr(Mirror, "send", away)
    engine = ScriptedEngine()
    async with at_work(machines.runner("a", engine)):
        await until(lambda: machines.ledger.show(job.id).message is not None)
        assert machines.ledger.show(job.id).message == "cannot write there: the storage is away"
        is_away = False
        await until(lambda: machines.ledger.show(job.id).ended_at_s is not None)
    view = machines.ledger.show(job.id)
    assert (view.state, view.rows_ok, view.rows_recomputed, engine.calls) == (JobState.COMPLETED, ROWS, 0, ROWS)


def test_a_job_that_cannot_be_sent_is_not_made(machines: Machines, lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(self: Mirror, folder: Path) -> int:
        raise StorageError("cannot write there: the storage is away")

    monkeypatch.setattr(Mirror, "send_folder", away)
    with pytest.raises(StorageError, match="the storage is away"):
        machines.submit(lines)
    assert list(machines.head.jobs.iterdir()) == []


async def test_a_spool_that_cannot_be_sent_or_removed_costs_a_warning(
    machines: Machines, table: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(self: Mirror, *_: object) -> None:
        raise StorageError("the storage is away")

    job = machines.submit(table)
    monkeypatch.setattr(Mirror, "put", away)
    monkeypatch.setattr(Mirror, "remove", away)
    engine = ScriptedEngine(concurrency=2, delay_s=0.005)
    runner: Runner = machines.runner("a", engine, spool_send_s=0.01)
    async with at_work(runner):
        await until(lambda: engine.finished >= 3)
        await runner.leave()
    assert "spool_not_sent" in caplog.text
    monkeypatch.undo()
    monkeypatch.setattr(Mirror, "remove", away)
    view = await machines.harvest("a", engine)
    assert (view.id, view.rows_ok) == (job.id, ROWS)
    assert "spool_left" in caplog.text
