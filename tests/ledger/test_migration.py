"""Ledgers of earlier versions (a DuckDB file), and a ledger that goes from the state folder into a database."""

from __future__ import annotations

import errno
from pathlib import Path

import duckdb
import pytest

from connectors.errors import DamageError, StorageError
from jobs.errors import StateError
from jobs.ledger.ledger import Ledger
from jobs.ledger.store.commits import CommitCount
from jobs.ledger.store.move import ready_state
from jobs.ledger.store.place import PostgresPlace, ledger_place, read_ledger
from jobs.ledger.store.statements import TABLES, columns, statements
from jobs.repair.repair import repair
from jobs.spec import PartStats
from jobs.storage.folder import StateFolder
from jobs.testing import scripted_plan
from tools.postgres import Postgres

CHANGES = 41


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    folder = StateFolder(tmp_path / "state")
    folder.prepare()
    (folder.root / "VERSION").write_text('{"version": 1}\n')
    return folder


def made(folder: StateFolder, *, owner: bool = True) -> dict[str, list[dict[str, object]]]:
    """A DuckDB ledger with a job at work; ``owner`` False: of a version whose jobs had no such column, and no count of changes."""
    source = Ledger(Path(":memory:"), folder.jobs, lease_s=60.0, now_s=7200.0, new_server=True)
    source.submit(scripted_plan("docs-1", 12, 3), new=True)
    lease = source.lease("a", "scripted", 7200.0)
    assert lease is not None
    source.commit(lease.lease_id, "docs-1", 0, PartStats(rows_ok=2, rows_error=1, output_tokens=7, lengths=((9, 3, 1),)), 7201.0)
    source.lease("a", "scripted", 7200.0)
    tables = {name: source.table(name) for name in TABLES}
    source.close()
    with duckdb.connect(str(folder.old_ledger)) as old:
        old.execute(statements()["schema"])
        for name, table in tables.items():
            old.register("rows_of_table", table)
            old.execute(f"INSERT INTO {name} FROM rows_of_table")
            old.unregister("rows_of_table")
        for name in ("jobs", "leases"):
            old.execute(f"ALTER TABLE {name} DROP COLUMN rows_cut_off")
        if owner:
            old.execute(f"CREATE TABLE commits (count BIGINT NOT NULL); INSERT INTO commits VALUES ({CHANGES})")
        else:
            old.execute("ALTER TABLE jobs DROP COLUMN owner")
    if owner:
        told = CommitCount(folder.old_ledger.with_suffix(".commits"))
        told.write(CHANGES)
        told.close()
    return {name: table.to_pylist() for name, table in tables.items()}


def opened(folder: StateFolder) -> Ledger:
    return Ledger(ledger_place(folder), folder.jobs, lease_s=60.0, now_s=7200.0, new_server=False)


def everything(folder: StateFolder) -> dict[str, list[dict[str, object]]]:
    return {name: found.to_pylist() for name in TABLES if (found := read_ledger(folder.root, name)) is not None}


@pytest.mark.parametrize("owner", [True, False], ids=["of the last version", "of the first version"])
def test_a_ledger_of_an_earlier_version_is_read_as_it_is_and_moved_by_the_server_once(folder: StateFolder, owner: bool) -> None:
    before = made(folder, owner=owner)
    assert all(before.values())
    assert everything(folder) == before
    assert folder.old_ledger.exists(), "who reads moves nothing"
    assert ready_state(folder, None) == [
        "moved the ledger (1 jobs) from ledger.duckdb to ledger.sqlite; the old file is kept as ledger.duckdb.migrated"
    ]
    assert ready_state(folder, None) == []
    assert everything(folder) == before
    assert (folder.root / "VERSION").read_text() == '{"version": 2}\n'
    assert {path.name for path in folder.root.glob("*edger*")} >= {"ledger.duckdb.migrated", "ledger.sqlite"}
    assert not list(folder.root.glob("making*"))
    ledger = opened(folder)
    ledger.check()
    assert ledger.slices_leased("docs-1") == 1
    ledger.close()
    assert repair(folder).changes_lost == 0


def test_a_move_that_was_killed_half_way_is_made_again(folder: StateFolder) -> None:
    before = made(folder)
    (folder.root / "making-ledger.sqlite").write_bytes(b"half")
    (folder.root / "making-ledger.sums").write_bytes(b"half")
    assert len(ready_state(folder, None)) == 1
    assert everything(folder) == before


def test_a_move_that_was_killed_before_the_old_file_was_put_away_keeps_the_new_one(folder: StateFolder) -> None:
    made(folder)
    old = folder.old_ledger.read_bytes()
    ready_state(folder, None)
    ledger = opened(folder)
    ledger.pause("docs-1", 1.0)
    ledger.close()
    folder.old_ledger.write_bytes(old)
    ready_state(folder, None)
    assert [job["state"] for job in everything(folder)["jobs"]] == ["paused"]
    assert not folder.old_ledger.exists()


def test_an_old_ledger_that_lacks_changes_is_not_moved_and_repair_says_so(folder: StateFolder) -> None:
    made(folder)
    told = CommitCount(folder.old_ledger.with_suffix(".commits"))
    told.write(CHANGES + 2)
    told.close()
    with pytest.raises(DamageError, match=r"the ledger .*ledger.duckdb lacks its last 2 changes: .*run: harvester repair"):
        ready_state(folder, None)
    assert folder.old_ledger.exists()
    report = repair(folder)
    assert report.ledger_aside == folder.old_ledger.with_name("ledger.duckdb.damaged-1")
    assert ready_state(folder, None) == []


def test_an_old_ledger_that_is_damaged_is_named(folder: StateFolder) -> None:
    folder.old_ledger.write_bytes(b"nothing that DuckDB could read" * 1000)
    with pytest.raises(DamageError, match=r"the ledger .*ledger.duckdb is damaged: .*run: harvester repair"):
        ready_state(folder, None)


def test_a_ledger_of_a_newer_version_is_refused_in_one_line(folder: StateFolder) -> None:
    opened(folder).close()
    store_version(folder, 2)
    message = r"ledger.sqlite is of version 2, this harvester writes version 1; run the version that made it$"
    with pytest.raises(StorageError, match=message):
        opened(folder)
    with pytest.raises(StorageError, match=message):
        read_ledger(folder.root, "jobs")


def store_version(folder: StateFolder, version: int) -> None:
    from jobs.ledger.store.sqlite import SqliteStore

    store = SqliteStore(folder.ledger)
    store._db.execute("UPDATE ledger SET schema_version = ?", [version])
    store.close()


def test_a_ledger_goes_into_a_database_once_and_commands_find_it_there(folder: StateFolder, database: Postgres) -> None:
    before = made(folder)
    ready_state(folder, None)
    url = database.new()
    (line,) = ready_state(folder, url)
    assert line.startswith("moved the ledger (1 jobs) from ledger.sqlite to postgresql://")
    assert line.endswith("; the file is kept as ledger.sqlite.migrated")
    assert ready_state(folder, url) == []
    assert everything(folder) == before
    ledger = opened(folder)
    assert isinstance(ledger_place(folder), PostgresPlace)
    ledger.check()
    assert ledger.commit(*held(ledger), PartStats(rows_ok=3), 7202.0)
    ledger.check()
    ledger.close()
    assert repair(folder).changes_lost == 0
    with pytest.raises(
        StateError, match=r"the ledger of .* is in postgresql://.*; give it as `ledger:`, or begin an empty one by removing"
    ):
        ready_state(folder, None)


def held(ledger: Ledger) -> tuple[str, str, int]:
    (row,) = [row for row in ledger.table("leases").to_pylist() if row["state"] == "leased"]
    return row["lease_id"], row["job_id"], row["slice_id"]


def test_two_ledgers_with_jobs_are_not_mixed(folder: StateFolder, database: Postgres) -> None:
    made(folder)
    url = database.new()
    ready_state(folder, url)
    kept = folder.root / "ledger.sqlite.migrated"
    kept.replace(folder.ledger)
    with pytest.raises(StateError, match=r"has jobs, and so has .*ledger.sqlite: move that file away, or give an empty database"):
        ready_state(folder, url)


def test_a_ledger_that_cannot_be_set_aside_behind_its_move_is_named(
    folder: StateFolder, database: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(folder)
    ready_state(folder, None)
    replace = Path.replace

    def refuse(path: Path, target: Path) -> Path:
        if path == folder.ledger:
            raise OSError(errno.EACCES, "Permission denied")
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(StorageError, match=r"^cannot move .*ledger.sqlite: permission denied; "):
        ready_state(folder, database.new())


@pytest.mark.parametrize("table", TABLES)
def test_users_sql_sees_the_types_that_duckdb_reads_in_the_statements(table: str) -> None:
    with duckdb.connect() as connection:
        connection.execute(statements()["schema"])
        written = connection.sql(f"SELECT name, type FROM pragma_table_info('{table}')").fetchall()
        rows = columns(table).empty_table()
        connection.register("rows_of_table", rows)
        connection.execute("CREATE TABLE loaded AS FROM rows_of_table")
        assert connection.sql("SELECT name, type FROM pragma_table_info('loaded')").fetchall() == written


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_value_of_another_type_is_refused_by_both_stores(kind: str, folder: StateFolder, request: pytest.FixtureRequest) -> None:
    if kind == "postgres":
        ready_state(folder, request.getfixturevalue("database").new())
    ledger = opened(folder)
    with pytest.raises(StorageError, match="the ledger cannot be written or read"):
        ledger._book.store.run("add_harvest", ["m", 0.0, "many", 1, 1.0])
    ledger._book.store.run("add_harvest", ["m", 0.0, 1, 1, 1.0])
    ledger.close()
