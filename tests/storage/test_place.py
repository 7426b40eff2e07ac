"""Which state folder a storage belongs to: one that had its files first, or one that takes the storage over."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from connectors.errors import StorageError
from jobs.errors import StateError
from jobs.ledger.store.move import ready_state
from jobs.storage import place as place_module
from jobs.storage.folder import StateFolder
from jobs.storage.mirror import Mirror
from jobs.storage.place import MARK, forget_gone, known_folder, settle_storage, state_folder, storage_place
from tools.postgres import Postgres

Machine = Callable[[str], Path]


@pytest.fixture
def folder(machine: Machine) -> StateFolder:
    made = StateFolder(machine("one"))
    made.prepare()
    return made


@pytest.fixture
def other(machine: Machine) -> StateFolder:
    made = StateFolder(machine("two"))
    made.prepare()
    return made


def until(condition: Callable[[], bool]) -> None:
    """Wait for a thread that follows the storage."""
    end_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def file_of(folder: StateFolder, name: str) -> Path:
    path = folder.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(name)
    return path


def test_a_folder_that_had_its_files_itself_sends_them_once(folder: StateFolder, other: StateFolder, uri: str) -> None:
    names = ["jobs/a/results/part-000000.parquet", "jobs/a/job.json", "uploads/me/1/x.csv", "files/file-1.json", "batches/batch_1.json"]
    names += ["inputs/1/x.parquet", "profiles/x.json"]
    for name in [*names, "keys.json", "jobs/.staging-1/x", "logs/server.log", "history/looks", "answers/me/1.arrow", "user.key"]:
        file_of(folder, name)
    (line,) = settle_storage(folder, uri, may_adopt=False)
    assert line == f"sent {len(names)} files of {folder.root} to {Mirror(folder.root, uri)}"
    assert settle_storage(folder, uri, may_adopt=False) == []
    mirror = Mirror(other.root, uri)
    for name in [*names, "keys.json"]:
        assert mirror.read(other.root / name) == name.encode()
    for name in ("logs/server.log", "user.key", "jobs/.staging-1/x", "storage.json"):
        assert mirror.read(other.root / name) is None
    assert known_folder(folder.root).results_address("a") == mirror.address(other.root / "jobs/a/results")


def test_an_empty_folder_takes_over_what_is_there_if_its_ledger_is_elsewhere_too(folder: StateFolder, other: StateFolder, uri: str) -> None:
    file_of(folder, "keys.json")
    settle_storage(folder, uri, may_adopt=False)
    with pytest.raises(
        StateError, match=f"another state folder, whose ledger is not here; .*harvester repair --state {other.root} --storage"
    ):
        settle_storage(other, uri, may_adopt=False)
    (line,) = settle_storage(other, uri, may_adopt=True)
    assert line.startswith("took over")
    assert storage_place(other) == storage_place(folder)
    assert other.keys.read_text() == "keys.json"


def test_keys_that_were_made_before_a_storage_is_taken_over_are_not_lost(folder: StateFolder, other: StateFolder, uri: str) -> None:
    """Where the storage has none: a server that asks for keys would open without them."""
    settle_storage(folder, uri, may_adopt=True)
    file_of(other, "keys.json")
    settle_storage(other, uri, may_adopt=True)
    assert other.keys.read_text() == "keys.json"
    assert Mirror(folder.root, uri).read(folder.keys) == b"keys.json"


def test_a_folder_with_jobs_of_its_own_takes_nothing_over(folder: StateFolder, other: StateFolder, uri: str) -> None:
    settle_storage(folder, uri, may_adopt=True)
    file_of(other, "jobs/a/job.json")
    with pytest.raises(StateError, match="has jobs of its own; give another prefix"):
        settle_storage(other, uri, may_adopt=True)


def test_a_folder_of_another_storage_is_refused(folder: StateFolder, other: StateFolder, uri: str, tmp_path: Path) -> None:
    settle_storage(folder, uri, may_adopt=True)
    with pytest.raises(StateError, match=r"are in .*, not in .*; give that, or a new --state folder"):
        settle_storage(folder, str(tmp_path / "elsewhere"), may_adopt=True)
    with pytest.raises(StateError, match="give it as `storage:`"):
        settle_storage(folder, None, may_adopt=True)
    Mirror(folder.root, uri).put(folder.root / MARK, json.dumps({"version": 2, "owner": "somebody"}).encode())
    with pytest.raises(StateError, match="belongs to another state folder than"):
        settle_storage(folder, uri, may_adopt=True)


def test_the_same_storage_may_be_reached_by_another_address(folder: StateFolder, machine: Machine) -> None:
    shared = str(machine("shared"))
    settle_storage(folder, shared, may_adopt=True)
    settle_storage(folder, f"{shared}/", may_adopt=True)
    place = storage_place(folder)
    assert place is not None
    assert place.uri == f"{shared}/"


def test_nothing_is_asked_of_a_folder_without_a_storage(folder: StateFolder) -> None:
    assert settle_storage(folder, None, may_adopt=True) == []
    assert known_folder(folder.root) == folder
    assert known_folder(folder.root).mirror is None
    assert state_folder(folder.root, None).mirror is None


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"{", "is damaged"), (b'{"owner": 1}', "is damaged"), (b'{"version": 99, "owner": "x"}', "is of version 99, this harvester writes")],
)
def test_a_mark_that_cannot_be_read_is_named(folder: StateFolder, uri: str, data: bytes, message: str) -> None:
    Mirror(folder.root, uri).put(folder.root / MARK, data)
    with pytest.raises(StorageError, match=message):
        settle_storage(folder, uri, may_adopt=True)


def test_a_damaged_note_of_the_storage_is_named(folder: StateFolder) -> None:
    folder.storage_place.write_text("{")
    with pytest.raises(StorageError, match=r"cannot read .*storage\.json"):
        known_folder(folder.root)


def test_a_process_on_another_machine_has_the_folder_made_and_follows_the_keys(
    folder: StateFolder, machine: Machine, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place_module, "KEYS_S", 0.01)
    monkeypatch.setattr(place_module, "TIDY_S", -1.0)
    file_of(folder, "keys.json")
    settle_storage(folder, uri, may_adopt=True)
    there = state_folder(machine("two") / "state", uri)
    assert there.keys.read_text() == "keys.json"
    assert there.root.stat().st_mode & 0o077 == 0
    assert known_folder(there.root).mirror is not None
    known = known_folder(folder.root)
    assert known.mirror is not None
    known.mirror.put(folder.keys, b"new")
    until(lambda: there.keys.read_text() == "new")


def test_keys_are_followed_after_an_error_of_any_kind(
    folder: StateFolder, machine: Machine, uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(place_module, "KEYS_S", 0.01)
    file_of(folder, "keys.json")
    settle_storage(folder, uri, may_adopt=True)
    there = state_folder(machine("two") / "state", uri)
    fetch, failed = Mirror.fetch, list[Path]()

    def failing(mirror: Mirror, path: Path) -> bool:
        if path == there.keys and not failed:
            failed.append(path)
            raise OSError(errno.EIO, "Input/output error")
        return fetch(mirror, path)

    monkeypatch.setattr(Mirror, "fetch", failing)
    until(lambda: bool(failed))
    known = known_folder(folder.root)
    assert known.mirror is not None
    known.mirror.put(folder.keys, b"new")
    until(lambda: there.keys.read_text() == "new")
    assert "storage_bug" in caplog.text


def test_a_storage_that_does_not_answer_lets_no_process_begin(machine: Machine, s3: object) -> None:
    with pytest.raises(StorageError, match="check that the storage can be reached"):
        state_folder(machine("one"), "s3://nobucket/x?endpoint_override=127.0.0.1:9&scheme=http&region=us-east-1")


def emptied(mirror: Mirror, *names: str) -> dict[str, bytes]:
    """Remove the files from the storage, as a mount that is away does. Returns them."""
    kept = {name: mirror.read(mirror.root / name) for name in names}
    for name in names:
        mirror.remove(mirror.root / name)
    return {name: data for name, data in kept.items() if data is not None}


def test_a_storage_that_is_away_is_not_taken_as_an_empty_one(folder: StateFolder, machine: Machine, uri: str) -> None:
    file_of(folder, "keys.json")
    settle_storage(folder, uri, may_adopt=True)
    there = state_folder(machine("two"), uri)
    mirror = Mirror(folder.root, uri)
    kept = emptied(mirror, MARK, "keys.json")
    for name in ("two", "three"):
        with pytest.raises(StorageError, match=r"state\.json.* is missing, .*; check that the storage is mounted here"):
            state_folder(machine(name), uri)
    with pytest.raises(StorageError, match=rf"put a backup of it back; or, once .* remove {folder.storage_place} to send them again"):
        settle_storage(folder, uri, may_adopt=True)
    assert mirror.read(folder.root / MARK) is None
    assert folder.keys.read_text() == there.keys.read_text() == "keys.json"
    for name, data in kept.items():
        mirror.put(folder.root / name, data)
    assert settle_storage(folder, uri, may_adopt=True) == []
    assert state_folder(machine("three"), uri).keys.read_text() == "keys.json"


def test_a_storage_that_is_lost_is_made_again_from_the_copies(folder: StateFolder, uri: str) -> None:
    settle_storage(folder, uri, may_adopt=False)
    file_of(folder, "jobs/a/job.json")
    emptied(Mirror(folder.root, uri), MARK)
    folder.storage_place.unlink()
    (line,) = settle_storage(folder, uri, may_adopt=False)
    assert line.startswith("sent 1 files")
    assert settle_storage(folder, uri, may_adopt=False) == []


def test_keys_stay_while_the_storage_is_away(
    folder: StateFolder, machine: Machine, uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(place_module, "KEYS_S", 0.01)
    file_of(folder, "keys.json")
    settle_storage(folder, uri, may_adopt=True)
    there = state_folder(machine("two"), uri)
    for name in (MARK, "keys.json"):
        emptied(Mirror(folder.root, uri), name)
        caplog.clear()
        until(lambda: "is missing, which every storage of a server has" in caplog.text)
    assert there.keys.read_text() == "keys.json"


def test_a_machine_whose_folder_is_of_another_storage_is_refused(
    folder: StateFolder, other: StateFolder, machine: Machine, uri: str, tmp_path: Path
) -> None:
    settle_storage(folder, uri, may_adopt=True)
    settle_storage(other, str(tmp_path / "elsewhere"), may_adopt=True)
    with pytest.raises(StateError, match=f"belongs to another state folder than {other.root}; give another prefix, or a new --state"):
        state_folder(other.root, uri)


def test_copies_go_a_day_after_what_they_are_copies_of(folder: StateFolder, uri: str) -> None:
    mirror = Mirror(folder.root, uri)
    for name in ("jobs/kept/job.json", "jobs/gone/job.json", "jobs/young/job.json", "uploads/me/gone/x", "uploads/me/kept/x"):
        path = file_of(folder, name)
        if "kept" in name:
            mirror.send(path)
        for old in (path, path.parent) if "young" not in name else ():
            os.utime(old, (1000.0, 1000.0))
    forget_gone(folder, mirror, time.time())
    found = {str(path.relative_to(folder.root)) for path in (*folder.jobs.glob("*"), *folder.uploads.glob("*/*"))}
    assert found == {"jobs/kept", "jobs/young", "uploads/me/kept"}


def test_an_upload_that_goes_on_for_more_than_a_day_is_no_old_copy(folder: StateFolder, uri: str) -> None:
    """Its folder was changed last when the file was made, the file a moment ago."""
    path = file_of(folder, "uploads/me/long/table/x")
    for parent in (path.parent, path.parent.parent):
        os.utime(parent, (1000.0, 1000.0))
    forget_gone(folder, Mirror(folder.root, uri), time.time())
    assert path.exists()
    os.utime(path, (1000.0, 1000.0))
    forget_gone(folder, Mirror(folder.root, uri), time.time())
    assert not path.parent.parent.exists()


def test_a_new_machine_takes_over_storage_and_database_of_a_lost_one(
    folder: StateFolder, other: StateFolder, uri: str, database: Postgres
) -> None:
    url = database.new()
    ready_state(folder, url)  # before there was a storage
    ready_state(folder, url, uri)
    lost = json.loads(folder.ledger_place.read_text())
    shutil.rmtree(folder.root)
    (line,) = ready_state(other, url, uri)
    assert line.startswith("took over")
    assert json.loads(other.ledger_place.read_text()) == lost
