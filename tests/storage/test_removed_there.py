"""A job removed while the storage does not answer is not half there for ever."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.errors import StorageError
from harvester.serve.http.jobs.removal import finish_removals, removed
from jobs.errors import ReopenError, StateError
from jobs.removal import note_removal
from jobs.spec import JobView
from jobs.states import JobState
from jobs.storage.mirror import Mirror
from jobs.testing import ScriptedEngine
from tests.storage.machines import Machines


async def test_a_job_whose_files_could_not_be_removed_can_be_removed_again(
    tmp_path: Path, machine: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Machines(tmp_path, str(tmp_path / "shared"))
    source = tmp_path / "docs.parquet"
    pq.write_table(pa.table({"text": [f"secret {number}" for number in range(8)]}), source)
    view = there.submit(source)
    view = await there.harvest("a", ScriptedEngine())
    assert view.state is JobState.COMPLETED
    results = there.head.results(view.id)
    assert there.head.mirror is not None
    assert there.head.mirror.has(results)

    def away(self: Mirror, folder: Path) -> None:
        raise StorageError("cannot remove: 503 SlowDown")

    with monkeypatch.context() as storage:
        storage.setattr(Mirror, "remove_folder", away)
        with pytest.raises(StorageError):
            await removed(there.client, there.head, view)
    assert there.head.mirror.has(there.head.jobs / view.id)
    await finish_removals(there.client, there.head)  # within the hour
    assert not there.head.mirror.has(there.head.jobs / view.id)
    assert there.head.mirror.names(there.head.removals) == set()
    there.ledger.close()


async def test_a_job_whose_removal_was_not_answered_and_is_asked_for_again_is_removed(
    tmp_path: Path, machine: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Machines(tmp_path, str(tmp_path / "shared"))
    view = await harvested(there, tmp_path)
    remove = there.client.remove

    async def twice(job_id: str) -> None:
        """As `LedgerActor._reach`: the actor is killed when it has removed the job and before it answers; the call is made again."""
        await remove(job_id)
        await remove(job_id)

    monkeypatch.setattr(there.client, "remove", twice)
    assert await removed(there.client, there.head, view) == view
    check_gone(there, view)


@pytest.mark.parametrize("error", [ReopenError("the connection broke"), StorageError("the ledger is silent")], ids=["broken", "silent"])
async def test_the_files_of_a_job_go_within_the_hour_if_the_ledger_does_not_tell_that_it_is_gone(
    tmp_path: Path, machine: object, monkeypatch: pytest.MonkeyPatch, error: StorageError
) -> None:
    there = Machines(tmp_path, str(tmp_path / "shared"))
    view = await harvested(there, tmp_path)
    remove = there.client.remove

    async def unanswered(job_id: str) -> None:
        await remove(job_id)
        raise error

    monkeypatch.setattr(there.client, "remove", unanswered)
    with pytest.raises(StorageError):
        await removed(there.client, there.head, view)
    await finish_removals(there.client, there.head)
    check_gone(there, view)


async def harvested(there: Machines, tmp_path: Path) -> JobView:
    source = tmp_path / "docs.parquet"
    pq.write_table(pa.table({"text": ["a", "b"]}), source)
    there.submit(source)
    return await there.harvest("a", ScriptedEngine())


def check_gone(there: Machines, view: JobView) -> None:
    mirror = there.head.mirror
    assert mirror is not None
    assert not mirror.has(there.head.jobs / view.id)
    assert mirror.names(there.head.removals) == set()
    assert there.ledger.jobs() == []
    there.ledger.close()


async def test_a_job_that_was_not_removed_keeps_its_files(tmp_path: Path, machine: object, monkeypatch: pytest.MonkeyPatch) -> None:
    there = Machines(tmp_path, str(tmp_path / "shared"))
    view = await harvested(there, tmp_path)
    mirror = there.head.mirror
    assert mirror is not None

    async def refuse(job_id: str) -> None:
        raise StateError(f"job {job_id} has rows in flight; try again in a moment")

    with monkeypatch.context() as ledger:
        ledger.setattr(there.client, "remove", refuse)
        with pytest.raises(StateError):
            await removed(there.client, there.head, view)
    assert mirror.names(there.head.removals) == set()
    note_removal(there.head, view.id, view.source)  # by a process that died before it told the ledger
    await finish_removals(there.client, there.head)
    assert mirror.has(there.head.results(view.id))
    assert mirror.names(there.head.removals) == set()
    there.ledger.close()
