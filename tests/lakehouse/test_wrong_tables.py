"""Tables that are damaged, in ten ways a format: each is read exactly right, or refused in one line; never silently wrong."""

from __future__ import annotations

import bz2
import gzip
import json
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.memory import InMemoryCatalog

from connectors.files.form import TextForm
from connectors.open import open_source
from connectors.paths.rules import SourceRules
from harvester.errors import HarvesterError

Rows = list[dict[str, Any]]
THREE = pa.table({"id": [1, 2, 3], "text": ["a", "b", "c"]})
NINE = pa.table({"id": [9], "text": ["z"]})


@dataclass(frozen=True)
class Case:
    """``make`` gives what to open; ``expect`` is its rows, or what the refusal says."""

    make: Callable[[Path], str]
    expect: Rows | str
    form: TextForm | None = None
    rules: bool = False  # of a client that may read this folder alone


def put(name: str, content: bytes | str) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(folder / name)

    return make


def parquet(change: Callable[[Path], object], *tables: pa.Table) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        (folder / "docs").mkdir()
        for number, table in enumerate(tables or (THREE,)):
            pq.write_table(table, folder / "docs" / f"{number}.parquet", write_page_checksum=True)
        change(folder / "docs")
        return str(folder / "docs")

    return make


def damage(path: Path, how: Callable[[bytes], bytes]) -> None:
    path.write_bytes(how(path.read_bytes()))


def delta(change: Callable[[Path], object]) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        write_deltalake(folder / "docs", THREE)
        change(folder / "docs")
        return str(folder / "docs")

    return make


def last_log(path: Path) -> Path:
    return max((path / "_delta_log").glob("*.json"))


def point(path: Path, to: str) -> None:
    """The table's log names another file in place of its own."""
    log = last_log(path)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        if "add" in line:
            line["add"]["path"] = to
    log.write_text("\n".join(map(json.dumps, lines)))


def outside(path: Path) -> str:
    path.parent.with_name("secret").mkdir(exist_ok=True)
    found = path.parent.with_name("secret") / "x.parquet"
    pq.write_table(NINE, found)
    return str(found)


def iceberg(change: Callable[[Path, Any], object]) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        catalog = InMemoryCatalog("test", warehouse=f"file://{folder}")
        catalog.create_namespace("n")
        table = catalog.create_table("n.docs", THREE.schema)
        table.append(THREE)
        change(folder / "n" / "docs", table)
        return str(folder / "n" / "docs")

    return make


def newest(path: Path) -> Path:
    return max((path / "metadata").glob("*.metadata.json"))


def replace_in_metadata(path: Path, old: str, new: str) -> None:
    damage(newest(path), lambda raw: raw.replace(old.encode(), new.encode()))


def lance_set(change: Callable[[Path], object]) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        lance.write_dataset(THREE, folder / "docs.lance")
        change(folder / "docs.lance")
        return str(folder / "docs.lance")

    return make


def saved(change: Callable[[Path], object]) -> Callable[[Path], str]:
    """As `datasets.Dataset.save_to_disk` writes it."""

    def make(folder: Path) -> str:
        path = folder / "docs"
        path.mkdir()
        with pa.ipc.new_stream(path / "data-00000-of-00001.arrow", THREE.schema) as writer:
            writer.write_table(THREE)
        (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_split": None}))
        (path / "dataset_info.json").write_text("{}")
        change(path)
        return str(path)

    return make


def book(change: Callable[[Any], object]) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        made = openpyxl.Workbook()
        for row in (("id", "text"), (1, "a"), (2, "b")):
            made.active.append(row)
        change(made)
        made.save(folder / "docs.xlsx")
        return str(folder / "docs.xlsx")

    return make


ROWS, TWO = THREE.to_pylist(), THREE.slice(0, 2).to_pylist()
KEPT = [{"id": 1, "text": "a"}, {"id": 3, "text": "c"}]
CASES = {
    "csv of latin-1": Case(put("x.csv", "id,text\n1,Käse\n".encode("latin-1")), "line 2 is not UTF-8 .*--encoding latin-1"),
    "csv of latin-1, said": Case(put("x.csv", "id,text\n1,Käse\n".encode("latin-1")), [{"id": 1, "text": "Käse"}], TextForm("latin-1")),
    "csv of UTF-16": Case(put("x.csv", "id,text\n1,Käse\n".encode("utf-16")), [{"id": 1, "text": "Käse"}]),
    "csv of UTF-16 without mark": Case(put("x.csv", "id,text\n1,Käse\n".encode("utf-16-be")), [{"id": 1, "text": "Käse"}]),
    "csv of the wrong encoding": Case(put("x.csv", "id,text\n1,Käse\n".encode("latin-1")), "is not ascii", TextForm("ascii")),
    "csv with a mark": Case(put("x.csv", "\ufeffid,text\n1,a\n"), [{"id": 1, "text": "a"}]),
    "csv with CRLF in quotes": Case(put("x.csv", 'id,text\r\n1,"a\r\nb"\r\n'), [{"id": 1, "text": "a\r\nb"}]),
    "csv with an open quote": Case(put("x.csv", 'id,text\n1,"a\n2,b\n'), "line 2 is not CSV: a quote is left open"),
    "csv with text behind a quote": Case(put("x.csv", 'id,text\n1,"a"x\n2,"b"\n'), "text follows a closing quote"),
    "csv that is ragged": Case(put("x.csv", "id,text\n1,a,b\n2\n"), "line 2 has 3 cells, the header 2"),
    "csv that is ragged, said": Case(
        put("x.csv", "id,text\n1,a,b\n2\n"),
        [{"id": 1, "text": "a", "column_3": "b"}, {"id": 2, "text": None, "column_3": None}],
        TextForm(ragged=True),
    ),
    "csv with huge numbers": Case(
        put("x.csv", "id,n\n99999999999999999999,900719925474099312\n1,0.5\n"),
        [{"id": "99999999999999999999", "n": "900719925474099312"}, {"id": "1", "n": "0.5"}],
    ),
    "csv with more digits than a double": Case(
        put("x.csv", "a,b\n0.1234567890123456789,0.00012345678901234567\n"), [{"a": "0.1234567890123456789", "b": 0.00012345678901234567}]
    ),
    "csv with a word below many numbers": Case(
        put("x.csv", "id\n" + "1\n" * 9_999 + "007\n"), [*({"id": "1"} for _ in range(9_999)), {"id": "007"}]
    ),
    "csv in gzip, its sum wrong": Case(put("x.csv.gz", gzip.compress(b"id\n1\n")[:-8] + bytes(4) + b"\5\0\0\0"), "incorrect data check"),
    "csv in gzip with more behind it": Case(put("x.csv.gz", gzip.compress(b"id\n1\n") + b"more"), "incorrect header"),
    "csv in bzip2, cut": Case(put("x.csv.bz2", bz2.compress(b"id\n" + b"1\n" * 9_999)[:-9]), "Truncated"),
    "csv of UTF-32": Case(put("x.csv", "id,text\n1,Käse\n".encode("utf-32")), [{"id": 1, "text": "Käse"}]),
    "csv with zero bytes": Case(put("x.csv", b"id,text\n1,a\0b\n"), [{"id": 1, "text": "a\0b"}]),
    "csv with a column twice": Case(put("x.csv", "id,id\n1,2\n"), "more than one column named 'id'"),
    "csv in gzip, cut": Case(put("x.csv.gz", gzip.compress(b"id\n" + b"1\n" * 9_999)[:-9]), "Truncated"),
    "csv in bzip2": Case(put("x.csv.bz2", bz2.compress(b"id\n1\n")), [{"id": 1}]),
    "csv that is no gzip": Case(put("x.csv.gz", b"id\n1\n"), "incorrect header"),
    "csv in xz": Case(put("x.csv.xz", b"\xfd7zXZ"), "unknown kind"),
    "json array": Case(put("x.json", '[{"id": 1},\n {"id": 2}]'), [{"id": 1}, {"id": 2}]),
    "json array, cut": Case(put("x.json", '[{"id": 1},\n {"id": 2'), "is not JSON behind item"),
    "json array with more behind it": Case(put("x.json", '[{"id": 1}]\n[{"id": 2}]'), "is not JSON behind item"),
    "json over lines": Case(put("x.json", '{\n "id": 1\n}\n{\n "id": 2\n}\n'), [{"id": 1}, {"id": 2}]),
    "json with a key twice": Case(put("x.jsonl", '{"id": 1, "id": 2}\n'), "the key 'id' occurs twice"),
    "json with huge numbers": Case(put("x.jsonl", '{"id": 9007199254740993}\n{"id": 0.5}\n'), [{"id": "9007199254740993"}, {"id": "0.5"}]),
    "json with a number above a double": Case(put("x.jsonl", '{"id": 1e999}\n'), "larger than a double"),
    "json with NaN": Case(put("x.jsonl", '{"id": NaN}\n{"id": 1.5}\n'), [{"id": math.nan}, {"id": 1.5}]),
    "json with a key more below many rows": Case(
        put("x.jsonl", '{"a": 1}\n' * 9_999 + '{"a": 2, "b": 3}\n'), [*({"a": 1, "b": None} for _ in range(9_999)), {"a": 2, "b": 3}]
    ),
    "json with nested nulls": Case(
        put("x.jsonl", '{"v": null}\n{"v": {"a": null}}\n{"v": {"a": [null, 1]}}\n'),
        [{"v": None}, {"v": '{"a": null}'}, {"v": '{"a": [null, 1]}'}],
    ),
    "json with a nested key twice": Case(put("x.jsonl", '{"v": {"a": 1, "a": 2}}\n'), "the key 'a' occurs twice"),
    "json of UTF-16 without mark": Case(put("x.jsonl", '{"t": "Käse"}\n'.encode("utf-16-le")), [{"t": "Käse"}]),
    "json of latin-1": Case(put("x.jsonl", '{"t": "Käse"}\n'.encode("latin-1")), "line 1 is not UTF-8.*--encoding latin-1"),
    "json line cut": Case(put("x.jsonl", '{"id": 1}\n{"id": '), "line 2 is not JSON"),
    "text of latin-1": Case(put("x.txt", "Käse".encode("latin-1")), "is not UTF-8 .*--encoding latin-1"),
    "text of UTF-16": Case(put("x.txt", "Käse".encode("utf-16")), [{"path": "x.txt", "text": "Käse"}]),
    "text in the middle of an unknown encoding": Case(put("x.txt", b"a"), "unknown encoding 'klingon'", TextForm("klingon")),
    "parquet cut": Case(parquet(lambda path: damage(path / "0.parquet", lambda raw: raw[:-20])), "is not Parquet, or is damaged"),
    "parquet of another magic": Case(
        parquet(lambda path: damage(path / "0.parquet", lambda raw: b"XXXX" + raw[4:-4] + b"XXXX")), "Parquet"
    ),
    "parquet of two schemas": Case(parquet(lambda path: None, THREE, pa.table({"id": ["x"], "text": ["y"]})), "column 'id' is string"),
    "parquet of one column more": Case(parquet(lambda path: None, THREE, NINE.append_column("new", pa.array([1]))), "column 'new'"),
    "parquet with NaN and huge": Case(
        parquet(lambda path: None, pa.table({"n": [math.nan], "u": pa.array([2**64 - 1], pa.uint64())})), [{"n": math.nan, "u": 2**64 - 1}]
    ),
    "parquet of whole numbers and fractions": Case(
        parquet(lambda path: None, pa.table({"v": [1]}), pa.table({"v": [0.5]})), "column 'v' is double"
    ),
    "parquet of times with a zone and without": Case(
        parquet(lambda path: None, *(pa.table({"v": pa.array([1], pa.timestamp("us", zone))}) for zone in ("UTC", None))), "column 'v' is"
    ),
    "a pipe": Case(lambda folder: (os.mkfifo(folder / "x.csv"), str(folder / "x.csv"))[1], "is no regular file"),
    "a relative path of a client": Case(lambda folder: "x.csv", "^x.csv is a relative path", rules=True),
    "delta": Case(delta(lambda path: None), ROWS),
    "delta with removed files": Case(delta(lambda path: write_deltalake(path, NINE, mode="overwrite")), NINE.to_pylist()),
    "delta with removed rows": Case(delta(lambda path: DeltaTable(path).delete("id = 2")), KEPT),
    "delta with a column more": Case(
        delta(lambda path: write_deltalake(path, NINE.append_column("n", pa.array([1])), mode="overwrite", schema_mode="overwrite")),
        [{"id": 9, "text": "z", "n": 1}],
    ),
    "delta without a file": Case(delta(lambda path: next(path.glob("*.parquet")).unlink()), "docs"),
    "delta with a cut file": Case(delta(lambda path: damage(next(path.glob("*.parquet")), lambda raw: raw[:50])), "docs"),
    "delta with a torn log": Case(delta(lambda path: damage(last_log(path), lambda raw: raw[: len(raw) // 2])), "docs"),
    "delta without its first log": Case(
        delta(lambda path: (write_deltalake(path, NINE, mode="append"), last_log(path).with_name("0" * 20 + ".json").unlink())), "docs"
    ),
    "delta that names a file outside": Case(
        delta(lambda path: point(path, outside(path))), "docs|nothing that this server reads", rules=True
    ),
    "delta that names a file above": Case(
        delta(lambda path: (outside(path), point(path, "../../secret/x.parquet"))), "docs|server", rules=True
    ),
    "delta that links a file outside": Case(
        delta(lambda path: ((file := next(path.glob("*.parquet"))).unlink(), file.symlink_to(outside(path)))),
        "nothing that this server reads",
        rules=True,
    ),
    "delta by its files": Case(lambda folder: delta(lambda path: None)(folder) + "/*.parquet", "files of the Delta table"),
    "a folder with a delta table": Case(lambda folder: str(Path(delta(lambda path: None)(folder)).parent), "files of the Delta table"),
    "iceberg": Case(iceberg(lambda path, table: None), ROWS),
    "iceberg with removed rows": Case(iceberg(lambda path, table: table.delete("id = 2")), KEPT),
    "iceberg with removed files": Case(iceberg(lambda path, table: table.overwrite(NINE)), NINE.to_pylist()),
    "iceberg without a file": Case(iceberg(lambda path, table: next(path.glob("data/*.parquet")).unlink()), "docs"),
    "iceberg without a manifest": Case(iceberg(lambda path, table: [one.unlink() for one in path.glob("metadata/*-m0.avro")]), "docs"),
    "iceberg with torn metadata": Case(iceberg(lambda path, table: damage(newest(path), lambda raw: raw[:100])), "docs"),
    "iceberg of two newest": Case(
        iceberg(lambda path, table: shutil.copy(newest(path), newest(path).with_name(newest(path).name[:6] + "other.metadata.json"))),
        "2 metadata files",
    ),
    "iceberg that names a file outside": Case(
        iceberg(lambda path, table: replace_in_metadata(path, f"file://{path}/metadata/snap", "file:///etc/snap")),
        "nothing that this server reads",
        rules=True,
    ),
    "iceberg by its data": Case(lambda folder: iceberg(lambda path, table: None)(folder) + "/data", "files of the Iceberg table"),
    "lance": Case(lance_set(lambda path: None), ROWS),
    "lance with removed rows": Case(lance_set(lambda path: lance.dataset(path).delete("id = 2")), KEPT),
    "lance overwritten": Case(lance_set(lambda path: lance.write_dataset(NINE, path, mode="overwrite")), NINE.to_pylist()),
    "lance without a file": Case(lance_set(lambda path: next(path.glob("data/*.lance")).unlink()), "docs"),
    "lance with a cut file": Case(lance_set(lambda path: damage(next(path.glob("data/*.lance")), lambda raw: raw[:20])), "docs"),
    "lance with a torn manifest": Case(
        lance_set(lambda path: damage(next(path.glob("_versions/*.manifest")), lambda raw: raw[:9])), "docs"
    ),
    "hudi": Case(
        parquet(lambda path: ((path / ".hoodie").mkdir(), (path / ".hoodie" / "hoodie.properties").write_text(""))), "is a Hudi table"
    ),
    "data set saved": Case(saved(lambda path: None), ROWS),
    "data set with an old file": Case(saved(lambda path: shutil.copy(path / "data-00000-of-00001.arrow", path / "cache-1.arrow")), ROWS),
    "data set without a file": Case(saved(lambda path: (path / "data-00000-of-00001.arrow").unlink()), "lacks the file"),
    "data set, cut": Case(saved(lambda path: damage(path / "data-00000-of-00001.arrow", lambda raw: raw[:-8])), "was cut"),
    "data set with an order": Case(
        saved(lambda path: (path / "state.json").write_text('{"_indices_data_files": [{"filename": "i"}], "_data_files": []}')),
        "flatten_indices",
    ),
    "data set that names a file above": Case(
        saved(lambda path: (path / "state.json").write_text('{"_data_files": [{"filename": "../../x"}]}')), "not files beside it"
    ),
    "workbook": Case(book(lambda made: None), TWO),
    "workbook of two sheets": Case(book(lambda made: made.create_sheet("more").append(("id",))), "choose one with --table"),
    "workbook with a column twice": Case(book(lambda made: made.active.__setitem__("B1", "id")), "more than one column named 'id'"),
    "workbook with mixed cells": Case(
        book(lambda made: made.active.__setitem__("A3", "x")), [{"id": "1", "text": "a"}, {"id": "x", "text": "b"}]
    ),
    "workbook, cut": Case(
        lambda folder: (damage(Path(book(lambda made: None)(folder)), lambda raw: raw[:900]), str(folder / "docs.xlsx"))[1], "docs.xlsx"
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_damaged_table_is_read_right_or_refused_in_one_line(tmp_path: Path, case: Case) -> None:
    home = tmp_path / "home"
    home.mkdir()
    uri = case.make(home)
    rules = SourceRules((str(home),)) if case.rules else None
    if isinstance(case.expect, str):
        with pytest.raises(HarvesterError, match=case.expect) as caught:
            read(uri, case.form, rules)
        assert caught.value.exit_code == 2
        assert "\n" not in caught.value.message
    else:
        assert repr(sorted(read(uri, case.form, rules), key=repr)) == repr(sorted(case.expect, key=repr))


def read(uri: str, form: TextForm | None, rules: SourceRules | None) -> Rows:
    with open_source(uri, form=form, rules=rules) as source:
        return pa.concat_tables([source.read(group, 0, group.row_count) for group in source.row_groups()]).to_pylist()


def test_there_are_sixty_cases_and_more() -> None:
    assert len(CASES) >= 60
