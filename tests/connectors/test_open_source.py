"""What a user can get wrong in naming a source, and the one line that says so."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from connectors.files.form import TextForm
from connectors.open import open_source
from connectors.paths.files import find
from connectors.paths.location import locate
from connectors.paths.marks import TableFormat, marks_of
from connectors.paths.names import source_name
from connectors.paths.rules import SourceRules
from connectors.selection import Selection
from harvester.errors import SourceError

TABLE = pa.table({"id": [1, 2], "text": ["a", "b"]})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One of everything that can be named."""
    pq.write_table(TABLE, tmp_path / "docs.parquet")
    pq.write_table(TABLE.slice(0, 0), tmp_path / "norows.parquet")
    (tmp_path / "words.parquet").write_text("these are words, not Parquet")
    (tmp_path / "nothing.parquet").write_bytes(b"")
    (tmp_path / "torn.parquet").write_bytes((tmp_path / "docs.parquet").read_bytes()[:-20])
    (tmp_path / "rows.avro").write_text("")
    (tmp_path / "README").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "hidden" / "_temporary").mkdir(parents=True)
    pq.write_table(TABLE, tmp_path / "hidden" / "_temporary" / "0.parquet")
    (tmp_path / "words.duckdb").write_text("these are words, not a database")
    with duckdb.connect(tmp_path / "shop.duckdb") as connection:
        connection.sql("create table docs as select 1 as id, 'a' as text")
        connection.sql("create table none_yet (id int)")
        connection.sql("create table odd as select interval 1 day as gap, 1 as id")
        connection.sql("create schema other")
        connection.sql("create table other.notes as select 2 as id")
        connection.sql("create view outside as select * from read_text('/etc/hostname')")
    return tmp_path


CASES: list[tuple[str, str, dict[str, Any], str]] = [
    ("a missing file", "gone.parquet", {}, r"gone.parquet does not exist; give the path"),
    ("a missing path without suffix", "gone", {}, r"gone does not exist; give the path of a file, glob or folder of Parquet .*or text"),
    ("a missing address", "file:///nowhere/docs.parquet", {}, r"file:///nowhere/docs.parquet does not exist"),
    ("an address where nobody answers", "http://127.0.0.1:1/docs.parquet", {}, r"cannot read http://127.0.0.1:1/docs.parquet: .*"),
    ("no path at all", "", {}, r"'' is not a path; give the path of"),
    ("words under a Parquet name", "words.parquet", {}, r"words.parquet is not Parquet, or is damaged: Parquet magic bytes not found"),
    ("an empty file", "nothing.parquet", {}, r"nothing.parquet is not Parquet, or is damaged: .*0 bytes"),
    ("a torn file", "torn.parquet", {}, r"torn.parquet is not Parquet, or is damaged"),
    ("a glob without a match", "no-*.parquet", {}, r"no-\*.parquet matches no file of a known kind \(names that start"),
    ("a glob that matches no Parquet", "*.avro", {}, r"\*.avro matches no file of a known kind"),
    ("an empty folder", "empty", {}, r"empty holds no file of a known kind .*; known: a file"),
    ("a folder with hidden names only", "hidden", {}, r"hidden holds no file of a known kind"),
    ("a file without rows", "norows.parquet", {}, r"norows.parquet holds no rows"),
    ("an unknown suffix", "rows.avro", {}, r"unknown kind \(.avro\); known: .*Parquet \(.parquet.* or a DuckDB or SQLite file \(.duckdb"),
    ("no suffix", "README", {}, r"unknown kind \(a file without suffix\); known: a file"),
    ("an unknown address", "nope://x/docs.parquet", {}, r"nope:// is not a known kind of address; known: .*s3://"),
    ("an address of a package that is not there", "dropbox://x/docs.parquet", {}, r"dropbox:// needs one more package"),
    ("--table on Parquet", "docs.parquet", {"table": "docs"}, r"--table applies to databases .*docs.parquet; remove it"),
    ("two statements on Parquet", "docs.parquet", {"query": "select 1; select 2"}, r"the query on .*docs.parquet must be one SELECT"),
    ("a file in a query", "docs.parquet", {"query": "from read_text('/etc/hosts')"}, r"docs.parquet failed: .*disabled"),
    ("--query on a folder", "empty", {"query": "select 1"}, r"empty holds no file"),
    ("no such column", "docs.parquet", {"selection": Selection(where="nope = 1")}, r'--where .* failed: .*"nope" not found'),
    ("no such rows", "docs.parquet", {"selection": Selection(where="false")}, r"gives no rows"),
    ("more than a condition", "docs.parquet", {"selection": Selection(where="true) or (true")}, r"--where .* failed: Parser Error"),
    ("--encoding on Parquet", "docs.parquet", {"form": TextForm("latin-1")}, r"--encoding applies to text files only"),
    ("neither on DuckDB", "shop.duckdb", {}, r"choose --table or --query; its tables: docs, none_yet, odd, outside, other.notes"),
    ("both on DuckDB", "shop.duckdb", {"table": "docs", "query": "select 1"}, r"both --table docs and --query were given"),
    ("a missing DuckDB file", "gone.duckdb", {"table": "docs"}, r"gone.duckdb does not exist"),
    ("a DuckDB file elsewhere", "memory://x/shop.duckdb", {"table": "docs"}, r"must be on a local disk: copy memory://x/shop.duckdb"),
    ("words under a DuckDB name", "words.duckdb", {"table": "docs"}, r"cannot open .*words.duckdb: .*not a valid DuckDB"),
    ("a file of nobody", "~nosuchuser/docs.parquet", {}, r"~nosuchuser/docs.parquet does not exist; give the path"),
    ("a database of nobody", "~nosuchuser/x.db:t", {}, r"~nosuchuser/x.db does not exist"),
    ("a database of nobody, from elsewhere", "~nosuchuser/x.db:t", {"rules": SourceRules()}, r"x.db is a relative path, which a server"),
    ("a name that is too long", f"/{'x' * 300}.db:t", {}, r"cannot read /x+.db: .*; check the address"),
    ("a missing table", "shop.duckdb", {"table": "doc"}, r"shop.duckdb has no table 'doc'; its tables: docs, none_yet"),
    ("a table of another schema", "shop.duckdb", {"table": "notes"}, r"no table 'notes'; its tables: .*other.notes"),
    ("a table without rows", "shop.duckdb", {"table": "none_yet"}, r"table 'none_yet' on .* gives no rows"),
    ("a query without rows", "shop.duckdb", {"query": "from docs where id > 5"}, r"the query on .* gives no rows"),
    ("a query on a missing table", "shop.duckdb", {"query": "select * from gone"}, r"Table with name gone does not exist!; tables .*docs"),
    ("a query that is no SQL", "shop.duckdb", {"query": "selec 1"}, r"the query on .* failed: Parser Error: syntax error"),
    ("an empty query", "shop.duckdb", {"query": " "}, r"must be one SELECT; given: ''"),
    ("an INSERT", "shop.duckdb", {"query": "insert into docs values (2, 'b')"}, r"must be one SELECT; given: .insert into docs"),
    ("two queries", "shop.duckdb", {"query": "select 1; select 2"}, r"must be one SELECT"),
    ("a query that fails at a row", "shop.duckdb", {"query": "select cast(text as int) from docs"}, r"failed: Conversion Error: Could not"),
    ("a query on another file", "shop.duckdb", {"query": "select * from read_csv('/etc/passwd')"}, r"failed: Permission Error"),
    ("a view on another file", "shop.duckdb", {"table": "outside"}, r"table 'outside' of .* failed: Permission Error"),
    ("a query with one name twice", "shop.duckdb", {"query": "select 1 as a, 2 as a"}, r"more than one column named 'a'"),
    ("a type that cannot be kept", "shop.duckdb", {"table": "odd"}, r"column 'gap' is of type .*interval.*leave it out, or cast it"),
    ("a parameter without value", "shop.duckdb", {"query": "select ? as a"}, r"failed: Invalid Input Error: Values were not provided"),
]


@pytest.mark.parametrize(("uri", "options", "message"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_each_bad_source_gives_one_line_that_says_what_to_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch, uri: str, options: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(folder)
    snapshots = folder / "snapshots"
    with pytest.raises(SourceError, match=message) as caught:
        open_source(uri, snapshot_dir=snapshots, **options)
    assert "\n" not in caught.value.message
    assert not snapshots.exists() or not any(snapshots.iterdir()), "a source that failed left a snapshot"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_read_permission_is_named(folder: Path) -> None:
    (folder / "docs.parquet").chmod(0)
    with pytest.raises(SourceError, match=r"docs.parquet: permission denied"):
        open_source(str(folder / "docs.parquet"))


def test_a_refusal_of_the_file_system_is_told_as_permission_denied(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(pq, "ParquetFile", refuse)
    with pytest.raises(SourceError, match=r"cannot read .*docs.parquet: permission denied; ask for"):
        open_source(str(folder / "docs.parquet"))


def test_passwords_in_an_address_are_not_repeated_in_errors() -> None:
    with pytest.raises(SourceError) as caught:
        open_source("nope://user:secret@host/docs.parquet")
    assert "secret" not in caught.value.message
    assert "nope://***@host/docs.parquet" in caught.value.message


@pytest.mark.parametrize("name", ["docs [1].parquet", "docs*.parquet", "what?.parquet", "a b%20c.parquet", "документы.parquet"])
def test_a_path_that_exists_is_no_glob(tmp_path: Path, name: str) -> None:
    pq.write_table(TABLE, tmp_path / name)
    pq.write_table(TABLE, tmp_path / "docs1.parquet")
    for uri in (str(tmp_path / name), f"file://{tmp_path / name}"):
        with open_source(uri) as source:
            assert source.row_count == 2


def test_a_glob_below_a_folder_with_brackets_in_its_name_works(tmp_path: Path) -> None:
    (tmp_path / "run [1]" / "a").mkdir(parents=True)
    pq.write_table(TABLE, tmp_path / "run [1]" / "a" / "x.parquet")
    with open_source(str(tmp_path / "run [1]" / "*" / "*.parquet")) as source:
        assert source.row_count == 2


@pytest.mark.parametrize(
    ("pattern", "files"),
    [
        ("*.parquet", 1),
        ("**/*.parquet", 3),
        ("a*/*.pq", 0),
        ("a*", 2),
        ("**", 3),
        ("?/[ab].parquet", 1),
        ("a/**/b.parquet", 2),
        ("*/*/*.parquet", 1),
    ],
)
def test_globs_match_names_and_folders(tmp_path: Path, pattern: str, files: int) -> None:
    (tmp_path / "a" / "c").mkdir(parents=True)
    for name in ("x.parquet", "a/b.parquet", "a/c/b.parquet"):
        pq.write_table(TABLE, tmp_path / name)
    for name in ("y", "a/README.md"):
        (tmp_path / name).write_text("a file beside the folders")
    if files == 0:
        with pytest.raises(SourceError, match="matches no"):
            open_source(str(tmp_path / pattern))
    else:
        with open_source(str(tmp_path / pattern)) as source:
            assert source.row_count == files * 2


def test_a_relative_path_and_a_home_path_are_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder))
    for uri in ("docs.parquet", "./docs.parquet", "~/docs.parquet"):
        with open_source(uri) as source:
            assert source.row_count == 2


def test_options_of_an_address_are_told_from_glob_signs() -> None:
    options = "?endpoint_override=127.0.0.1:1&scheme=http&region=us-east-1"
    location = locate(f"s3://bucket/a b/part-?[0-9].parquet{options}")
    assert location.path == "bucket/a b/part-?[0-9].parquet"
    assert locate(f"s3://bucket/{options}").path == "bucket"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("docs.parquet", "docs"),
        ("My Docs (v2).parquet", "my-docs-v2"),
        ("docs.v2.parquet", "docs-v2"),
        ("Überblick.pq", "uberblick"),
        ("x" * 40 + ".parquet", "x" * 32),
        ("folder/_.parquet", "folder"),
        ("folder.v2/*.parquet", "folder-v2"),
        ("docs-*.parquet", "docs"),
        ("folder/**/*.parquet", "folder"),
    ],
)
def test_a_source_is_called_by_the_stem_of_its_path(tmp_path: Path, path: str, name: str) -> None:
    file = tmp_path / path.replace("**", "x").replace("*", "1")
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(TABLE, file)
    assert open_source(str(tmp_path / path)).name == name


def test_a_name_is_never_empty() -> None:
    assert source_name("...", "", "文書") == "table"


def test_a_glob_across_many_folders_looks_for_tables_in_what_it_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an object store each name that is asked for is a round trip."""
    for number in range(300):
        (tmp_path / "in" / str(number) / "deep").mkdir(parents=True)
        (tmp_path / "in" / str(number) / "deep" / "x.csv").write_text("a\n1\n")
    asked: list[str] = []

    def counted(files: fs.FileSystem, folder: str) -> TableFormat | None:
        asked.append(folder)
        return marks_of(files, folder)

    monkeypatch.setattr("connectors.paths.files.marks_of", counted)
    for pattern in ("*/*/*.csv", "**/*.csv", "*"):
        assert len(find(locate(str(tmp_path / "in" / pattern)))[1]) == 300
    assert asked == []
    assert len(find(locate(str(tmp_path / "in" / "*" / "deep" / "x.csv")))[1]) == 300
    assert len(asked) == 600, "nothing was listed in them"
    for place in ("7", "7/deep"):
        mark = tmp_path / "in" / place / "_delta_log"
        mark.mkdir()
        for pattern in ("*/*/*.csv", "**/*.csv", "*", "*/deep", "*/deep/x.csv"):
            with pytest.raises(SourceError, match=rf"holds files of the Delta table .*/in/{place}, whose log"):
                find(locate(str(tmp_path / "in" / pattern)))
        mark.rmdir()
