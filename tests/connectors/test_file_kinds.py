"""What is particular to each kind of file: types, lines and rows at fault, cells that are no text, folders of several kinds."""

from __future__ import annotations

import gzip
import io
import pickle
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.files.stdin import Form, forget_input, form_of, keep_input
from connectors.files.stream import opened as really_opened
from connectors.open import open_source
from connectors.selection import Selection
from connectors.text import TextProblem, rows, texts
from harvester.errors import CopyTooLargeError, SourceError
from jobs.tasks.template import plain_text


def put(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def read(uri: str, **options: Any) -> pa.Table:
    with open_source(uri, **options) as source:
        return pa.concat_tables([source.read(group, 0, group.row_count) for group in source.row_groups()])


def kinds(table: pa.Table) -> dict[str, str]:
    return {field.name: str(field.type) for field in table.schema}


def test_json_columns_are_as_wide_as_all_their_values(tmp_path: Path) -> None:
    lines = (
        '\ufeff{"id": 1, "n": 1, "mixed": 1, "big": 1}\n\n{"id": 2, "n": 0.5, "mixed": "a", "tags": ["x"], "flag": true, "none": null}\n'
        '{"id": 3, "n": null, "mixed": {"k": [1]}, "big": 99999999999999999999}'
    )
    table = read(put(tmp_path, "x.jsonl", lines))
    assert kinds(table) == {
        "id": "int64", "n": "double", "mixed": "string", "big": "string", "tags": "string", "flag": "bool", "none": "string",
    }  # fmt: skip
    assert table["mixed"].to_pylist() == ["1", "a", '{"k": [1]}']
    assert table["big"].to_pylist() == ["1", None, "99999999999999999999"]
    assert table["tags"].to_pylist() == [None, '["x"]', None]


BAD_JSON = {
    "not JSON": ('{"a": 1}\n\n{"a": 2,,}\n', r"x.jsonl line 3 is not JSON: .* at character 9; fix or remove"),
    "not UTF-8": (b'{"a": 1}\n{"a": "\xff"}\n', r"line 2 is not UTF-8: byte 0xff at position 7"),
    "a string": ('"a"\n', r"line 1 holds a JSON string, not an object"),
    "null": ("null\n", r"line 1 holds a JSON null, not an object"),
    "an array": ("[1]\n", r"item 1 holds a JSON number, not an object"),
    "an array in an array": ("[[1]]\n", r"item 1 holds a JSON array, not an object"),
    "too deep": ('{"a": ' + "[" * 100_000, r"line 1 cannot be read: maximum recursion"),
    "an array too deep": ("[" * 100_000, r"x.jsonl is not JSON behind item 0"),
    "an array that is cut": ('[{"a": 1},\n{"a": 2', r"x.jsonl is not JSON behind item"),
    "a key twice": ('{"a": 1, "a": 2}\n', r"line 1 cannot be read: the key 'a' occurs twice"),
    "a number above a double": ('{"a": 1e999}\n', r"line 1 cannot be read: the number 1e999 is larger"),
    "a number too long": ('{"a": ' + "9" * 5_000 + "}", r"line 1 cannot be read: Exceeds the limit"),
    "binary": (b"\x00\x01\x02\n", r"line 1 is not JSON"),
    "no rows": ("\n\n", r"holds no rows"),
}


@pytest.mark.parametrize(("content", "message"), BAD_JSON.values(), ids=BAD_JSON.keys())
def test_a_bad_json_line_is_named_by_its_number(tmp_path: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(SourceError, match=message) as caught:
        open_source(put(tmp_path, "x.jsonl", content), snapshot_dir=tmp_path / "copies")
    assert caught.value.message.isprintable()
    assert not (tmp_path / "copies").exists() or not any((tmp_path / "copies").iterdir())


def test_csv_columns_are_numbers_only_where_every_cell_is_one(tmp_path: Path) -> None:
    text = "id,zip,score,flag,late,empty\n" + "1,007,1.5,true,1,\n" * 3_000 + "2,08,,FALSE,x,\n"
    table = read(put(tmp_path, "x.csv", text))
    assert kinds(table) == {"id": "int64", "zip": "string", "score": "double", "flag": "bool", "late": "string", "empty": "string"}
    assert table.slice(3_000).to_pylist() == [{"id": 2, "zip": "08", "score": None, "flag": False, "late": "x", "empty": ""}]


WRITTEN = {  # name: cells, the type, the cells as a prompt writes them (None: as they stand)
    "prices": (["12.50", "", "-7.00", "1000.25"], "decimal128(18, 2)", None),
    "small prices": (["0.10", "0.20"], "decimal128(18, 2)", None),
    "versions": (["3.10", "3.9"], "string", None),
    "prices with and without cents": (["12.50", "7"], "string", None),
    "versions of one length": (["3.10", "3.11"], "decimal128(18, 2)", None),
    "measurements": (["0.5", "12.25", "1.0", "100.0"], "double", None),
    "whole numbers beside them": (["0.5", "7"], "double", ["0.5", "7.0"]),
    "product codes": (["1E5", "2E3"], "string", None),
    "product codes in small letters": (["1e5", "2e10"], "string", None),
    "a code beside numbers": (["1.5", "1E5"], "string", None),
    "exponents as Python writes them": (["1e-05", "5e-324", "1.7976931348623157e+308", "0.5"], "double", None),
    "exponents in other forms": (["2.50E+3", "0.5"], "string", None),
    "an exponent after a point": (["1.5e99", "1.0"], "string", None),
    "an exponent of few digits": (["1e+2", "1.0"], "string", None),
    "small probabilities": (["0.00001", "0.1"], "string", None),
    "small probabilities of one length": (["0.00001", "0.10000"], "decimal128(18, 5)", None),
    "small numbers that a double writes out": (["0.0001", "-0.000123456789012345", "-0.0"], "double", None),
    "all digits of a double": (["0.30000000000000004", "-0.8414709848078965", "1234567890123456.0"], "double", None),
    "digits between two doubles": (["99999999999999.99", "1.5"], "string", None),
    "such digits, of one length": (["99999999999999.99", "1.25"], "decimal128(18, 2)", None),
    "digits below those of a double": (["0.30000000000000001", "1.25"], "string", None),
    "a number above a double": (["1e+400", "1.0"], "string", None),
    "infinity and its like": (["inf", "nan", "1.5"], "string", None),
    "a last zero beside whole numbers": (["1.20", "3"], "string", None),
    "a fraction of zeros": (["0.00", "0.5"], "string", None),
    "more digits than a double has": (["0.1234567890123456789", "0.5"], "string", None),
    "more than 18 digits": (["12345678901234567.50", "0.10"], "string", None),
    "a leading zero": (["00.50", "01.25"], "string", None),
}


@pytest.mark.parametrize(("cells", "kind", "written"), WRITTEN.values(), ids=WRITTEN.keys())
def test_numbers_of_csv_stand_in_a_prompt_as_they_are_written(
    tmp_path: Path, cells: list[str], kind: str, written: list[str] | None
) -> None:
    table = read(put(tmp_path, "x.csv", "id,n\n" + "".join(f"1,{cell}\n" for cell in cells)))
    assert kinds(table)["n"] == kind
    assert [plain_text(row["n"]) for row in rows(table)] == (written or cells)


def test_the_type_of_a_csv_column_is_that_of_all_its_rows(tmp_path: Path) -> None:
    many = "".join(f",{number}.50\n" for number in range(5_000))
    assert kinds(read(put(tmp_path, "a.csv", "id,n\n" + ",\n" * 5_000 + many)))["n"] == "decimal128(18, 2)"
    assert kinds(read(put(tmp_path, "b.csv", "id,n\n" + many + ",1.5\n")))["n"] == "string"
    assert kinds(read(put(tmp_path, "c.csv", "id,n\n" + ",1.25\n" * 5_000 + ",1.50\n")))["n"] == "decimal128(18, 2)"


def test_prices_of_csv_are_numbers_to_a_condition(tmp_path: Path) -> None:
    path = put(tmp_path, "x.csv", "id,price\na,7.00\nb,12.50\nc,100.00\n")
    assert read(path, selection=Selection(where="price > 10.5"))["id"].to_pylist() == ["b", "c"]


CSV_FORMS = {
    "semicolons": ("x.csv", b"id;text\n1;a,b\n"),
    "tabs": ("x.tsv", b"id\ttext\n1\ta,b\n"),
    "byte order mark": ("x.csv", b'\xef\xbb\xbfid,text\r\n1,"a,b"\r\n'),
    "UTF-16": ("x.csv", 'id,text\n1,"a,b"\n'.encode("utf-16")),
    "gzip": ("x.csv.gz", gzip.compress(b'id,text\n1,"a,b"\n')),
    "delimiters in quotes": ("x.csv", b'id,"text"\n1,"a,b"'),
}


@pytest.mark.parametrize(("name", "content"), CSV_FORMS.values(), ids=CSV_FORMS.keys())
def test_csv_of_every_form_is_read(tmp_path: Path, name: str, content: bytes) -> None:
    assert read(put(tmp_path, name, content)).to_pylist() == [{"id": 1, "text": "a,b"}]


BAD_CSV = {
    "too many cells": ('id,text\n1,"a\nb"\n2,b,c\n', r"line 4 has 3 cells, the header 2: '2,b,c'; quote the cell"),
    "too few cells": ("id,text\n" + "1,a\n" * 5_000 + "2\n", r"line 5002 has 1 cells, the header 2: '2'"),
    "a picture": (b"\x89PNG\r\n\x1a\n\x00\x00\xff,1\n2", r"is not CSV: its first line holds binary data"),
    "binary rows": (b"id,text\n\x00\x01\x02\n", r"line 2 has 1 cells"),
    "two columns of one name": ("a,a\n1,2\n", r"the header of .* has more than one column named 'a'"),
    "nothing": ("", r"is empty;"),
    "a header alone": ("a,b\n", r"holds no rows"),
}


@pytest.mark.parametrize(("content", "message"), BAD_CSV.values(), ids=BAD_CSV.keys())
def test_bad_csv_is_named_by_its_row(tmp_path: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(SourceError, match=message) as caught:
        open_source(put(tmp_path, "x.csv", content))
    assert caught.value.message.isprintable()


def test_a_cell_of_binary_data_is_an_error_of_its_row_alone(tmp_path: Path) -> None:
    column = read(put(tmp_path, "x.csv", b"id,text\n1,\xff\xfe\x00\n2,fine\n"))["text"]
    first, second = texts(column)
    assert isinstance(first, TextProblem)
    assert (first.code, second) == ("not_utf8", "fine")


def test_csv_of_many_blocks_is_read_whole_and_its_rows_keep_their_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectors.files.delimited.BATCH_CHARS", 1 << 10)
    lines = "id,text\n" + "".join(f'{number},"a\nb"\n' for number in range(2_000))
    assert read(put(tmp_path, "x.csv", lines))["id"].to_pylist() == list(range(2_000))
    with pytest.raises(SourceError, match=r"line 4002 has 3 cells"):
        open_source(put(tmp_path, "y.csv", lines + "1,2,3\n"))
    with pytest.raises(SourceError, match=r"line 4002 is not CSV: a quote is left open"):
        open_source(put(tmp_path, "z.csv", lines + '1,"' + "x\n" * 5_000))


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl"])
def test_a_cell_of_a_million_characters_arrives_whole(tmp_path: Path, name: str) -> None:
    long = "ü" * 1_000_000
    content = f"id,text\n1,{long}\n" if name == "x.csv" else f'{{"id": 1, "text": "{long}"}}\n'
    assert read(put(tmp_path, name, content))["text"].to_pylist() == [long]


def test_half_a_surrogate_pair_is_an_error_of_its_row_alone(tmp_path: Path) -> None:
    first, second = texts(read(put(tmp_path, "x.jsonl", '{"t": "\\ud800"}\n{"t": "ok"}\n'))["t"])
    assert isinstance(first, TextProblem)
    assert second == "ok"


def test_each_text_file_is_a_row_with_its_path(tmp_path: Path) -> None:
    put(tmp_path, "docs/a.md", "\ufeff# A\n")
    put(tmp_path, "docs/sub/b.txt", "B")
    put(tmp_path, "docs/.hidden.md", "no")
    assert read(str(tmp_path / "docs")).to_pylist() == [{"path": "a.md", "text": "# A\n"}, {"path": "sub/b.txt", "text": "B"}]
    assert read(str(tmp_path / "docs" / "*.md")).to_pylist() == [{"path": "a.md", "text": "# A\n"}]
    assert read(str(tmp_path / "docs" / "sub" / "b.txt"))["text"].to_pylist() == ["B"]


def test_beside_a_table_a_readme_is_no_row_and_two_kinds_of_table_are_refused(tmp_path: Path) -> None:
    put(tmp_path, "one/a.csv", "id\n1\n")
    put(tmp_path, "one/README.md", "x")
    assert read(str(tmp_path / "one")).to_pylist() == [{"id": 1}]
    put(tmp_path, "one/b.jsonl", '{"id": 1}\n')
    with pytest.raises(SourceError, match=r"holds .*b.jsonl \(JSON lines\) and a.csv \(CSV\)|a.csv \(CSV\) and b.jsonl"):
        open_source(str(tmp_path / "one"))


DIFFERENT = {
    "csv": ("a.csv", b"id,x\n1,2\n", "b.csv", b"id,y\n1,2\n", r"differ in their header \(x\)"),
    "arrow": ("a.arrow", pa.table({"a": [1]}), "b.arrow", pa.table({"a": ["x"]}), "differ in their schema"),
}


@pytest.mark.parametrize(("one", "content", "other", "more", "message"), DIFFERENT.values(), ids=DIFFERENT.keys())
def test_files_of_two_schemas_are_refused(tmp_path: Path, one: str, content: Any, other: str, more: Any, message: str) -> None:
    for name, given in ((one, content), (other, more)):
        put(tmp_path, f"docs/{name}", given if isinstance(given, bytes) else ipc(given))
    with pytest.raises(SourceError, match=message):
        open_source(str(tmp_path / "docs"))


def ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


@pytest.mark.parametrize("cut", [10, 200], ids=["its end", "its middle"])
def test_a_torn_arrow_file_is_named(tmp_path: Path, cut: int) -> None:
    whole = ipc(pa.table({"a": list(range(1_000))}))
    with pytest.raises(SourceError, match=r"x.arrow is not Arrow IPC, or is damaged"):
        open_source(put(tmp_path, "x.arrow", whole[:-cut]))


def test_the_suffix_of_a_compression_may_be_in_upper_case(tmp_path: Path) -> None:
    assert read(put(tmp_path, "DOCS.CSV.GZ", gzip.compress(b"id,text\n1,a\n"))).to_pylist() == [{"id": 1, "text": "a"}]


def test_a_bomb_is_known_by_its_name_whatever_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectors.files.stream.FREE_BYTES", 1 << 10)
    with pytest.raises(SourceError, match=r"what\?\.csv\.gz becomes more than"):
        read(put(tmp_path, "what?.csv.gz", gzip.compress(b"text\n" + b"aaaaaaaaa\n" * 100_000)))


def test_a_torn_gzip_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"x.jsonl.gz is damaged: Truncated .*; write it again"):
        open_source(put(tmp_path, "x.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 1_000)[:-20]))


@pytest.mark.parametrize("answers", [["one", "one", "two"], ["one", "two", "two"]], ids=["in the second pass", "in the first"])
def test_a_file_that_changes_while_it_is_copied_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: list[str]) -> None:
    uri = put(tmp_path, "x.jsonl", '{"a": 1}\n')
    told = iter(answers)
    monkeypatch.setattr("connectors.files.forward.FilesReading.fingerprint", lambda _: next(told))
    with pytest.raises(SourceError, match="changed while it was read; submit it again"):
        open_source(uri, snapshot_dir=tmp_path / "copies")
    assert not list(tmp_path.glob("copies/*"))


@pytest.mark.parametrize("is_first", [True, False], ids=["in the first pass", "in the second"])
@pytest.mark.parametrize("later", ["text,title,extra\na,b,c\n", "title,text\n1,a\nlong,b\n"], ids=["other columns", "a wider value"])
def test_rows_of_a_replaced_file_are_not_read_with_the_columns_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: str, is_first: bool
) -> None:
    uri, other = put(tmp_path, "x.csv", "title,text\n1,a\n2,b\n"), put(tmp_path, "later", later)
    turns = iter([False, is_first, not is_first])  # the file is opened for its first line, and for each pass

    def opened(*about: Any) -> Any:
        before = really_opened(*about)
        if not next(turns):
            return before
        Path(other).replace(uri)
        return before if is_first else really_opened(*about)

    monkeypatch.setattr("connectors.files.delimited.opened", opened)
    with pytest.raises(SourceError, match="changed while it was read; submit it again"):
        open_source(uri, snapshot_dir=tmp_path / "copies")
    assert not list(tmp_path.glob("copies/*"))


def test_work_goes_on_with_its_copy_after_the_origin_changed_or_went_away(tmp_path: Path) -> None:
    uri = put(tmp_path, "docs/x.jsonl", '{"a": 1}\n')
    with open_source(uri, snapshot_dir=tmp_path / "copies") as source:
        known = source.fingerprint()
    put(tmp_path, "docs/x.jsonl", '{"a": 1}\n{"a": 2}\n')
    assert read(uri, snapshot_dir=tmp_path / "copies", fingerprint=known).num_rows == 1
    Path(uri).unlink()
    with open_source(uri, snapshot_dir=tmp_path / "copies", fingerprint=known) as source:
        assert (source.row_count, source.fingerprint(), source.name) == (1, known, "x")


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.execute("create table docs (id integer, body text, v)")
        connection.executemany("insert into docs values (?, ?, ?)", [(1, "a", 1), (2, "b", b"\xff"), (3, None, 1.5)])
    return tmp_path / "shop.db"


def test_sqlite_is_told_from_duckdb_by_its_content(shop: Path) -> None:
    table = read(str(shop), table="DOCS")
    assert kinds(table) == {"id": "int64", "body": "string", "v": "string"}
    assert table["v"].cast(pa.binary()).to_pylist() == [b"1", b"\xff", b"1.5"]
    with pytest.raises(SourceError, match="is a SQLite file: choose --table or --query; its tables: docs"):
        open_source(str(shop))


def test_a_sqlite_file_in_wal_mode_whose_log_is_made_by_reading_it_did_not_change(shop: Path) -> None:
    with closing(sqlite3.connect(shop)) as connection:
        connection.execute("pragma journal_mode = wal")
    assert not shop.with_name("shop.db-wal").exists()
    with open_source(str(shop), table="docs") as first, open_source(str(shop), table="docs") as second:
        assert first.fingerprint() == second.fingerprint()


@pytest.mark.parametrize(
    "query",
    ["insert into docs values (4, 'x', 1)", "attach '/tmp/x.db' as y", "pragma writable_schema = 1", "select 1; select 2", "vacuum", ""],
)
def test_a_query_on_sqlite_only_reads(shop: Path, query: str) -> None:
    before = shop.read_bytes()
    with pytest.raises(SourceError, match=r"failed: |must be one SELECT"):
        open_source(str(shop), query=query)
    assert shop.read_bytes() == before


NUMBERS = "with recursive t(n) as (select 1 union all select n + 1 from t)"


def test_a_query_without_end_on_sqlite_is_stopped(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectors.databases.stall.MAX_UNSEEN_S", 0.2)
    with pytest.raises(SourceError, match="made no progress"):
        open_source(str(shop), query=f"{NUMBERS} select count(*) from t")


def test_a_query_on_sqlite_that_gives_no_row_for_long_is_given_longer_than_one_on_files(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connectors.databases.stall.MAX_STALL_S", 0.0)
    assert read(str(shop), query=f"{NUMBERS} select count(*) as n from (select n from t limit 1000000)")["n"].to_pylist() == [1_000_000]


@pytest.mark.parametrize(
    "query", ["select n from t limit 1000000", "select zeroblob(1000000) as blob from t limit 200"], ids=["many", "long"]
)
def test_rows_of_sqlite_above_the_limit_of_a_key_are_not_kept_first(shop: Path, query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []
    monkeypatch.setattr("connectors.databases.sqlite.pickle.dump", lambda rows, file: kept.append(len(rows)))
    with pytest.raises(CopyTooLargeError, match="take more than 100,000 bytes"):
        open_source(str(shop), query=f"{NUMBERS} {query}", max_copied_bytes=100_000)
    assert sum(kept) <= 100_000 // 4


def test_long_rows_of_sqlite_are_kept_a_few_at_a_time(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []

    def dump(rows: list[Any], file: Any) -> None:
        kept.append(len(rows))
        pickle_dump(rows, file)

    pickle_dump = pickle.dump
    monkeypatch.setattr("connectors.databases.sqlite.pickle.dump", dump)
    assert read(str(shop), query=f"{NUMBERS} select zeroblob(1000000) as blob from t limit 20").num_rows == 20
    assert kept == [9, 9, 2]


def test_a_value_of_sqlite_that_is_too_long_is_refused(shop: Path) -> None:
    with pytest.raises(SourceError, match="string or blob too big"):
        open_source(str(shop), query="select zeroblob(300000000)")


def test_a_database_whose_extension_is_missing_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(SourceError) as caught:
        open_source("postgres:dbname=shop password=hunter2", query="select 1")
    assert "hunter2" not in caught.value.message
    assert "postgres" in caught.value.message


FORMS = {
    "json": (b'{"a": 1}\n', Form.JSONL),
    "csv": (b"id,text\n1,a\n2,b\n", Form.CSV),
    "semicolons": (b"id;text\n1;a\n", Form.CSV),
    "tabs": (b"id\ttext\n1\ta\n", Form.TSV),
    "prose": (b"Well, that is it.\nNo comma here.\n", Form.LINES),
    "one line": (b"a,b\n", Form.LINES),
    "arrow file": (ipc(pa.table({"a": [1]})), Form.ARROW),
    "parquet": (b"PAR1...", Form.PARQUET),
}


@pytest.mark.parametrize(("head", "form"), FORMS.values(), ids=FORMS.keys())
def test_standard_input_is_told_by_its_first_bytes(head: bytes, form: Form) -> None:
    assert form_of(head) is form


INPUTS = {
    "json": (b'{"text": "a"}\n{"text": "b"}\n', None),
    "csv": (b"text,id\na,1\nb,2\n", None),
    "lines": (b"a\nb\n", None),
    "lines that look like csv": (b"a\nb", Form.LINES),
    "arrow": (ipc(pa.table({"text": ["a", "b"]})), None),
}


@pytest.mark.parametrize(("content", "form"), INPUTS.values(), ids=INPUTS.keys())
def test_standard_input_is_kept_once(tmp_path: Path, content: bytes, form: Form | None) -> None:
    first = keep_input(io.BytesIO(content), tmp_path, form)
    again = keep_input(io.BytesIO(content), tmp_path, form)
    assert (first.path, first.is_new, again.is_new, first.guessed) == (again.path, True, False, form is None)
    with open_source(str(first.path)) as source:
        assert (source.name, source.row_count) == ("stdin", 2)
        assert source.read(source.row_groups()[0], 0, 2, ["text"])["text"].to_pylist() == ["a", "b"]
    assert [path.name for path in tmp_path.iterdir()] == [first.path.parent.name]
    forget_input(again)
    assert first.path.exists()
    forget_input(first)
    assert list(tmp_path.iterdir()) == []


BAD_INPUTS = {
    "nothing": (b"", None, "standard input is empty"),
    "a bad line": (b'{"a": 1}\n{"a": }\n', None, "^standard input line 2 is not JSON"),
    "binary": (b"\x00\x01", None, "is binary, but neither Parquet nor Arrow"),
    "no Parquet": (b"PAR1xxxxxxxx", None, "^standard input is not Parquet"),
    "a ragged row": (b"a,b\n1,2\n3\n", Form.CSV, r"^standard input line 3 has 1 cells"),
}


@pytest.mark.parametrize(("content", "form", "message"), BAD_INPUTS.values(), ids=BAD_INPUTS.keys())
def test_bad_standard_input_leaves_nothing(tmp_path: Path, content: bytes, form: Form | None, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        keep_input(io.BytesIO(content), tmp_path, form)
    assert list(tmp_path.iterdir()) == []
