"""Files beside the ledger that cannot be written, read or moved: one line that names the file, and nothing else is lost."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from connectors.errors import StorageError
from jobs.access.handle import make_key
from jobs.errors import StateError
from jobs.ledger.jobfile import read_job
from jobs.ledger.ledger import Ledger
from jobs.ledger.splits import NAME, Split, note_split, noted_splits
from jobs.ledger.store.commits import CommitCount
from jobs.ledger.store.place import ledger_place
from jobs.ledger.store.sums import PageSums
from jobs.removal import check_removable, set_aside
from jobs.spec import JobView
from jobs.states import JobState
from jobs.storage.folder import StateFolder
from jobs.testing import scripted_plan


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    made = StateFolder(tmp_path / "state")
    made.root.mkdir()
    return made


def test_a_count_of_changes_that_cannot_be_written_is_logged_and_takes_nothing_from_the_ledger(
    folder: StateFolder, caplog: pytest.LogCaptureFixture
) -> None:
    (folder.root / "ledger.commits").mkdir()
    count = CommitCount(folder.root / "ledger.commits")
    with caplog.at_level(logging.WARNING):
        count.write(3)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [f"commit_count cannot write {count.path}"]
    with pytest.raises(StorageError, match=f"^cannot read {count.path}: is a directory"):
        count.read()
    count.close()


def test_where_the_ledger_is_must_be_told_in_json(folder: StateFolder) -> None:
    folder.ledger_place.write_text("postgresql://")
    with pytest.raises(StorageError, match=f"^cannot read {folder.ledger_place}: .*; it says where the ledger is: start the server again$"):
        ledger_place(folder)


def test_a_job_file_that_cannot_be_read_is_named(folder: StateFolder) -> None:
    (folder.root / "job.json").mkdir()
    with pytest.raises(StorageError, match=f"^cannot read {folder.root}/job.json: is a directory"):
        read_job(folder.root / "job.json")


def test_splits_that_cannot_be_written_or_read_are_named(folder: StateFolder) -> None:
    (folder.root / NAME).mkdir()
    with pytest.raises(StorageError, match=f"^cannot write {folder.root / NAME}: is a directory"):
        note_split(folder.root, Split(0, 3, 1))
    with pytest.raises(StorageError, match=f"^cannot read {folder.root / NAME}: is a directory"):
        noted_splits(folder.root)


def test_a_split_of_which_the_disk_takes_a_part_is_refused(folder: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:9]))
    with pytest.raises(StorageError, match=f"^cannot write {folder.root / NAME}: no space left on device"):
        note_split(folder.root, Split(0, 3, 1))
    monkeypatch.undo()
    note_split(folder.root, Split(0, 4, 1))
    assert noted_splits(folder.root) == [Split(0, 4, 1)]


def test_a_key_that_cannot_be_written_leaves_nothing_behind(folder: StateFolder) -> None:
    folder.user_key.mkdir()
    with pytest.raises(StorageError, match=f"^cannot write {folder.user_key}: Is a directory; give another state folder with --state$"):
        make_key(folder)
    assert [path.name for path in folder.root.iterdir()] == [folder.user_key.name]


def view(job_id: str, state: JobState) -> JobView:
    ledger = Ledger(Path(":memory:"), Path("/jobs"), lease_s=9.0, now_s=0.0, new_server=True)
    made, _ = ledger.submit(scripted_plan(job_id), new=True)
    ledger.close()
    return made.model_copy(update={"state": state})


def test_a_job_that_may_not_be_removed_is_told_why() -> None:
    with pytest.raises(StateError, match=r"^job docs is running; cancel it first: harvester cancel docs$"):
        check_removable(view("docs", JobState.RUNNING))


def test_a_job_without_a_folder_is_removed_and_one_that_cannot_be_moved_is_named(
    folder: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_aside(folder.jobs, "docs")
    own = folder.jobs / "docs"
    own.mkdir(parents=True)
    monkeypatch.setattr("jobs.removal.secrets.token_hex", lambda count: "x" * 300)  # a name that no file system takes
    with pytest.raises(StorageError, match=f"^cannot remove {own}: file name too long"):
        set_aside(folder.jobs, "docs")
    assert own.is_dir()


@pytest.mark.parametrize("log", [None, b"", b"\0" * 40], ids=["none", "empty", "of no page size"])
def test_a_log_that_says_nothing_names_no_page(folder: StateFolder, log: bytes | None) -> None:
    ledger = folder.root / "ledger.sqlite"
    if log is not None:
        ledger.with_name("ledger.sqlite-wal").write_bytes(log)
    assert PageSums(ledger)._logged() == set()
