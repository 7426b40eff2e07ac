"""What other users of the machine may see or put in place of ours: nothing."""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from pathlib import Path

import pytest

from harvester.cli.invocation import Invocation
from harvester.errors import StorageError
from harvester.serve.runtime import MAX_PATH_BYTES, clear, held, ray_folder, runtime_folder
from jobs.storage.folder import StateFolder

MARK = "0123456789ab"
OTHER_USER = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user, which only root may")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    folder = StateFolder(tmp_path / "state")
    folder.prepare()
    return folder


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private folder with a path as short as XDG_RUNTIME_DIR's."""
    path = Path(tempfile.mkdtemp(prefix="x", dir="/tmp"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(path))
    return path


def test_a_state_folder_is_its_users_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        StateFolder(tmp_path / "a" / "state").prepare()
    finally:
        os.umask(before)
    assert [mode(tmp_path / "a" / "state" / name) for name in (".", "jobs", "logs")] == [0o700] * 3


def test_a_state_folder_that_an_earlier_version_made_is_closed_to_others(state: StateFolder) -> None:
    for path in (state.root, state.jobs, state.logs):
        path.chmod(0o755)
    (state.root / "ledger.sqlite").touch(0o644)
    (state.root / "link").symlink_to("/etc/passwd")
    state.prepare()
    assert [mode(path) for path in (state.root, state.jobs, state.ledger)] == [0o700, 0o700, 0o600]
    assert mode(Path("/etc/passwd")) == 0o644


def test_an_open_folder_of_other_things_is_not_closed_but_refused(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir(mode=0o755)
    (tmp_path / "shared" / "notes.txt").touch()
    with pytest.raises(StorageError, match=r"others may enter .*/shared, .*; give a folder of its own with --state"):
        StateFolder(tmp_path / "shared").prepare()
    assert mode(tmp_path / "shared") == 0o755


def test_who_may_not_read_the_state_folder_is_told_what_to_do(state: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may read everything
    with pytest.raises(StorageError, match=r"state folder .* belongs to another user; run this as that user, or ask the server"):
        Invocation(state_given=state.root).local_state(None)


def test_the_runtime_folder_is_in_the_users_own_for_that(state: StateFolder, short: Path) -> None:
    path = runtime_folder(state, MARK)
    assert (path.parent, mode(path)) == (short, 0o700)
    assert runtime_folder(state, MARK) == path


@pytest.mark.parametrize("loose", [0o755, 0o777, 0o770], ids=oct)
def test_a_runtime_folder_that_others_may_enter_is_not_used(state: StateFolder, short: Path, loose: int) -> None:
    taken = runtime_folder(state, MARK)
    taken.chmod(loose)
    path = runtime_folder(state, MARK)
    assert path != taken
    assert mode(path) == 0o700
    assert runtime_folder(state, MARK) == path, "the unpredictable name is remembered"
    path.rmdir()


def test_the_folder_that_goes_when_its_user_logs_out_is_not_used(state: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", f"/run/user/{os.geteuid()}")
    assert not runtime_folder(state, MARK).is_relative_to("/run/user")


def test_a_running_servers_folder_is_locked_against_cleaners(state: StateFolder, short: Path) -> None:
    path = runtime_folder(state, MARK)
    cleaner = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    with held(path), pytest.raises(BlockingIOError):
        fcntl.flock(cleaner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(cleaner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(cleaner)


def test_a_link_in_place_of_the_runtime_folder_is_not_used(state: StateFolder, short: Path, tmp_path: Path) -> None:
    taken = runtime_folder(state, MARK)
    taken.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    taken.symlink_to(tmp_path / "elsewhere")
    path = runtime_folder(state, MARK)
    assert path != taken
    path.rmdir()


def test_a_place_for_runtime_folders_that_others_may_enter_is_not_used(state: StateFolder, short: Path) -> None:
    short.chmod(0o755)
    path = runtime_folder(state, MARK)
    assert short not in path.parents
    path.rmdir()


@as_root
def test_a_runtime_folder_of_another_user_is_not_used(state: StateFolder, short: Path) -> None:
    taken = runtime_folder(state, MARK)
    os.chown(taken, OTHER_USER, OTHER_USER)
    path = runtime_folder(state, MARK)
    assert path != taken
    path.rmdir()


@as_root
def test_a_remembered_folder_that_another_user_has_taken_is_not_used(state: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    taken = runtime_folder(state, MARK)
    os.chown(taken, OTHER_USER, OTHER_USER)
    path = runtime_folder(state, MARK)
    assert path != taken
    for made in (taken, path):
        made.rmdir()


def test_a_short_state_folder_holds_it_itself(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert runtime_folder(StateFolder(short), MARK) == short / "run"


def test_sockets_fit_whatever_the_names(state: StateFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / ("long" * 10)))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = runtime_folder(state, MARK)
    assert len(os.fsencode(path)) <= MAX_PATH_BYTES
    path.rmdir()


def test_what_is_left_of_a_server_is_the_logs_of_its_last_session(state: StateFolder, short: Path) -> None:
    path = runtime_folder(state, MARK)
    for day in (1, 2, 3):
        (ray_folder(path) / f"session_2026-11-0{day}_1" / "logs").mkdir(parents=True)
    (path / "node").mkdir()
    (path / "admin.sock").touch()
    ray_folder(path)
    clear(path)
    assert [entry.name for entry in path.rglob("*")] == ["ray", "session_2026-11-03_1", "logs"]
