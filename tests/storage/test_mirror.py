"""Files of one machine's folder as another one finds them: whole, up to date, gone when they are gone."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import fs

from connectors.errors import StorageError
from connectors.paths.location import Location, locate
from jobs.storage import mirror as mirror_module
from jobs.storage.mirror import Mirror
from jobs.storage.publish import publish_to

Machine = Callable[[str], Path]


@pytest.fixture
def here(any_uri: str, machine: Machine) -> Mirror:
    return Mirror(machine("here"), any_uri)


@pytest.fixture
def there(any_uri: str, machine: Machine) -> Mirror:
    """The same storage, from another machine."""
    return Mirror(machine("there"), any_uri)


def written(mirror: Mirror, name: str, data: bytes = b"some") -> Path:
    path = mirror.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def age(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on files count as old enough that their time tells versions apart."""
    monkeypatch.setattr(mirror_module, "UNSETTLED_S", -3600.0)


@pytest.mark.parametrize("whole_bytes", [1 << 20, 2], ids=["read whole", "in pieces"])
def test_a_file_that_was_sent_is_fetched_as_it_was(here: Mirror, there: Mirror, monkeypatch: pytest.MonkeyPatch, whole_bytes: int) -> None:
    monkeypatch.setattr(mirror_module, "WHOLE_BYTES", whole_bytes)
    data = os.urandom(5000)
    here.send(written(here, "jobs/a b/x.bin", data))
    assert there.fetch(there.root / "jobs/a b/x.bin")
    assert (there.root / "jobs/a b/x.bin").read_bytes() == data
    assert there.read(there.root / "jobs/a b/x.bin") == data


def test_a_file_that_is_not_there_is_not_here_afterwards(there: Mirror) -> None:
    path = written(there, "x")
    assert not there.fetch(path)
    assert not path.exists()
    assert there.read(path) is None
    assert not there.has(path)
    there.remove(path)
    there.remove_folder(there.root / "none")


def test_a_newer_edition_replaces_the_copy_even_within_the_second_and_of_the_same_size(here: Mirror, there: Mirror) -> None:
    path = there.root / "x"
    for data in (b"one", b"two", b"six"):
        here.send(written(here, "x", data))
        assert there.fetch(path)
        assert path.read_bytes() == data


@pytest.mark.parametrize(("how", "then"), [("read", "_check_same"), ("fetch", "_check_same"), ("fetch", "_piece")])
def test_a_file_that_is_replaced_while_it_is_read_is_the_new_one(
    here: Mirror, there: Mirror, monkeypatch: pytest.MonkeyPatch, how: str, then: str
) -> None:
    """``then``: after it was read, or when it is open and its length is known."""
    here.send(written(here, "keys.json", b"an old and longer edition"))
    went_on, replaced = getattr(Mirror, then), list[bytes]()

    def late(mirror: Mirror, *given: object) -> object:
        if not replaced:
            replaced.append(b"new")
            here.put(here.root / "keys.json", b"new")
        return went_on(mirror, *given)

    monkeypatch.setattr(Mirror, then, late)
    path = there.root / "keys.json"
    found = there.read(path) if how == "read" else path.read_bytes() if there.fetch(path) else None
    assert found == b"new"


class Told:
    """A file system whose lists have for each file what ``tell`` makes of the answer for one. Adds to ``opened`` what is read."""

    def __init__(self, files: fs.FileSystem, tell: Callable[[fs.FileInfo], fs.FileInfo], opened: list[str]) -> None:
        self._files, self._tell, self._opened = files, tell, opened

    def __getattr__(self, name: str) -> object:
        return getattr(self._files, name)

    def get_file_info(self, asked: object) -> list[fs.FileInfo]:
        found: list[fs.FileInfo] = self._files.get_file_info(asked)
        if not isinstance(asked, fs.FileSelector):
            return found
        return [self._tell(one) for one in self._files.get_file_info([one.path for one in found])]

    def open_input_stream(self, path: str, **how: object) -> object:
        self._opened.append(path)
        return self._files.open_input_stream(path, **how)


def untimed(info: fs.FileInfo) -> fs.FileInfo:
    return fs.FileInfo(info.path, info.type, size=info.size, mtime_ns=0)


def finer(info: fs.FileInfo) -> fs.FileInfo:
    if info.type is not fs.FileType.File:
        return info
    return fs.FileInfo(info.path, info.type, size=info.size, mtime_ns=info.mtime_ns // 10**9 * 10**9 + 999_000_000)


@pytest.mark.parametrize("tell", [untimed, finer], ids=["no times", "finer times"])
def test_a_storage_whose_lists_tell_other_times_has_each_file_copied_once(
    here: Mirror, there: Mirror, monkeypatch: pytest.MonkeyPatch, tell: Callable[[fs.FileInfo], fs.FileInfo]
) -> None:
    """Finer times: a list of MinIO has milliseconds, its answer to a question for one file has none."""
    age(monkeypatch)
    here.send(written(here, "jobs/x"))
    opened: list[str] = []

    def located(uri: str) -> Location:
        place = locate(uri)
        return replace(place, files=Told(place.files, tell, opened))

    monkeypatch.setattr(mirror_module, "locate", located)
    for _ in range(2):
        assert there.fetch_folder(there.root / "jobs") == [there.root / "jobs/x"]
    assert [Path(path).name for path in opened] == ["x"]


def test_a_copy_that_is_up_to_date_is_not_fetched_again(here: Mirror, there: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    age(monkeypatch)
    here.send(written(here, "x"))
    path = there.root / "x"
    there.fetch(path)
    first = path.stat().st_ino
    there.fetch(path)
    assert path.stat().st_ino == first
    time.sleep(1.1)  # S3 tells whole seconds
    here.send(written(here, "x", b"more"))
    there.fetch(path)
    assert path.read_bytes() == b"more"


def test_a_folder_is_sent_and_fetched_but_for_what_is_being_written(here: Mirror, there: Mirror) -> None:
    for name in ("jobs/a/1.json", "jobs/a/sub/2.json", "jobs/a/3.data", "jobs/a/.4.json.tmp", "jobs/b/5.json"):
        written(here, name)
    assert here.send_folder(here.root / "jobs/a") == 3
    folder = there.root / "jobs/a"
    assert there.fetch_folder(folder, ".json") == [folder / "1.json", folder / "sub/2.json"]
    assert not (folder / "3.data").exists()
    assert there.names(there.root / "jobs") == {"a"}
    assert there.names(folder) == {"1.json", "sub", "3.data"}
    assert there.has(folder)
    assert there.fetch_folder(there.root / "nothing") == []


def test_what_is_removed_is_gone_for_all(here: Mirror, there: Mirror) -> None:
    for name in ("jobs/a/1", "jobs/a/2", "jobs/b/3"):
        here.send(written(here, name))
    here.remove(here.root / "jobs/b/3")
    here.remove_folder(here.root / "jobs/a")
    assert there.fetch_folder(there.root / "jobs") == []


def test_a_file_is_there_before_it_is_here(here: Mirror, there: Mirror) -> None:
    path = here.root / "files/x"
    with publish_to(here, path) as file:
        file.write(b"new")
        assert not there.fetch(there.root / "files/x")
    assert path.read_bytes() == b"new"
    assert there.read(there.root / "files/x") == b"new"


def test_a_file_that_cannot_be_sent_is_not_here_either(machine: Machine, s3: object) -> None:
    away = Mirror(machine("here"), "s3://nobucket/x?endpoint_override=127.0.0.1:9&scheme=http&region=us-east-1")
    with (
        pytest.raises(StorageError, match=r"cannot write s3://nobucket/x/keys.json\?.*; check that the storage can be reached"),
        publish_to(away, away.root / "keys.json") as file,
    ):
        file.write(b"some")
    assert not (away.root / "keys.json").exists()


def test_a_write_that_fails_in_the_middle_leaves_nothing_there(here: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_module, "WHOLE_BYTES", 2)

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(shutil, "copyfileobj", fail)
    path = written(here, "x")
    with pytest.raises(StorageError, match=r"(?i)input/output error"):
        here.send(path)
    assert here.read(path) is None


def test_a_file_of_this_machine_that_is_gone_is_named(here: Mirror) -> None:
    with pytest.raises(StorageError, match=r"cannot read .*here/x"):
        here.send(here.root / "x")


@pytest.mark.parametrize(
    ("uri", "address"),
    [
        ("s3://bucket/a", "s3://bucket/a/jobs/x"),
        ("s3://bucket/a/?region=eu-1", "s3://bucket/a/jobs/x?region=eu-1"),
        ("s3://me:pass@bucket", "s3://***@bucket/jobs/x"),
        ("/mnt/shared", "/mnt/shared/jobs/x"),
    ],
)
def test_addresses_are_shown_without_credentials(uri: str, address: str) -> None:
    mirror = Mirror(Path("/state"), uri)
    assert mirror.address(Path("/state/jobs/x")) == address
    assert "pass" not in str(mirror)


def test_only_a_folder_of_this_machine_is_one() -> None:
    assert Mirror(Path("/state"), "s3://bucket/a").folder is None
    assert Mirror(Path("/state"), "file:///mnt/a").folder == Path("/mnt/a")
