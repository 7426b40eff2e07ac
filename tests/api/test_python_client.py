"""The Python API against a real server: what goes up, what comes down, and as what."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pandas
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import BaseModel

import harvester
from bench.harness.servers.jobs_server import JobsServer
from connectors.open import is_attached
from harvester.api import uploads
from harvester.api.client import Harvester
from harvester.api.errors import HarvesterError, JobFailedError, MissingPackageError, NotFoundError, RefusedError, UnreachableError
from harvester.api.frames import safe_name
from harvester.api.rows import RECORD
from jobs.result import RESULT_NAMES
from tests.fakes.scripted_ledger import spec_of

TEXTS = ["one fish", "two fish", "red fish", "blue fish"]
TABLE = pa.table({"text": TEXTS, "number": [1, 2, 3, 4]})


class Fish(BaseModel):
    color: str
    count: int
    weight: float | None = None
    tags: list[str] = []


def as_path(folder: Path) -> object:
    pq.write_table(TABLE, folder / "docs.parquet")
    return folder / "docs.parquet"


def as_glob(folder: Path) -> object:
    for number in range(2):
        pq.write_table(TABLE.slice(2 * number, 2), folder / f"docs-{number}.parquet")
    return str(folder / "docs-*.parquet")


def as_partitioned(folder: Path) -> object:
    for number in range(2):
        (folder / "parts" / f"half={number}").mkdir(parents=True)
        pq.write_table(TABLE.slice(2 * number, 2), folder / "parts" / f"half={number}" / "docs.parquet")
    return folder / "parts"


def as_csv(folder: Path) -> object:
    (folder / "docs.csv").write_text("text,number\n" + "".join(f"{text},{i}\n" for i, text in enumerate(TEXTS, 1)), encoding="utf-8")
    return str(folder / "docs.csv")


FORMS = {
    "a path": as_path,
    "a glob": as_glob,
    "a partitioned folder": as_partitioned,
    "a CSV file": as_csv,
    "an Arrow table": lambda _: TABLE,
    "an Arrow reader": lambda _: TABLE.to_reader(),
    "a list of dicts": lambda _: TABLE.to_pylist(),
    "a DuckDB relation": lambda _: duckdb.from_arrow(TABLE),
}


def test_dicts_with_different_keys_keep_all_of_them(client: Harvester) -> None:
    job = client.submit([{"text": "a"}, {"text": "b", "lang": "de"}], prompt="Name the {text}").watch()
    assert job.results().arrow().sort_by("row_id")["lang"].to_pylist() == [None, "de"]


def test_times_with_nanoseconds_are_read_to_the_microsecond(client: Harvester) -> None:
    at = pa.array([1577836800123456789], pa.timestamp("ns"))
    table = pa.table({"text": ["a"], "at": at, "all": pa.array([[at[0]]], pa.list_(at.type))})
    job = client.submit(table, prompt="Name the {text}").watch()
    (row,) = job.results()
    assert row["at"].isoformat() == row["all"][0].isoformat() == "2020-01-01T00:00:00.123456"
    assert job.results().arrow()["at"].type == at.type


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_rows_of_any_form_become_a_job_and_come_back(client: Harvester, tmp_path: Path, form: Any) -> None:
    job = client.submit(form(tmp_path), prompt="Name the {text}").watch()
    table = job.results().arrow().sort_by("row_id")
    assert table["text"].to_pylist() == TEXTS
    assert table["number"].to_pylist() == [1, 2, 3, 4]
    assert table["output"].to_pylist() == [f"the {text}" for text in TEXTS]


def test_columns_that_a_partitioned_folder_keeps_in_its_names_go_up_too(client: Harvester, tmp_path: Path) -> None:
    table = client.submit(as_partitioned(tmp_path), prompt="{text}").watch().results().arrow()
    assert sorted(table["half"].to_pylist()) == [0, 0, 1, 1]


def test_the_job_of_an_uploaded_folder_is_named_after_it(client: Harvester, tmp_path: Path) -> None:
    assert client.submit(as_partitioned(tmp_path), prompt="{text}").id.startswith("parts-")


def test_the_same_table_and_task_are_the_same_job(client: Harvester) -> None:
    first, again = (client.submit(TABLE, prompt="{text}") for _ in range(2))
    assert first.id == again.id
    assert client.submit(TABLE, prompt="{text}", new=True).id != first.id


def test_rows_are_objects_of_the_pydantic_model_that_was_asked_for(client: Harvester) -> None:
    job = client.submit(TABLE, schema=Fish).watch()
    rows: list[Fish] = list(job.results())
    assert rows == [Fish(color="some", count=1)] * 4
    assert list(client.job(job.id).results(Fish)) == rows  # of a job that another program made
    assert next(iter(client.job(job.id).results()))["color"] == "some"


def test_rows_come_as_a_relation_and_over_arrows_stream_protocol(client: Harvester) -> None:
    results = client.submit(TABLE, prompt="{text}").watch().results()
    assert results.duckdb().aggregate("count(*)").fetchall() == [(4,)]
    assert pa.table(results)["text"].to_pylist() == TEXTS
    assert [row["number"] for row in results] == [1, 2, 3, 4]
    assert results.head(2).num_rows == 2


@pytest.mark.parametrize("method", ["df", "pl"])
def test_a_frame_of_a_library_that_is_not_installed_is_refused_with_a_line(client: Harvester, method: str, monkeypatch: Any) -> None:
    for name in ("pandas", "polars"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(MissingPackageError, match=r"which is not installed; pip install"):
        getattr(client.sql("select 1 as one"), method)()


def test_rows_that_make_no_table_are_refused_as_every_other_error(client: Harvester) -> None:
    with pytest.raises(HarvesterError, match=r"the rows cannot be written to .*Could not convert 'x'"):
        client.submit([{"a": 1}, {"a": "x"}], prompt="{a}")


@pytest.mark.parametrize("kind", ["LazyFrame", "Series"])
def test_what_is_no_frame_of_polars_is_refused_in_one_line(client: Harvester, kind: str) -> None:
    frame = polars.LazyFrame({"a": [1]}) if kind == "LazyFrame" else polars.Series("a", [1])
    with pytest.raises(HarvesterError, match=r"holds no rows|cannot be written"):
        client.submit(frame, prompt="{a}")


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pandas.DataFrame([["x", 2]], columns=["a", "a"]), "more than one column named 'a'; rename"),
        (pandas.DataFrame([["x", 2]], columns=[1, "1"]), "more than one column named '1'; rename"),
        (pa.Table.from_arrays([pa.array(["x"])] * 2, ["a", "a"]), "more than one column named 'a'; rename"),
        (pandas.Series(["x"], name="a"), "a Series is one column; make a data frame of it"),
    ],
    ids=["pandas", "names that differ in type", "arrow", "series"],
)
def test_columns_without_names_of_their_own_are_refused_in_one_line(client: Harvester, frame: Any, message: str) -> None:
    with pytest.raises(HarvesterError, match=message) as refused:
        client.submit(frame, prompt="{a}")
    assert refused.type is HarvesterError


@pytest.mark.parametrize("frame", [pandas.DataFrame, polars.DataFrame], ids=["pandas", "polars"])
def test_frames_go_up_and_come_down(client: Harvester, frame: Any) -> None:
    given = frame({"text": TEXTS, "kind": ["a", "b", "a", "b"], "number": [1, None, 3, 4]})
    given = given.astype({"kind": "category"}) if frame is pandas.DataFrame else given.cast({"kind": polars.Categorical})
    results = client.submit(given, prompt="{text} {kind} {number}").watch().results()
    for found in (results.df(), results.pl()):
        assert list(found["text"]) == TEXTS
        assert list(found["kind"]) == ["a", "b", "a", "b"]
        assert list(found["status"]) == ["ok"] * 4
    answered = client.map(given, "Name the {text}")
    assert isinstance(answered, frame)
    assert list(answered.columns) == ["text", "kind", "number", "output", "error_message"]
    assert list(answered["text"]) == TEXTS
    assert all(isinstance(output, str) for output in answered["output"])


def test_map_keeps_the_index_of_a_pandas_frame(client: Harvester) -> None:
    frame = pandas.DataFrame({"text": TEXTS, "number": [1, 2, 3, 4]}, index=[7, 5, 11, 2])
    answered = client.map(frame, "Name the {text}")
    assert list(answered.columns) == ["text", "number", "output", "error_message"]
    assert answered.index.tolist() == frame.index.tolist()
    assert answered["text"].equals(frame["text"])


@pytest.mark.parametrize(
    "choice",
    [{"where": "number > 2"}, {"sample": 2}, {"query": "select * from source where number > 2"}],
    ids=lambda choice: next(iter(choice)),
)
def test_map_refuses_a_choice_of_rows_that_would_lose_the_index_of_a_pandas_frame(client: Harvester, choice: dict[str, Any]) -> None:
    frame = pandas.DataFrame({"text": TEXTS, "number": [1, 2, 3, 4]})
    with pytest.raises(HarvesterError, match=f"{next(iter(choice))}: rows chosen on the server .* choose them in pandas first"):
        client.map(frame, "Name the {text}", **choice)
    some = client.map(frame[frame["number"] > 2], "Name the {text}")
    assert some.index.tolist() == [2, 3]
    assert client.map(frame, "Name the {text}", limit=2).index.tolist() == [0, 1]
    assert client.map(TABLE, "Name the {text}", **choice).num_rows == 2  # Arrow has no index


def test_map_gives_back_the_kind_of_table_that_it_was_given(client: Harvester) -> None:
    answered = client.map(TABLE, "Name the {text}")
    assert answered.column_names == ["text", "number", "output", "error_message"]
    assert client.map(TABLE.to_pylist(), "Name the {text}") == answered.to_pylist()
    assert client.map(duckdb.from_arrow(TABLE), "Name the {text}").fetchall() == [tuple(row.values()) for row in answered.to_pylist()]


@pytest.mark.parametrize(
    ("shape", "columns"),
    [({"schema": Fish}, list(Fish.model_fields)), ({"labels": ["red", "blue"]}, ["output"])],
    ids=["a schema", "labels"],
)
def test_map_answers_a_prompt_in_the_shape_that_is_asked_for(
    client: Harvester, server: JobsServer, shape: dict[str, Any], columns: list[str]
) -> None:
    answered = client.map(TABLE, "Which fish is in {text}?", **shape)
    assert answered.column_names == ["text", "number", *columns, "error_message"]
    assert answered[columns[0]].to_pylist() == ["some" if "schema" in shape else "red"] * 4
    assert spec_of(server.ledger, client.job().id).task.prompt == "Which fish is in {text}?"


def test_a_prompt_is_answered_in_one_shape(client: Harvester) -> None:
    with pytest.raises(RefusedError, match="task ask has labels and answers with json; labels belong to answer: choice"):
        client.submit(TABLE, prompt="{text}", labels=["red", "blue"], schema=Fish)


def test_sql_comes_as_arrow_with_its_types(client: Harvester) -> None:
    job = client.submit(TABLE, prompt="{text}").watch()
    found = client.sql(f"select sum(number)::bigint as total, max(completed_at) as last from results('{job.id}')").arrow()
    assert found["total"].to_pylist() == [10]
    assert pa.types.is_timestamp(found.schema.field("last").type)


def test_a_query_without_rows_has_its_columns(client: Harvester) -> None:
    assert client.sql("select 1 as one where false").arrow().schema.names == ["one"]


def test_a_failed_query_says_why(client: Harvester) -> None:
    with pytest.raises(RefusedError, match="nowhere") as raised:
        client.sql("select * from nowhere")
    assert raised.value.code == "bad_query"


def test_files_of_the_server_are_out_of_reach_of_sql(client: Harvester) -> None:
    with pytest.raises(RefusedError, match="cannot be read here"):
        client.sql("select * from read_text('/etc/hostname')")


def test_a_job_is_shown_as_text_and_as_html(client: Harvester) -> None:
    job = client.submit(TABLE, prompt="{text}").watch()
    assert str(job) == f"{job.id} completed, 4/4 rows"
    assert '<progress max="4" value="4">' in job._repr_html_()
    assert "blue fish" in job.results()._repr_html_()


def test_a_file_that_is_not_there_is_refused_before_anything_is_sent(client: Harvester) -> None:
    with pytest.raises(HarvesterError, match=r"no file at /nowhere/docs\.parquet; give"):
        client.submit("/nowhere/docs.parquet")


DATABASES = [
    "postgres:dbname=shop",
    "postgresql:dbname=shop",
    "MySQL:host=db",
    "md:shop",
    "odbc:dsn=shop",
    "duckdb:/shop.duckdb",
    "sqlite:/shop.db",
]


@pytest.mark.parametrize("address", DATABASES, ids=lambda address: address.partition(":")[0])
def test_a_database_is_an_address_as_it_is_for_commands(client: Harvester, address: str) -> None:
    assert is_attached(address)
    assert client.upload(address) == address


def test_a_file_of_this_machine_may_have_a_name_like_a_database(client: Harvester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("md:notes.csv").write_text("text\na fish\n")
    assert client.upload("md:notes.csv").startswith("upload:")


def test_a_folder_whose_log_says_which_files_count_is_not_sent_file_by_file(client: Harvester, tmp_path: Path) -> None:
    (tmp_path / "delta" / "_delta_log").mkdir(parents=True)
    with pytest.raises(HarvesterError, match="is a table with a log"):
        client.submit(tmp_path / "delta")


def below(folder: Path, name: str) -> Path:
    """A folder with one file of that name below it; each level of ``name`` that is not the last is a folder."""
    (folder / "all" / name).parent.mkdir(parents=True)
    (folder / "all" / name).write_text("text\na fish\n")
    return folder / "all"


DEEP = "/".join("abcdefg")


@pytest.mark.parametrize("name", ["x" * 214 + "ж.csv", f"{DEEP}/fish.csv"], ids=["of 220 bytes", "8 levels deep"])
def test_a_long_or_deep_name_goes_up(client: Harvester, tmp_path: Path, name: str) -> None:
    job = client.submit(below(tmp_path, name), prompt="Name the {text}").watch()
    assert [row["output"] for row in job.results()] == ["the a fish"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x" * 215 + "ж.csv", r"has 221 bytes, and at most 220 are uploaded; shorten it"),
        (f"{DEEP}/h/fish.csv", r"h/fish\.csv is 9 levels deep in .*all, and at most 8 are uploaded; move it up"),
        ("a\nb.csv", r"a control character .* in its name, and cannot be uploaded with others; rename it"),
        (os.fsdecode(b"\xff.csv"), r"udcff\.csv has one of .* or what is not UTF-8 in its name"),
    ],
    ids=["longer", "deeper", "a line feed", "no UTF-8"],
)
def test_a_name_that_the_server_would_refuse_is_told_before_anything_is_read(
    client: Harvester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    monkeypatch.setattr(uploads, "digest_of", lambda file: pytest.fail("a file was read"))
    with pytest.raises(HarvesterError, match=message):
        client.upload(below(tmp_path, name))


@pytest.mark.parametrize(
    ("name", "message"),
    [("x" * 221, "has 221 bytes; an upload's have at most 220"), (f"{DEEP}/h/i", "has 9 levels; the path of an upload has at most 8")],
    ids=["a long one", "a deep one"],
)
def test_the_server_says_what_is_wrong_with_the_name_of_an_upload(server: JobsServer, name: str, message: str) -> None:
    told = httpx.get(f"{server.url}/api/uploads/{'ab' * 16}/{name}")
    assert (told.status_code, message in told.json()["error"]["message"]) == (400, True), told.text


def test_an_object_without_rows_is_refused(client: Harvester) -> None:
    with pytest.raises(HarvesterError, match="a int holds no rows; give a path"):
        client.submit(7)


def test_a_wrong_value_is_the_servers_own_refusal(client: Harvester) -> None:
    with pytest.raises(RefusedError, match="no_such_task") as raised:
        client.submit(TABLE, "no_such_task")
    assert raised.value.code == "bad_task"


def test_a_job_that_is_not_there_is_not_found(client: Harvester) -> None:
    with pytest.raises(NotFoundError, match="unknown job"):
        client.job("nothing-0000")


def test_a_job_without_an_answer_raises_when_it_is_watched(client: Harvester) -> None:
    job = client.submit(pa.table({"text": pa.array([None], pa.string())}), prompt="{text}")
    with pytest.raises(JobFailedError, match="all 1 rows ended as errors"):
        job.watch()
    assert [row["error_code"] for row in job.results().errors()] == ["null_text"]


UPLOADED = {
    "отчёт.csv": "file.csv",
    "日本.parquet": "file.parquet",
    "отчёт.csv.gz": "file.csv.gz",
    "отчёт 2024.csv": "2024.csv",
    "docs (1).csv": "docs-1-.csv",
    ".docs.csv": "docs.csv",
    "docs": "docs",
    "日本": "file",
    "x" * 120 + ".csv": "x" * 96 + ".csv",
}


@pytest.mark.parametrize(("name", "safe"), UPLOADED.items(), ids=UPLOADED.keys())
def test_a_name_made_valid_keeps_its_suffixes(name: str, safe: str) -> None:
    assert safe_name(name) == safe


def test_a_file_whose_name_has_no_latin_letter_becomes_a_job(client: Harvester, tmp_path: Path) -> None:
    (tmp_path / "отчёт.csv").write_text("text\na fish\n")
    job = client.submit(tmp_path / "отчёт.csv", prompt="{text}").watch()
    assert (job.id.rpartition("-")[0], job.rows_done) == ("file", 1)


def test_a_client_of_nothing_says_so() -> None:
    with pytest.raises(UnreachableError, match=r"no server answers at http://127\.0\.0\.1:9"):
        harvester.connect("http://127.0.0.1:9")
    with pytest.raises(RefusedError, match="is not a URL"):
        harvester.connect("localhost:8000")


@pytest.mark.parametrize("given", ["api_key", "HARVESTER_API_KEY"])
def test_a_key_that_no_header_can_hold_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("HARVESTER_API_KEY", "hv-schlüssel" if given != "api_key" else "hv-key")
    with pytest.raises(RefusedError, match=f"^{given} contains characters that no API key has; give one of the server's API keys$"):
        harvester.connect("http://127.0.0.1:9", api_key="hv-schlüssel" if given == "api_key" else None)


def test_the_names_of_record_are_those_of_results() -> None:
    assert set(RECORD) | {"row_id"} == RESULT_NAMES


async def test_the_awaited_client_does_the_same(server: JobsServer) -> None:
    async with await harvester.connect_async(server.url) as client:
        job = await client.submit(TABLE, schema=Fish)
        assert client.model == "scripted"
        await job.watch(poll_s=0.01)
        assert [row async for row in job.results()] == [Fish(color="some", count=1)] * 4
        assert (await job.results().arrow()).num_rows == 4
        assert [batch.num_rows async for batch in (await client.sql("select 1 as one")).batches()] == [1]
        assert job.id in [one.id for one in await client.jobs()]
        assert (await client.map(TABLE, "Name the {text}"))["output"].to_pylist() == [f"the {text}" for text in TEXTS]
