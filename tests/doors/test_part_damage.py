"""Parts that lost a bit before the ledger knew of them, or before a retry: their rows are computed again."""

from __future__ import annotations

import errno
import json
import zlib
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from connectors.errors import DamageError
from connectors.open import open_source
from connectors.parquet.parts import PartsSink
from jobs.engine import Prompt, RowError
from jobs.ledger.jobfile import read_job
from jobs.repair.repair import repair
from jobs.run.slice import open_slice
from jobs.run.spool.spools import Spools
from jobs.states import JobState
from jobs.storage.folder import StateFolder, part_name
from jobs.testing import ManualClock, ScriptedEngine, last_line, scripted_plan
from tests.fakes.scripted_job import SLICE_ROWS, ended_job, harvest, opened, planned, results, spooled_row


def damage(folder: StateFolder, job_id: str, slice_id: int) -> None:
    path = PartsSink(folder.results(job_id)).path(part_name(slice_id))
    data = bytearray(path.read_bytes())
    data[60] ^= 4  # within the first page
    path.write_bytes(data)


def spoil(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """A sector of the file can no longer be read, its footer can; a file that replaces it lies elsewhere."""
    bad, opened = path.stat().st_ino, pq.ParquetFile

    def read(source: object, **options: object) -> pq.ParquetFile:
        if isinstance(source, Path) and source.stat().st_ino == bad:
            raise OSError(errno.EIO, "Error reading bytes from file. Detail: [errno 5] Input/output error")
        return opened(source, **options)

    monkeypatch.setattr(pq, "ParquetFile", read)


async def test_a_damaged_part_that_was_never_committed_is_computed_again(tmp_path: Path) -> None:
    clock, folder = ManualClock(), StateFolder(tmp_path / "state")
    folder.prepare()
    plan = planned(tmp_path, 2, clock)
    for _ in range(2):  # the second ledger knows of no part
        ledger = opened(Path(":memory:"), folder, clock)
        ledger.submit(plan, new=True)
        await harvest(ledger, folder, clock)
        view = ledger.show(plan.spec.id)
        ledger.close()
        assert (view.state, view.rows_ok) == (JobState.COMPLETED, 2 * SLICE_ROWS)
        assert [row["output"] for row in results(folder, plan.spec.id)] == [f"text {i}" for i in range(2 * SLICE_ROWS)]
        damage(folder, plan.spec.id, 1)
    assert (folder.results(plan.spec.id) / "part-000001.parquet.damaged").exists()
    with pytest.raises(DamageError, match=r"docs-0001/results/part-000001.parquet is damaged: .*run: harvester repair"):
        results(folder, plan.spec.id)


@pytest.mark.parametrize("how", ["flipped bit", "bad sector"])
async def test_a_retry_over_a_damaged_part_computes_all_of_its_rows_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    clock, folder = ManualClock(), StateFolder(tmp_path / "state")
    folder.prepare()
    plan = planned(tmp_path, 1, clock)
    ledger = opened(Path(":memory:"), folder, clock)
    ledger.submit(plan, new=True)

    def refuse_two(prompt: Prompt) -> str:
        if last_line(prompt) in ("text 2", "text 3"):
            raise RowError("refused", "not now")
        return last_line(prompt)

    await harvest(ledger, folder, clock, ScriptedEngine(answer=refuse_two))
    assert ledger.show(plan.spec.id).rows_error == 2
    if how == "flipped bit":
        damage(folder, plan.spec.id, 0)
    else:
        spoil(monkeypatch, folder.results(plan.spec.id) / "part-000000.parquet")
    ledger.retry(plan.spec.id, clock())
    engine = ScriptedEngine()
    await harvest(ledger, folder, clock, engine)
    view = ledger.show(plan.spec.id)
    ledger.check()
    ledger.close()
    assert (view.state, view.rows_ok, view.rows_error, engine.calls) == (JobState.COMPLETED, SLICE_ROWS, 0, SLICE_ROWS)
    assert [row["output"] for row in results(folder, plan.spec.id)] == [f"text {i}" for i in range(SLICE_ROWS)]


async def test_repair_finds_a_damaged_part_and_the_job_computes_its_rows_again(tmp_path: Path) -> None:
    folder, clock, plan = await ended_job(tmp_path, 3)
    damage(folder, plan.spec.id, 1)
    report = repair(folder)
    assert [path.name for path in report.parts_aside] == ["part-000001.parquet.damaged"]
    assert (report.changes_lost, report.slices_open, report.restored) == (0, 1, [])
    again = opened(folder.ledger, folder, clock)
    again.check()
    view = again.show(plan.spec.id)
    assert (view.state, view.rows_ok) == (JobState.PAUSED, 2 * SLICE_ROWS)
    assert view.message == f"1 of its parts are damaged or gone; compute their rows again with: harvester resume {plan.spec.id}"
    again.resume(plan.spec.id, clock())
    engine = ScriptedEngine()
    await harvest(again, folder, clock, engine)
    again.check()
    again.close()
    assert engine.calls == SLICE_ROWS
    assert [row["output"] for row in results(folder, plan.spec.id)] == [f"text {i}" for i in range(3 * SLICE_ROWS)]


async def test_repair_of_a_job_whose_file_is_damaged_says_so(tmp_path: Path) -> None:
    clock, folder = ManualClock(), StateFolder(tmp_path / "state")
    folder.prepare()
    ledger = opened(folder.ledger, folder, clock)
    ledger.submit(planned(tmp_path, 1, clock), new=True)
    ledger.close()
    path = folder.jobs / "docs-0001" / "job.json"
    path.write_bytes(path.read_bytes().replace(b"docs-0001", b"docs-0002", 1))
    folder.ledger.unlink()
    report = repair(folder)
    assert report.restored == []
    assert report.problems == [f"{path} is damaged, so its job cannot be restored; its parts stay where they are"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"spec": {"colour": "red"}}, "was written by a newer version of harvester, which knows colour; start that version"),
        ({"slices": [[0] * 9]}, "was written by another version of harvester; use that one"),
    ],
    ids=["newer spec", "other slices"],
)
async def test_the_file_of_a_job_of_another_version_is_named_and_other_jobs_are_restored(
    tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    clock, folder = ManualClock(), StateFolder(tmp_path / "state")
    folder.prepare()
    ledger = opened(folder.ledger, folder, clock)
    ledger.submit(planned(tmp_path, 2, clock), new=True)
    ledger.submit(scripted_plan("other"), new=True)
    ledger.close()
    folder.ledger.unlink()
    path = folder.jobs / "docs-0001" / "job.json"
    body = json.loads(path.read_bytes().partition(b"\n")[2])
    body = {**body, **change, "spec": {**body["spec"], **change.get("spec", {})}}
    written = json.dumps(body).encode()
    path.write_bytes(b"%08x\n" % zlib.crc32(written) + written)
    report = repair(folder)
    assert (report.restored, report.problems) == (["other"], [f"{path} {told}"])


async def test_results_of_which_nothing_is_known_are_named(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "state")
    folder.prepare()
    folder.results("docs-0001").mkdir(parents=True)
    assert repair(folder).problems == [
        f"{folder.jobs / 'docs-0001'} has results, but no job.json that says of which job; read its parts as files"
    ]


async def test_a_job_of_an_earlier_version_gets_its_file(tmp_path: Path) -> None:
    clock, folder = ManualClock(), StateFolder(tmp_path / "state")
    folder.prepare()
    plan = planned(tmp_path, 2, clock)
    ledger = opened(folder.ledger, folder, clock)
    ledger.submit(plan, new=True)
    ledger.close()
    (folder.jobs / "docs-0001" / "job.json").unlink()
    opened(folder.ledger, folder, clock).close()
    assert read_job(folder.jobs / "docs-0001" / "job.json") == plan


async def test_a_retry_that_was_going_on_goes_on_after_a_repair_without_the_ledger(tmp_path: Path) -> None:
    clock, folder = ManualClock(), StateFolder(tmp_path / "state")
    folder.prepare()
    plan = planned(tmp_path, 2, clock)
    ledger = opened(folder.ledger, folder, clock)
    ledger.submit(plan, new=True)

    def refuse_two(prompt: Prompt) -> str:
        if last_line(prompt) in ("text 2", "text 9"):  # one of each slice
            raise RowError("refused", "not now")
        return last_line(prompt)

    await harvest(ledger, folder, clock, ScriptedEngine(answer=refuse_two))
    ledger.retry(plan.spec.id, clock())
    lease = ledger.lease("a", "scripted", clock())
    assert lease is not None
    sink = PartsSink(folder.results(plan.spec.id))
    files = open_slice(lease, open_source(plan.spec.source.uri), sink, Spools(folder, 5.0))
    files.spool.finish(spooled_row(2))
    files.publish()
    files.spool.close()
    ledger.close()
    folder.ledger.unlink()
    repair(folder)
    again = opened(folder.ledger, folder, clock)
    again.resume(plan.spec.id, clock())
    engine = ScriptedEngine()
    await harvest(again, folder, clock, engine)
    again.check()
    view = again.show(plan.spec.id)
    again.close()
    assert (engine.calls, view.rows_ok, view.rows_error) == (1, 2 * SLICE_ROWS, 0)
