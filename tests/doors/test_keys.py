"""The file of keys: followed while a server runs, and closed where it cannot be read."""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harvester.core import Role
from harvester.errors import NotFoundError, StateError, StorageError
from harvester.serve.access.identity import Identity
from harvester.serve.access.keys import PREFIX, KeyFile, KeyRing
from jobs.access.limits import Limits
from jobs.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def file(tmp_path: Path, clock: ManualClock) -> KeyFile:
    return KeyFile(tmp_path / "state" / "keys.json", clock)


@pytest.fixture
def ring(file: KeyFile, clock: ManualClock) -> KeyRing:
    return KeyRing(path=file.path, limits=Limits(max_choices=7), now_s=clock)


def test_a_running_server_follows_the_file(file: KeyFile, ring: KeyRing) -> None:
    assert not ring.asks_for_key()
    ann, bob = file.add("ann", [Role.CHAT]), file.add("bob", [Role.ADMIN], limits=Limits(max_choices=2))
    assert ring.asks_for_key()
    assert ring.identify(ann) == Identity("ann", frozenset({Role.CHAT}), Limits(max_choices=7))
    found = ring.identify(bob)
    assert found is not None
    assert (found.is_admin, found.limits.max_choices) == (True, 2)
    file.revoke("ann")
    assert ring.identify(ann) is None
    assert ring.identify(bob) is not None


def test_a_key_ends_when_it_was_to(file: KeyFile, ring: KeyRing, clock: ManualClock) -> None:
    key = file.add("ann", [Role.CHAT], expires_at_s=clock() + 60)
    clock.advance(59)
    assert ring.identify(key) is not None
    clock.advance(1)
    assert ring.identify(key) is None
    assert file.add("ann", [Role.CHAT]) != key


def test_keys_are_long_and_never_alike(file: KeyFile) -> None:
    keys = {file.add(f"name-{number}", [Role.CHAT]) for number in range(20)}
    assert len(keys) == 20
    assert all(key.startswith(PREFIX) and len(key) > 40 for key in keys)
    assert not any(key in file.path.read_text() for key in keys)


@pytest.mark.parametrize("damage", ["gone", "cut", "shut"])
def test_a_file_that_cannot_be_read_lets_nobody_in(file: KeyFile, ring: KeyRing, damage: str) -> None:
    key = file.add("ann", [Role.ADMIN])
    assert ring.identify(key) is not None
    if damage == "gone":
        file.path.unlink()
    elif damage == "cut":
        file.path.write_bytes(file.path.read_bytes()[:-9])
    else:
        file.path.unlink()
        file.path.mkdir()
    assert ring.asks_for_key()
    assert ring.identify(key) is None


@pytest.mark.parametrize("method", ["stat", "read_bytes"])
def test_a_file_that_could_not_be_read_once_is_read_by_the_next_request(
    file: KeyFile, ring: KeyRing, method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    key = file.add("ann", [Role.ADMIN])
    with monkeypatch.context() as patched, caplog.at_level(logging.ERROR, "harvester.access"):
        patched.setattr(Path, method, failing(getattr(Path, method), file.path))
        assert [ring.identify(key) for _ in range(3)] == [None] * 3
        assert ring.asks_for_key()
    assert len(caplog.records) == 1, "told once, not with each request"
    assert ring.identify(key) is not None


def test_only_a_file_that_is_not_there_is_no_file(file: KeyFile, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not KeyRing(path=file.path).asks_for_key()
    monkeypatch.setattr(Path, "stat", failing(Path.stat, file.path))
    assert KeyRing(path=file.path).asks_for_key()


def failing(method: Callable[..., Any], path: Path) -> Callable[..., Any]:
    """``method`` of a path, which fails for this one as where a process has too many files open, or a server of files does not answer."""

    def called(this: Path, *given: Any, **options: Any) -> Any:
        if this == path:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return method(this, *given, **options)

    return called


def test_a_server_that_asks_for_keys_does_so_before_there_is_one(file: KeyFile) -> None:
    ring = KeyRing(path=file.path, asks=True)
    assert ring.asks_for_key()
    assert ring.identify("whatever") is None
    assert ring.identify(file.add("ann", [Role.CHAT])) is not None


def test_a_damaged_file_is_named_to_whoever_changes_it(file: KeyFile) -> None:
    file.add("ann", [Role.ADMIN])
    file.path.write_text("{")
    with pytest.raises(StorageError, match=r"keys\.json is damaged"):
        file.add("bob", [Role.CHAT])
    file.path.write_text('{"keys": [], "later": 1}')
    with pytest.raises(StorageError, match=r"keys\.json was written by a newer version of harvester, which knows later"):
        file.add("bob", [Role.CHAT])


def test_keys_of_the_configuration_stay_the_administrators(file: KeyFile) -> None:
    ring = KeyRing(["one", "two"], file.path)
    assert ring.asks_for_key()
    found = ring.identify("two")
    assert found is not None
    assert found.is_admin
    assert ring.identify("three") is None
    assert ring.identify("") is None
    file.add("ann", [Role.CHAT])
    assert ring.identify("two") is not None


def test_names_are_kept_apart(file: KeyFile) -> None:
    file.add("ann", [Role.CHAT])
    with pytest.raises(StateError, match="there is a key ann"):
        file.add("ann", [Role.CHAT])
    with pytest.raises(NotFoundError):
        file.revoke("bob")


def test_keys_that_are_made_at_once_are_all_kept(file: KeyFile) -> None:
    threads = [threading.Thread(target=file.add, args=(f"name-{number}", [Role.CHAT])) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {one.name for one in file.read().keys} == {f"name-{number}" for number in range(12)}


@pytest.mark.parametrize(("who", "owner", "owns"), [("ann", "ann", True), ("ann", "bob", False), ("ann", None, False), (None, None, False)])
def test_whose_things_are_whose(who: str | None, owner: str | None, owns: bool) -> None:
    assert Identity(who, frozenset({Role.BATCH})).owns(owner) is owns
    assert Identity(who, frozenset({Role.ADMIN})).owns(owner)


ONCE_STORED = {  # limits that earlier versions stored with each key, also those that nobody gave
    "requests_per_minute", "tokens_per_minute", "open_requests", "max_choices", "max_tokens", "max_body_bytes", "max_upload_bytes",
    "max_stored_bytes", "max_grammar_cost", "max_copied_bytes", "max_job_rows",
}  # fmt: skip


def test_a_limit_of_a_key_takes_the_place_of_that_one_alone(file: KeyFile, clock: ManualClock) -> None:
    ring = KeyRing(path=file.path, limits=Limits(requests_per_minute=60, max_tokens=500, max_choices=16), now_s=clock)
    key = file.add("nightly", [Role.BATCH], limits=Limits(max_job_rows=1000, max_choices=128))
    found = ring.identify(key)
    assert found is not None
    assert found.limits == Limits(requests_per_minute=60, max_tokens=500, max_choices=128, max_job_rows=1000)
    written = json.loads(file.path.read_text())
    written["keys"][0]["limits"] = Limits(max_job_rows=1000).model_dump(include=ONCE_STORED)
    file.path.write_text(json.dumps(written))
    found = ring.identify(key)
    assert found is not None
    assert found.limits == Limits(requests_per_minute=60, max_tokens=500, max_choices=16, max_job_rows=1000)
