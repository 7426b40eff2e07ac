"""One suite over every target: what `connectors.targets.target.Target` promises, also to a writer that is killed."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from connectors.open import open_source
from connectors.parquet.parts import Part, PartsSink
from connectors.targets.table import TableCopy
from connectors.targets.target import Target, TargetName
from harvester.errors import StorageError, UsageError

ROWS = 5  # a part


def part_table(index: int, mark: str = "a") -> pa.Table:
    ids = range(index * ROWS, (index + 1) * ROWS)
    texts = [None if number % 4 == 0 else f'{mark} "{number}", ü\n' for number in ids]
    return pa.table({"row_id": pa.array(ids, pa.int64()), "output": texts, "tags": [[mark]] * ROWS})


def rows_of(table: pa.Table) -> list[tuple[int, str | None]]:
    return sorted(zip(table["row_id"].to_pylist(), table["output"].to_pylist(), strict=True))


def read_csv(path: Path) -> list[tuple[int, str | None]]:
    with path.open(newline="", encoding="utf-8") as file:
        return sorted((int(row["row_id"]), row["output"] or None) for row in csv.DictReader(file))


def read_jsonl(path: Path) -> list[tuple[int, str | None]]:
    return sorted((row["row_id"], row["output"]) for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()))


def read_table(path: Path) -> list[tuple[int, str | None]]:
    with duckdb.connect(path, read_only=True) as connection:
        return connection.sql("select row_id, output from done where job_id = 'docs-1' order by row_id").fetchall()


@dataclass(frozen=True)
class Kind:
    name: str
    read: Callable[[Path], list[tuple[int, str | None]]]

    def target(self, folder: Path) -> Target:
        return TargetName.of(str(folder / self.name)).open("docs-1")

    def rows(self, folder: Path) -> list[tuple[int, str | None]]:
        return self.read(folder / self.name.removesuffix(":done"))


KINDS = {
    "parquet": Kind("out.parquet", lambda path: rows_of(pq.read_table(path))),
    "jsonl": Kind("out.jsonl", read_jsonl),
    "csv": Kind("out.csv", read_csv),
    "table": Kind("out.duckdb:done", read_table),
}


@pytest.fixture(params=list(KINDS.values()), ids=list(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.fixture
def sink(tmp_path: Path) -> PartsSink:
    return PartsSink(tmp_path / "parts")


def write(sink: PartsSink, index: int, mark: str = "a") -> None:
    sink.write(f"part-{index:06d}", part_table(index, mark), {})


def expected(sink: PartsSink) -> list[tuple[int, str | None]]:
    return sorted(row for part in sink.parts() for row in rows_of(part.read()))


def test_a_target_takes_up_parts_as_they_come_and_holds_each_once(kind: Kind, sink: PartsSink, tmp_path: Path) -> None:
    with kind.target(tmp_path) as target:
        for index in (2, 0, 1):
            write(sink, index)
            target.update(sink.parts(), is_final=False)
        assert target.update(sink.parts(), is_final=True) == 3 * ROWS
        assert kind.rows(tmp_path) == expected(sink)
        assert target.update(sink.parts(), is_final=True) == 3 * ROWS
    assert kind.rows(tmp_path) == expected(sink)


def test_rows_are_there_while_the_job_runs(kind: Kind, sink: PartsSink, tmp_path: Path) -> None:
    write(sink, 0)
    with kind.target(tmp_path) as target:
        assert target.update(sink.parts(), is_final=False) == ROWS
        assert kind.rows(tmp_path) == expected(sink)


def test_opened_again_it_goes_on(kind: Kind, sink: PartsSink, tmp_path: Path) -> None:
    for index in range(4):
        write(sink, index)
        with kind.target(tmp_path) as target:
            assert target.update(sink.parts(), is_final=True) == (index + 1) * ROWS
    assert kind.rows(tmp_path) == expected(sink)


def test_a_part_that_was_retried_replaces_its_rows(kind: Kind, sink: PartsSink, tmp_path: Path) -> None:
    for index in range(3):
        write(sink, index)
    with kind.target(tmp_path) as target:
        target.update(sink.parts(), is_final=True)
        write(sink, 1, mark="b")
        target.update(sink.parts(), is_final=True)
    assert kind.rows(tmp_path) == expected(sink)
    assert any((text or "").startswith("b") for _, text in kind.rows(tmp_path))


CHANGED = {  # what a table would change: its column, the values of the results, the message
    "fraction": ("INTEGER", [2.0, 1.7], "its column 'value' is INTEGER, in the results it is DOUBLE: 1.7 would become 2"),
    "scale": ("DECIMAL(10,1)", [Decimal("1.25")], r"is DECIMAL\(10,1\), in the results it is DECIMAL\(3,2\): 1.25 would become 1.3"),
    "fraction in a list": ("TINYINT[]", [[1.7]], r"is TINYINT\[\], in the results it is DOUBLE\[\]: \[1.7\] would become \[2\]"),
    "whole double in a float": ("FLOAT", [0.1, 123456789.0], "is FLOAT, in the results it is DOUBLE: 123456789.0 would become 123456792"),
    "tiny double in a float": ("FLOAT", [0.1, 1e-60], "is FLOAT, in the results it is DOUBLE: 1e-60 would become 0"),
    "double above a float": ("FLOAT", [1e60], "DOUBLE with value 1e.60 can't be cast because the value is out of range"),
    "whole text in a float": ("FLOAT", ["0.1", "-16777217"], "is FLOAT, in the results it is VARCHAR: -16777217 would become -16777216"),
    "integer in a float": ("FLOAT", [16777217], "is FLOAT, in the results it is BIGINT: 16777217 would become 16777216"),
    "whole text in a double": (
        "DOUBLE",
        ["9007199254740993"],
        "is DOUBLE, in the results it is VARCHAR: 9007199254740993 would become 9007199254740992",
    ),
    "text above a double": ("DOUBLE", ["1e400"], "is DOUBLE, in the results it is VARCHAR: 1e400 would become inf"),
    "text below a double": ("DOUBLE", ["1.5e-400"], "is DOUBLE, in the results it is VARCHAR: 1.5e-400 would become 0"),
    "time of a day": ("DATE", [datetime.fromisoformat("2026-01-01T10:00")], "2026-01-01 10:00:00 would become 2026-01-01"),
    "fraction in text": ("INTEGER", ["1.7"], "is INTEGER, in the results it is VARCHAR: 1.7 would become 2"),
    "a word": ("INTEGER", ["one"], "Could not convert string 'one' to INT32"),
    "constraint": ("INTEGER CHECK (value > 1)", [1], "CHECK constraint failed"),
}


@pytest.mark.parametrize(("kind", "values", "message"), CHANGED.values(), ids=CHANGED.keys())
def test_a_table_that_would_change_a_value_takes_none(sink: PartsSink, tmp_path: Path, kind: str, values: list[Any], message: str) -> None:
    with duckdb.connect(tmp_path / "out.duckdb") as connection:
        connection.execute(f"CREATE TABLE done (job_id VARCHAR, row_id BIGINT, value {kind})")
    sink.write("part-000000", pa.table({"row_id": range(len(values)), "value": values}), {})
    with pytest.raises(
        StorageError, match=f"does not take the results of job docs-1: .*{message}.*(;|that holds both, or) name another table"
    ):
        KINDS["table"].target(tmp_path).update(sink.parts(), is_final=True)
    with duckdb.connect(tmp_path / "out.duckdb", read_only=True) as connection:
        assert connection.sql("select count(*) from done").fetchall() == [(0,)]


def test_a_table_of_other_types_that_hold_the_values_takes_them(sink: PartsSink, tmp_path: Path) -> None:
    kinds = {"whole": "SMALLINT", "price": "DECIMAL(10,2)", "text": "DECIMAL(10,2)", "number": "VARCHAR", "nothing": "INTEGER"}
    with duckdb.connect(tmp_path / "out.duckdb") as connection:
        connection.execute(f"CREATE TABLE done (job_id VARCHAR, row_id INTEGER, {', '.join(f'{name} {kinds[name]}' for name in kinds)})")
    values = {"whole": [3.0], "price": [12.34], "text": ["12.50"], "number": [0.1], "nothing": pa.array([None], pa.float64())}
    sink.write("part-000000", pa.table({"row_id": [0], **values}), {})
    assert KINDS["table"].target(tmp_path).update(sink.parts(), is_final=True) == 1
    with duckdb.connect(tmp_path / "out.duckdb", read_only=True) as connection:
        found = connection.sql("select whole, price, text, number, nothing from done").fetchall()
    assert found == [(3, Decimal("12.34"), Decimal("12.50"), "0.1", None)]


DAYS = {"decimals": [Decimal("12.50"), Decimal("7.00")], "doubles": [12.5, 7.25], "text": ["12.5", "7"]}


@pytest.mark.parametrize("first", DAYS)
def test_a_table_takes_numbers_whose_type_differs_from_day_to_day(sink: PartsSink, tmp_path: Path, first: str) -> None:
    for number, day in enumerate(sorted(DAYS, key=lambda day: day != first)):
        sink.write(f"part-{number:06d}", pa.table({"row_id": [2 * number, 2 * number + 1], "value": DAYS[day]}), {})
    assert KINDS["table"].target(tmp_path).update(sink.parts(), is_final=True) == 6


ROUNDED = {
    "doubles": ("FLOAT", [0.1, 123456789.5, 1e20, 0.0, float("inf"), float("nan"), None]),
    "text": ("FLOAT", ["0.1", "1e20", "7", "0.0e5", "inf", None]),
    "decimals": ("FLOAT", [Decimal("0.123456789"), Decimal("12.000000000")]),
    "lists": ("FLOAT[]", [[0.1, None], None]),
    "structs": ("STRUCT(a FLOAT, b DOUBLE)", [{"a": 0.1, "b": 0.1}]),
    "text in doubles": ("DOUBLE", ["0.12345678901234567890", "9007199254740994", "1e20", "100000000000000000000"]),
}


@pytest.mark.parametrize(("kind", "values"), ROUNDED.values(), ids=ROUNDED.keys())
def test_a_table_of_floats_takes_numbers_with_the_digits_that_it_has(sink: PartsSink, tmp_path: Path, kind: str, values: list[Any]) -> None:
    with duckdb.connect(tmp_path / "out.duckdb") as connection:
        connection.execute(f"CREATE TABLE done (job_id VARCHAR, row_id BIGINT, value {kind})")
    sink.write("part-000000", pa.table({"row_id": range(len(values)), "value": values}), {})
    assert KINDS["table"].target(tmp_path).update(sink.parts(), is_final=True) == len(values)


def test_rows_of_a_parquet_file_are_in_the_order_of_the_input(sink: PartsSink, tmp_path: Path) -> None:
    """Half of the first slice was split off it, so its part has the highest number."""
    for number, index in enumerate([0, 2, 3, 1]):
        sink.write(f"part-{number:06d}", part_table(index), {})
    KINDS["parquet"].target(tmp_path).update(sink.parts(), is_final=True)
    assert pq.read_table(tmp_path / "out.parquet")["row_id"].to_pylist() == list(range(4 * ROWS))


def test_types_that_duckdb_lacks_are_kept_as_types_that_it_has(sink: PartsSink, tmp_path: Path) -> None:
    long = "1" * 45 + ".25"
    halves = pa.array([1.5], pa.float32()).cast(pa.float16())
    columns = {"half": halves, "halves": pa.ListArray.from_arrays([0, 1], halves), "long": pa.array([Decimal(long)], pa.decimal256(50, 2))}
    sink.write("part-000000", pa.table({"row_id": [0], **columns}), {})
    KINDS["table"].target(tmp_path).update(sink.parts(), is_final=True)
    with duckdb.connect(tmp_path / "out.duckdb", read_only=True) as connection:
        assert connection.sql("select half, halves, long from done").fetchall() == [(1.5, [1.5], long)]


def test_no_parts_are_no_rows(kind: Kind, tmp_path: Path) -> None:
    with kind.target(tmp_path) as target:
        assert target.update([], is_final=True) == 0


KILLED = """
import os, sys
from pathlib import Path
from connectors.parquet.parts import PartsSink
from connectors import durable
from connectors.targets import appended
from connectors.targets import table
from connectors.targets.target import TargetName

calls = 0
def dying(real):
    def call(*given, **named):
        global calls
        calls += 1
        if calls > int(sys.argv[3]):
            os._exit(9)
        return real(*given, **named)
    return call

os.fsync, os.replace = dying(os.fsync), dying(os.replace)
table.TableCopy._take = dying(table.TableCopy._take)
appended.PARTS_AT_ONCE = table.PARTS_AT_ONCE = 1
with TargetName.of(sys.argv[1]).open("docs-1") as target:
    target.update(PartsSink(Path(sys.argv[2])).parts()[:2], is_final=False)
    target.update(PartsSink(Path(sys.argv[2])).parts(), is_final=True)
"""


@pytest.mark.parametrize("calls", [0, 1, 2, 4, 7])
def test_a_killed_writer_goes_on_without_a_row_twice(kind: Kind, sink: PartsSink, tmp_path: Path, calls: int) -> None:
    for index in range(5):
        write(sink, index)
    command = [sys.executable, "-c", KILLED, str(tmp_path / kind.name), str(tmp_path / "parts"), str(calls)]
    assert subprocess.run(command, check=False).returncode in (0, 9)
    with kind.target(tmp_path) as target:
        assert target.update(sink.parts(), is_final=True) == 5 * ROWS
    assert kind.rows(tmp_path) == expected(sink)
    assert not [path for path in tmp_path.iterdir() if ".tmp-" in path.name]


@pytest.mark.parametrize("extra", [b"torn row without an e", b'{"row_id": 9}\n'], ids=["half a row", "a row"])
@pytest.mark.parametrize("name", ["jsonl", "csv"])
def test_what_the_journal_does_not_know_is_cut_off(sink: PartsSink, tmp_path: Path, name: str, extra: bytes) -> None:
    kind = KINDS[name]
    write(sink, 0)
    with kind.target(tmp_path) as target:
        target.update(sink.parts(), is_final=False)
    with (tmp_path / kind.name).open("ab") as file:
        file.write(extra)
    write(sink, 1)
    with kind.target(tmp_path) as target:
        target.update(sink.parts(), is_final=True)
    assert kind.rows(tmp_path) == expected(sink)


HARMS: dict[str, Callable[[Path, Path], object]] = {
    "the file removed": lambda file, journal: file.unlink(),
    "the file cut": lambda file, journal: os.truncate(file, 20),
    "the file replaced": lambda file, journal: (file.rename(f"{file}.old"), file.write_bytes(Path(f"{file}.old").read_bytes() * 2))[0],
    "the journal's last line torn": lambda file, journal: os.truncate(journal, journal.stat().st_size - 5),
    "the journal's head torn": lambda file, journal: os.truncate(journal, 9),
    "the journal empty": lambda file, journal: os.truncate(journal, 0),
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS.keys())
@pytest.mark.parametrize("name", ["jsonl", "csv"])
def test_whatever_became_of_file_or_journal_each_row_is_there_once(sink: PartsSink, tmp_path: Path, name: str, harm: Any) -> None:
    kind = KINDS[name]
    for index in range(2):
        write(sink, index)
        with kind.target(tmp_path) as target:
            target.update(sink.parts(), is_final=False)
    harm(tmp_path / kind.name, tmp_path / f".{kind.name}.harvester")
    write(sink, 2)
    with kind.target(tmp_path) as target:
        assert target.update(sink.parts(), is_final=True) == 3 * ROWS
    assert kind.rows(tmp_path) == expected(sink)


@pytest.mark.parametrize("name", ["parquet", "jsonl", "csv"])
def test_a_file_of_someone_else_is_left_alone(sink: PartsSink, tmp_path: Path, name: str) -> None:
    path = tmp_path / KINDS[name].name
    pq.write_table(pa.table({"a": [1]}), path)
    before = path.read_bytes()
    with pytest.raises(StorageError, match="is there already"):
        KINDS[name].target(tmp_path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["parquet", "jsonl", "csv"])
def test_a_file_of_another_job_is_left_alone(sink: PartsSink, tmp_path: Path, name: str) -> None:
    write(sink, 0)
    with KINDS[name].target(tmp_path) as target:
        target.update(sink.parts(), is_final=True)
    with pytest.raises(StorageError, match=r"move it away or name another file"):
        TargetName.of(str(tmp_path / KINDS[name].name)).open("docs-2")
    assert KINDS[name].rows(tmp_path) == expected(sink)
    path = tmp_path / KINDS[name].name
    path.rename(tmp_path / "away")
    with TargetName.of(str(path)).open("docs-2") as other:
        assert other.update(sink.parts(), is_final=True) == ROWS
    assert KINDS[name].rows(tmp_path) == expected(sink)
    with pytest.raises(StorageError, match=r"move it away or name another file"):
        KINDS[name].target(tmp_path)


def test_two_jobs_may_share_a_table_and_a_schema_may_be_named(sink: PartsSink, tmp_path: Path) -> None:
    write(sink, 0)
    for job in ("docs-1", "docs-2"):
        with TargetName.of(f"{tmp_path}/out.duckdb:mine.done").open(job) as target:
            assert target.update(sink.parts(), is_final=True) == ROWS
    with duckdb.connect(tmp_path / "out.duckdb") as connection:
        counted = connection.sql("select job_id, count(*) from mine.done group by all order by all").fetchall()
    assert counted == [("docs-1", ROWS), ("docs-2", ROWS)]


def test_a_column_that_was_empty_in_the_first_job_takes_the_type_of_the_next(tmp_path: Path) -> None:
    """pandas writes a column without any value with no type of its own."""
    empty = {"note": pa.nulls(1), "tags": pa.array([[None]], pa.list_(pa.null()))}
    kept: list[dict[str, Any]] = [empty, {"note": [5], "tags": [["new"]]}, empty, {"note": [6], "tags": [None]}]
    for number, columns in enumerate(kept):
        sink = PartsSink(tmp_path / f"parts-{number}")
        sink.write("part-000000", pa.table({"row_id": [number], "output": ["x"], **columns}), {})
        with TargetName.of(f"{tmp_path}/out.duckdb:done").open(f"docs-{number}") as target:
            assert target.update(sink.parts(), is_final=True) == 1
    with duckdb.connect(tmp_path / "out.duckdb") as connection:
        found = connection.sql("select row_id, note, tags from done order by row_id")
        assert [str(kind) for kind in found.types] == ["BIGINT", "BIGINT", "VARCHAR[]"]
        assert found.fetchall() == [(0, None, [None]), (1, 5, ["new"]), (2, None, [None]), (3, 6, None)]


@pytest.mark.parametrize(
    ("first", "then", "kind"),
    [
        ({"price": 1.5, "note": None}, {"price": 2.5, "note": "x"}, "STRUCT(price DOUBLE, note VARCHAR)"),
        ({"price": 1.5, "note": None}, {"price": 2, "note": "x"}, None),
        ({"lang": "en", "score": None}, {"score": 5}, None),
    ],
    ids=["one empty field", "another type", "a field less"],
)
def test_a_struct_with_an_empty_field_keeps_the_values_of_the_job_before(
    tmp_path: Path, first: dict[str, Any], then: dict[str, Any], kind: str | None
) -> None:
    """``kind``: of the column afterwards; None: the later job is refused."""
    for number, meta in enumerate((first, then)):
        sink = PartsSink(tmp_path / f"parts-{number}")
        sink.write("part-000000", pa.table({"row_id": [number], "output": ["x"], "meta": [meta]}), {})
        with (
            TargetName.of(f"{tmp_path}/out.duckdb:done").open(f"docs-{number}") as target,
            pytest.raises(StorageError, match="does not take the results of job docs-1") if number and kind is None else nullcontext(),
        ):
            target.update(sink.parts(), is_final=True)
    with duckdb.connect(tmp_path / "out.duckdb") as connection:
        found = connection.sql("select meta from done order by row_id")
        assert found.fetchall() == [(first,)] + ([(then,)] if kind else [])
        assert kind in (None, str(found.types[0]))


def test_an_indexed_table_whose_column_was_empty_is_refused_in_words_of_the_table(tmp_path: Path) -> None:
    for number, note in enumerate((pa.nulls(1), pa.array([5]))):
        sink = PartsSink(tmp_path / f"parts-{number}")
        sink.write("part-000000", pa.table({"row_id": [number], "output": ["x"], "note": note}), {})
        with (
            TargetName.of(f"{tmp_path}/out.duckdb:done").open(f"docs-{number}") as target,
            pytest.raises(StorageError, match=r"table done of .* does not take the results of job docs-1") if number else nullcontext(),
        ):
            target.update(sink.parts(), is_final=True)
        with duckdb.connect(tmp_path / "out.duckdb") as connection:
            connection.execute("CREATE INDEX IF NOT EXISTS by_row ON done(row_id)")


@pytest.mark.parametrize("name", ["sales", "memory", "my.sales", 'sales "new"'])
def test_a_schema_may_be_named_like_its_file(sink: PartsSink, tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.duckdb"
    with TableCopy(path, f"{name.partition('.')[0]}.done", "docs-1") as target:
        for index in range(2):
            write(sink, index)
            assert target.update(sink.parts(), is_final=False) == (index + 1) * ROWS
    with open_source(str(path), table=f"{name.partition('.')[0]}.done") as source:
        assert source.row_count == 2 * ROWS


def test_a_new_database_has_its_name_when_it_is_whole(sink: PartsSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB does not recognize a file whose creator was killed halfway."""
    path, link, seen = tmp_path / "new.duckdb", os.link, []

    def linked(new: Path, name: Path) -> None:
        seen.append((name, name.exists()))
        duckdb.connect(new, read_only=True).close()
        link(new, name)

    monkeypatch.setattr(os, "link", linked)
    write(sink, 0)
    with TargetName.of(f"{path}:done").open("docs-1") as target:
        assert target.update(sink.parts(), is_final=True) == ROWS
    assert seen == [(path, False)]
    assert [found.name for found in tmp_path.glob("*duckdb*")] == [path.name]


def test_a_table_that_was_dropped_is_filled_again(sink: PartsSink, tmp_path: Path) -> None:
    kind = KINDS["table"]
    write(sink, 0)
    for _ in range(2):
        with kind.target(tmp_path) as target:
            assert target.update(sink.parts(), is_final=True) == ROWS
        assert kind.rows(tmp_path) == expected(sink)
        with duckdb.connect(tmp_path / "out.duckdb") as connection:
            connection.execute("drop table done")


def test_a_table_of_other_columns_is_refused_and_left_as_it_is(sink: PartsSink, tmp_path: Path) -> None:
    write(sink, 0)
    with duckdb.connect(tmp_path / "out.duckdb") as connection:
        connection.execute("create table done as select 1 as a")
    with KINDS["table"].target(tmp_path) as target, pytest.raises(StorageError, match=r"does not take the results .*name another table"):
        target.update(sink.parts(), is_final=True)
    with duckdb.connect(tmp_path / "out.duckdb") as connection:
        assert connection.sql("from done").fetchall() == [(1,)]


def test_an_input_column_called_job_id_keeps_its_name(tmp_path: Path, sink: PartsSink) -> None:
    sink.write("part-000000", part_table(0).append_column("job_id", pa.array(["mine"] * ROWS)), {})
    with KINDS["table"].target(tmp_path) as target:
        target.update(sink.parts(), is_final=True)
    with duckdb.connect(tmp_path / "out.duckdb") as connection:
        assert connection.sql("select distinct _job_id, job_id from done").fetchall() == [("docs-1", "mine")]


def hold(path: Path, ready: Any, go: Any) -> None:
    connection = duckdb.connect(path)
    ready.set()
    go.wait(30)
    connection.close()


def test_a_database_that_another_process_has_open_is_waited_for_and_named(sink: PartsSink, tmp_path: Path) -> None:
    write(sink, 0)
    context = multiprocessing.get_context("spawn")
    ready, go = context.Event(), context.Event()
    holder = context.Process(target=hold, args=(tmp_path / "out.duckdb", ready, go))
    holder.start()
    assert ready.wait(30)
    with pytest.raises(StorageError, match=rf"is open in another process \(PID {holder.pid}\); close it there and run this again"):
        TableCopy(tmp_path / "out.duckdb", "done", "docs-1", patience_s=0.0).update(sink.parts(), is_final=True)

    def let_go(seconds: float) -> None:
        go.set()
        holder.join(30)

    patient = TableCopy(tmp_path / "out.duckdb", "done", "docs-1", sleep=let_go)
    assert patient.update(sink.parts(), is_final=True) == ROWS


@pytest.mark.parametrize("name", ["jsonl", "csv"])
def test_two_writers_of_one_file_are_kept_apart(tmp_path: Path, name: str) -> None:
    with KINDS[name].target(tmp_path), pytest.raises(StorageError, match="another process writes to"):
        KINDS[name].target(tmp_path)
    KINDS[name].target(tmp_path).close()


def test_parquet_is_written_anew_only_when_it_has_grown_by_a_quarter_or_at_the_end(sink: PartsSink, tmp_path: Path) -> None:
    written = []
    with KINDS["parquet"].target(tmp_path) as target:
        for index in range(12):
            write(sink, index)
            written.append(target.update(sink.parts(), is_final=index == 11) // ROWS)
    assert written == [1, 2, 3, 4, 5, 5, 7, 7, 9, 9, 9, 12]


@pytest.mark.parametrize("name", ["jsonl", "csv"])
def test_lines_are_written_anew_only_when_a_quarter_was_retried_or_at_the_end(sink: PartsSink, tmp_path: Path, name: str) -> None:
    for index in range(16):
        write(sink, index)
    path, written = tmp_path / KINDS[name].name, []
    with KINDS[name].target(tmp_path) as target:
        target.update(sink.parts(), is_final=False)
        for index in range(9):
            before = path.stat().st_ino
            write(sink, index, "b")
            target.update(sink.parts(), is_final=False)
            written.append(path.stat().st_ino != before)
        assert written == [False, False, False, True, False, False, False, True, False]
        write(sink, 16)
        assert target.update(sink.parts(), is_final=False) == 17 * ROWS
        assert path.stat().st_ino == before, "new parts are appended meanwhile"
        target.update(sink.parts(), is_final=True)
        assert KINDS[name].rows(tmp_path) == expected(sink)
        sink.put_aside("part-000002")
        target.update(sink.parts(), is_final=False)
        assert KINDS[name].rows(tmp_path) == expected(sink), "rows of a part that is gone go at once"


def test_a_parquet_copy_has_few_row_groups(sink: PartsSink, tmp_path: Path) -> None:
    """Parts have 256 rows, and a file of row groups of 256 rows is slow to read."""
    for index in range(40):
        sink.write(f"part-{index:06d}", pa.table({"row_id": range(256 * index, 256 * (index + 1)), "output": ["text"] * 256}), {})
    with KINDS["parquet"].target(tmp_path) as target:
        assert target.update(sink.parts(), is_final=True) == 40 * 256
    found = pq.ParquetFile(tmp_path / "out.parquet")
    assert (found.num_row_groups, found.read()["row_id"].to_pylist()) == (1, list(range(40 * 256)))


def test_a_parquet_copy_is_in_the_order_of_the_input(sink: PartsSink, tmp_path: Path) -> None:
    for index in (2, 0, 1):
        write(sink, index)
    with KINDS["parquet"].target(tmp_path) as target:
        target.update(sink.parts(), is_final=True)
    assert pq.read_table(tmp_path / "out.parquet")["row_id"].to_pylist() == list(range(3 * ROWS))


def test_a_disk_error_is_one_line_that_names_the_file(kind: Kind, sink: PartsSink, tmp_path: Path) -> None:
    write(sink, 0)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot write .*out\..*: .*; ") as caught, kind.target(tmp_path / "file") as target:
        target.update(sink.parts(), is_final=True)
    assert "\n" not in caught.value.message


NAMES = {
    "a DuckDB file alone": ("out.duckdb", "name the table too, as out.duckdb:results"),
    "no ending": ("out", "unknown kind of target 'out'; give FILE.parquet"),
    "an array": ("out.json", "unknown kind of target 'out.json'"),
    "the home of nobody": ("~nosuchuser/out.csv", "of a user who is unknown here; give a path without ~"),
    "an address": ("s3://bucket/out.parquet", "are written to this machine's disks"),
}


@pytest.mark.parametrize(("name", "message"), NAMES.values(), ids=NAMES.keys())
def test_a_name_that_says_no_target_is_wrong_use(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TargetName.of(name)


class Copying(RuleBasedStateMachine):
    """Parts come and are retried, the writer stops and comes back: in the end each row is there once, as it is in its part."""

    kind: Kind
    root: Path

    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=self.root))
        self.sink = PartsSink(self.folder / "parts")
        self.target = self.kind.target(self.folder)

    @rule(index=st.integers(0, 5), mark=st.sampled_from("abc"))
    def finish_part(self, index: int, mark: str) -> None:
        write(self.sink, index, mark)

    @rule(is_final=st.booleans())
    def update(self, is_final: bool) -> None:
        rows = self.target.update(self.sink.parts(), is_final=is_final)
        assert rows <= len(expected(self.sink))
        if is_final and self.sink.parts():
            assert self.kind.rows(self.folder) == expected(self.sink)

    @rule()
    def come_back(self) -> None:
        self.target.close()
        self.target = self.kind.target(self.folder)

    def teardown(self) -> None:
        if hasattr(self, "target"):
            self.target.update(self.sink.parts(), is_final=True)
            self.target.close()
            assert not self.sink.parts() or self.kind.rows(self.folder) == expected(self.sink)


def test_any_order_of_parts_retries_and_restarts_ends_with_each_row_once(kind: Kind, tmp_path: Path) -> None:
    machine = type("Run", (Copying,), {"kind": kind, "root": tmp_path})
    run_state_machine_as_test(machine, settings=settings(max_examples=8, stateful_step_count=12, deadline=None))


def test_a_part_knows_its_rows_and_its_edition(sink: PartsSink) -> None:
    write(sink, 0)
    (before,) = sink.parts()
    write(sink, 0, "b")
    (after,) = sink.parts()
    assert isinstance(after, Part)
    assert (before.rows, before.name) == (ROWS, "part-000000")
    assert before.edition != after.edition
