"""The sums of the ledger's pages: true while it is written, killed and read, and telling where a page was changed by another."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from connectors.errors import DamageError, StorageError
from jobs.ledger.store import sqlite
from jobs.ledger.store.contract import GO_ON
from jobs.ledger.store.place import check_ledger, read_ledger
from jobs.ledger.store.sqlite import SqliteStore
from jobs.ledger.store.sums import PageSums
from tests.fakes.ledger_file import add_job


def filled(folder: Path, jobs: int = 40) -> SqliteStore:
    store = SqliteStore(folder / "ledger.sqlite")
    for number in range(jobs):
        add_job(store, f"docs-{number}", float(number))
    return store


def test_all_pages_are_known_and_true_after_each_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "CHECKPOINT_COMMITS", 3)
    store = filled(tmp_path)
    sums = PageSums(store.path)
    for number in range(40):
        store.run("set_message", [f"message {number}" * 50, f"docs-{number}"])
        assert sums.damaged() is None
    assert sums.known()
    store.close()
    assert (sums.damaged(), sums.known()) == (None, True)


def dies(*values: object) -> None:
    raise OSError("killed")


@pytest.mark.parametrize("step", ["before", "within", "after"])
def test_a_process_killed_around_a_checkpoint_leaves_no_false_alarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    store = filled(tmp_path)
    sums = PageSums(store.path)
    with monkeypatch.context() as patch:
        writes = iter([None, dies] if step == "after" else [dies] if step == "before" else [])
        write = PageSums._write
        patch.setattr(PageSums, "_write", lambda self, told: (next(writes, None) or write)(self, told))
        checkpoint: Callable[[], object] = dies if step == "within" else lambda: store._db.execute("PRAGMA wal_checkpoint(PASSIVE)").close()
        with pytest.raises(OSError, match="killed"):
            sums.around(checkpoint)  # type: ignore[arg-type]
    kept = {path: path.read_bytes() for path in tmp_path.glob("ledger.*")}
    store.close()
    for path, whole in kept.items():
        path.write_bytes(whole)
    assert sums.damaged() is None
    again = SqliteStore(tmp_path / "ledger.sqlite")
    assert len(again.rows("job_rows")) == 40
    assert sums.known()
    again.close()


@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_a_changed_byte_in_any_page_is_named_before_anything_is_read(tmp_path: Path, where: str) -> None:
    filled(tmp_path).close()
    path = tmp_path / "ledger.sqlite"
    data = bytearray(path.read_bytes())
    offset = {"first": 50, "middle": len(data) // 2 + 77, "last": len(data) - 1}[where]
    data[offset] ^= 1
    path.write_bytes(data)
    message = rf"damaged: page {offset // 4096 + 1} is not as it was written; stop the server and run: harvester repair"
    for opens in (lambda: SqliteStore(path), lambda: read_ledger(tmp_path, "jobs"), lambda: check_ledger(tmp_path)):
        with pytest.raises(DamageError, match=message):
            opens()


def test_a_file_that_was_cut_is_named(tmp_path: Path) -> None:
    filled(tmp_path).close()
    path = tmp_path / "ledger.sqlite"
    pages = path.stat().st_size // 4096
    os.truncate(path, (pages - 2) * 4096)
    with pytest.raises(DamageError, match=f"page {pages - 1} is not as it was written"):
        SqliteStore(path)


def test_sums_that_are_lost_or_damaged_are_made_again_once_sqlite_finds_the_file_whole(tmp_path: Path) -> None:
    filled(tmp_path).close()
    path, sums = tmp_path / "ledger.sqlite", tmp_path / "ledger.sums"
    for spoil in (sums.unlink, lambda: sums.write_bytes(sums.read_bytes()[:-3]), lambda: sums.write_bytes(b"")):
        spoil()
        assert not PageSums(path).known()
        SqliteStore(path).close()
        assert PageSums(path).known()


def test_a_file_without_sums_whose_pages_do_not_hang_together_is_damaged(tmp_path: Path) -> None:
    filled(tmp_path).close()
    path = tmp_path / "ledger.sqlite"
    (tmp_path / "ledger.sums").unlink()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096)
    with pytest.raises(DamageError, match=r"the ledger .* is damaged: .*run: harvester repair"):
        SqliteStore(path)


def test_the_look_into_a_file_without_sums_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path, 400).close()
    (tmp_path / "ledger.sums").unlink()
    monkeypatch.setattr(sqlite, "CHECK_S", -1.0)
    store = SqliteStore(tmp_path / "ledger.sqlite")
    assert len(store.rows("job_rows")) == 400
    store.close()


def test_leases_that_a_power_cut_takes_back_are_not_counted_before_they_are_on_disk(tmp_path: Path) -> None:
    store = filled(tmp_path)
    log = tmp_path / "ledger.sqlite-wal"
    synced = log.read_bytes()
    with store.transaction(durable=False):
        store.run("set_message", ["leased", "docs-1"])
    kept = {path: path.read_bytes() for path in tmp_path.glob("ledger.*")} | {log: synced}  # the log as it was synced last
    with store.transaction():
        assert store._db.execute("PRAGMA synchronous").fetchone() == (2,), "FULL"
    store.close()
    for path, whole in kept.items():
        path.write_bytes(whole)
    again = SqliteStore(tmp_path / "ledger.sqlite")
    assert "leased" not in [row["message"] for row in again.rows("job_rows")]
    again.close()


def test_the_ledger_is_read_while_its_owner_works_on_it(tmp_path: Path) -> None:
    store = filled(tmp_path)
    with store.transaction():
        store.run("set_message", ["not yet", "docs-1"])
        table = read_ledger(tmp_path, "jobs")
        assert table is not None
        assert "not yet" not in table.column("message").to_pylist()
    table = read_ledger(tmp_path, "jobs")
    assert table is not None
    assert "not yet" in table.column("message").to_pylist()
    check_ledger(tmp_path)
    store.run("set_message", ["on", "docs-1"])
    store.close()


def test_a_ledger_put_back_while_it_is_in_use_is_noticed_at_the_next_change(tmp_path: Path) -> None:
    store = filled(tmp_path)
    with sqlite3.connect(tmp_path / "ledger.sqlite") as other:
        other.execute("PRAGMA wal_autocheckpoint = 0")
        other.execute("UPDATE ledger SET commits = commits - 7")
    with pytest.raises(
        DamageError, match=r"was put back from 40 changes to 33 while it was in use; stop the server and run: harvester repair"
    ):
        store.run("set_message", ["lost", "docs-1"])
    with pytest.raises(StorageError):
        store.run("set_message", ["lost", "docs-1"])
    other.close()
    store.close()


def test_a_ledger_that_cannot_be_used_says_which_and_why(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "ledger.sqlite")
    with pytest.raises(StorageError) as caught:
        store.run("set_message", ["too few"])
    assert caught.value.message.startswith("the ledger cannot be written or read (set_message): ")
    assert caught.value.message.endswith("; check the disk of the state folder")
    store.close()
    (tmp_path / "ledger.sqlite").write_bytes(b"x" * 5000)
    damaged = rf"^the ledger {tmp_path}/ledger\.sqlite is damaged: page 1 is not as it was written; {GO_ON}$"
    with pytest.raises(DamageError, match=damaged):
        read_ledger(tmp_path, "jobs")
    with pytest.raises(DamageError, match=damaged):
        SqliteStore(tmp_path / "ledger.sqlite")
    for path in tmp_path.glob("ledger.*"):
        path.unlink()
    assert read_ledger(tmp_path, "jobs") is None
    (tmp_path / "ledger.sqlite").touch()
    assert read_ledger(tmp_path, "jobs") is None, "its server died before it made the tables"
