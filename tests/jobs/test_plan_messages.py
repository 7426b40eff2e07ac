"""Every field of a planned job, every message about its columns, and the folder that it will live in."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from harvester.errors import ColumnError, SourceError, StorageError, UsageError
from jobs.plan.columns import text_columns
from jobs.plan.job import check_deadline
from jobs.spec import JobSpec, OnLong, SourceSpec
from jobs.storage.folder import STATE_VERSION, StateFolder, part_name
from jobs.tasks.load import resolve_task
from tests.fakes.table_source import TableSource, ask, ids, plan, source


def test_a_job_is_what_was_asked_for() -> None:
    told: dict[str, Any] = {"on_long": OnLong.SPLIT, "max_error_rate": 0.25, "weight": 3.0, "deadline_at_s": 99.0}
    planned = plan(source(a=1, b=1), column="b", keep=("b", "a", "b"), max_tokens=7, temperature=0.5, id_column=None, **told)
    assert planned.spec == JobSpec(
        id="docs-7f3a",
        key=planned.spec.key,
        source=SourceSpec(uri="/data/docs.parquet"),
        fingerprint="f1",
        task=resolve_task("summarize", max_tokens=7, temperature=0.5),
        column="b",
        keep=("b", "a"),
        model="m",
        rows_total=3,
        created_at_s=5.0,
        **told,
    )
    assert len(planned.spec.key) == 64
    assert planned.notes == ()
    assert [item.row_count for item in planned.slices] == [3]


@pytest.mark.parametrize(
    ("columns", "request_", "message"),
    [
        (
            {"a": 1, "b": 1},
            {**ask("{a} {b}"), "on_long": OnLong.SPLIT},
            "--on-long split cuts the text column, and the prompt names several; say which one with --column",
        ),
        ({"a": 1, "b": 1}, {}, "several columns hold text: a, b; name the one to use with --column"),
        (
            {"n": pa.int64(), "d": pa.date32()},
            {},
            "no column of the source holds text (n int64, d date32[day]); name one with --column, its values are written out as text",
        ),
        (
            {"a": 1, "b": 1},
            {**ask("{a}"), "column": "b"},
            "the prompt does not use column b; write {text} or {b} into it, or leave --column out",
        ),
        ({"title": 1}, {"keep": ("titel",)}, "--keep names column titel, which the source does not have; did you mean title?"),
        ({"title": 1}, {"id_column": "zz"}, "--id-column names column zz, which the source does not have; its columns: title"),
        (
            {f"c{number}": 1 for number in range(25)},
            {"column": "C7"},
            f"did you mean c7? its columns: {', '.join(f'c{number}' for number in range(20))}, ...",
        ),
    ],
)
def test_a_column_that_does_not_fit(columns: dict[str, Any], request_: dict[str, Any], message: str) -> None:
    with pytest.raises(ColumnError) as caught:
        plan(source(**columns), **request_)
    assert message in caught.value.message


def test_a_source_without_rows_and_a_deadline_that_has_passed() -> None:
    with pytest.raises(SourceError, match=r"^source /data/docs.parquet has no rows; submit one with at least one row$"):
        plan(source(rows=0, a=1))
    with pytest.raises(UsageError, match=r"^deadline_at_s 7\.5 has passed: in Unix time it is 8 now; give a later one, or none$"):
        check_deadline(7.5, 7.6)
    with pytest.raises(UsageError, match=r"^deadline_at_s 7\.5 has passed"):
        check_deadline(7.5, 7.5)
    check_deadline(7.5, 7.4)
    check_deadline(None, 7.5)


def test_text_is_any_kind_of_string_column() -> None:
    kinds = {"s": pa.string(), "l": pa.large_string(), "v": pa.string_view(), "d": pa.dictionary(pa.int8(), pa.string()), "b": pa.binary()}
    schema = pa.schema([*kinds.items(), ("n", pa.dictionary(pa.int8(), pa.int64()))])
    assert text_columns(schema) == ["s", "l", "v", "d"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([3, 1, 2, 1, 3], "--id-column id has '3' in rows 0 and 4; choose a column whose values are unique"),
        ([1, None, 2, None], "--id-column id is null in row 1; choose a column with a value in every row"),
        (["x" * 99, "x" * 99], f"--id-column id has '{'x' * 80}' in rows 0 and 1; choose a column whose values are unique"),
    ],
    ids=["twice", "null", "long"],
)
def test_an_id_that_names_no_row(values: list[Any], message: str) -> None:
    with pytest.raises(ColumnError) as caught:
        plan(ids(values), id_column="id")
    assert caught.value.message == message


def test_an_id_is_found_twice_in_a_source_read_in_many_batches() -> None:
    many = pa.table({"text": ["t"] * 140_000, "id": [*range(139_999), 70_000]})
    with pytest.raises(ColumnError, match=r"has '70000' in rows 70000 and 139999;"):
        plan(TableSource(many, 70_000), id_column="id")
    with pytest.raises(ColumnError, match=r"has '70000' in rows 70000 and 139999;"):
        plan(TableSource(many, 140_000), id_column="id")


# -- the state folder -----------------------------------------------------------------------------------------------------------------


def test_everything_of_a_job_lies_below_its_name(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    places = [
        state.results("docs"),
        state.snapshot("docs"),
        state.spool("docs", 7, 2),
        state.inputs,
        state.files,
        state.batches,
        state.lock,
    ]
    names = ["jobs/docs/results", "jobs/docs/input", "jobs/docs/spool/slice-000007.g2.jsonl", "inputs", "files", "batches", "server.lock"]
    assert places == [tmp_path / name for name in names]
    assert (state.ledger, state.server, state.logs) == (tmp_path / "ledger.sqlite", tmp_path / "server.json", tmp_path / "logs")
    assert part_name(12) == "part-000012"


def test_a_folder_is_made_once_and_used_again(tmp_path: Path) -> None:
    state = StateFolder(tmp_path / "a" / "b")
    for _ in range(2):
        state.prepare()
    assert json.loads((state.root / "VERSION").read_text()) == {"version": STATE_VERSION}
    assert state.jobs.is_dir()
    assert state.logs.is_dir()


def test_a_folder_whose_version_a_full_disk_has_emptied_is_used_again(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    state.prepare()
    (tmp_path / "VERSION").write_bytes(b"")
    state.prepare()
    assert json.loads((tmp_path / "VERSION").read_text()) == {"version": STATE_VERSION}


@pytest.mark.parametrize(("marker", "found"), [('{"version": 9}', "9"), ("{}", "None"), ("7", "7"), ("x" * 50, f"'{'x' * 40}'")])
def test_a_folder_of_another_version_is_left_alone(tmp_path: Path, marker: str, found: str) -> None:
    (tmp_path / "VERSION").write_text(marker)
    with pytest.raises(StorageError) as caught:
        StateFolder(tmp_path).prepare()
    says = f"state folder {tmp_path} is of version {found}, this harvester writes version {STATE_VERSION}; "
    assert caught.value.message == says + "give a new folder with --state, or run the version that made it"
    assert (tmp_path / "VERSION").read_text() == marker


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=rf"^cannot use state folder {tmp_path}/file: File exists; give another one with --state$"):
        StateFolder(tmp_path / "file").prepare()


def test_whoever_holds_the_lock_serves_the_folder(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    assert not state.is_served()
    with state.lock.open("wb") as held:
        assert not state.is_served()
        fcntl.flock(held, fcntl.LOCK_EX)
        assert state.is_served()
    assert not state.is_served()


def test_what_a_dead_submit_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    for name in ("known/input", "unmade/input", "done/input", "done/results", ".staging-1/x", "results-only/results"):
        (state.jobs / name).mkdir(parents=True)
    state.forget_unmade(["known"])
    assert sorted(path.name for path in state.jobs.iterdir()) == ["done", "known", "results-only"]
