"""Plans: columns picked and checked, rows cut into slices, equal requests known by their key."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.base import RowGroup
from harvester.errors import ColumnError, SourceError, TaskError
from jobs.config import HarvestConfig
from jobs.plan.columns import columns_needed
from jobs.plan.job import cut_slices
from jobs.tasks.load import resolve_task
from jobs.tasks.template import build_messages
from tests.fakes.table_source import TableSource, ask, ids, plan, source


def test_a_plan_names_the_job_and_what_it_runs_on() -> None:
    spec = plan(source(body=1, n=pa.int64())).spec
    assert (spec.id, spec.model, spec.rows_total, spec.created_at_s, spec.fingerprint) == ("docs-7f3a", "m", 3, 5.0, "f1")
    assert (spec.column, spec.keep) == ("body", ("body", "n"))


@pytest.mark.parametrize(
    ("columns", "request_", "column", "note"),
    [
        pytest.param({"x": 1, "n": pa.int64()}, {}, "x", "The text is in column x, the only text column.", id="only-one"),
        pytest.param({"x": pa.large_string()}, {}, "x", "only text column", id="large-string"),
        pytest.param({"x": pa.dictionary(pa.int8(), pa.string())}, {}, "x", "only text column", id="dictionary"),
        pytest.param({"a": 1, "text": 1}, {}, "text", "by its name; --column chooses another (a).", id="by-name"),
        pytest.param({"review": 1, "body": 1}, {}, "body", "by its name", id="first-of-the-names"),
        pytest.param({"a": 1, "Content": 1}, {}, "Content", "by its name", id="by-name-in-capitals"),
        pytest.param({"Body": 1, "body": 1}, {}, "body", "by its name", id="exact-name-first"),
        pytest.param({"a": 1, "text": 1}, {"column": "a"}, "a", None, id="given"),
        pytest.param({"a": 1, "n": pa.int64()}, {"column": "n"}, "n", None, id="given-number"),
        pytest.param({"a": 1, "b": 1}, ask("{b}?"), "b", None, id="named-in-the-prompt"),
        pytest.param({"a": 1, "body": 1}, ask("{a}: {body}"), "body", None, id="named-one-by-name"),
        pytest.param({"a": 1, "b": 1}, ask("{a}: {b}"), None, None, id="several-named"),
        pytest.param({"a": 1, "b": 1}, {**ask("{a}: {b}"), "column": "a"}, "a", None, id="several-named-one-given"),
        pytest.param({"a": 1, "n": pa.int64()}, ask("{n}: {text}"), "a", "only text column", id="text-and-names"),
    ],
)
def test_the_text_column_is_picked(columns: dict[str, Any], request_: dict[str, Any], column: str | None, note: str | None) -> None:
    planned = plan(source(**columns), **request_)
    assert planned.spec.column == column
    about_text = [told for told in planned.notes if not told.startswith("Input column")]
    assert len(about_text) == (note is not None)
    assert note is None or note in about_text[0]


def test_columns_that_sql_takes_for_one_are_kept_under_two_names() -> None:
    planned = plan(source(Body=1, body=1, review=1), column="review")
    assert [told for told in planned.notes if told.startswith("Input column")] == [
        "Input column body is kept as input_body, because SQL would take it for column Body."
    ]


@pytest.mark.parametrize(
    ("columns", "request_", "message"),
    [
        pytest.param({"a": 1, "b": 1}, {}, "several columns hold text: a, b; name the one to use with --column", id="two"),
        pytest.param({"TEXT": 1, "Text": 1}, {}, "several columns hold text: TEXT, Text", id="two-of-one-name"),
        pytest.param({"n": pa.int64()}, {}, "no column of the source holds text (n int64)", id="none"),
        pytest.param(
            {"title": 1}, {"column": "titel"}, "--column names column titel, which the source does not have; did you mean", id="near"
        ),
        pytest.param({"title": 1}, ask("{Titel} {text}"), "the prompt names column Titel", id="place"),
        pytest.param({"title": 1}, ask("{Titel} {text}"), "did you mean title? its columns: title", id="place-near"),
        pytest.param({"a": 1, "b": 1}, ask("{qqqq}"), "the source does not have; its columns: a, b", id="place-far"),
        pytest.param({"a": 1, "b": 1}, {**ask("{a}"), "column": "b"}, "the prompt does not use column b", id="unused"),
        pytest.param({"a": 1}, {"keep": ("z",)}, "--keep names column z", id="keep"),
        pytest.param({"a": 1}, {"id_column": "z"}, "--id-column names column z", id="id"),
    ],
)
def test_a_column_that_does_not_fit_says_so(columns: dict[str, Any], request_: dict[str, Any], message: str) -> None:
    with pytest.raises(ColumnError) as caught:
        plan(source(**columns), **request_)
    assert message in caught.value.message


def test_a_source_without_rows_is_an_error() -> None:
    with pytest.raises(SourceError, match=r"/data/docs.parquet has no rows"):
        plan(source(rows=0, a=1))


def test_a_task_that_does_not_resolve_is_an_error() -> None:
    with pytest.raises(TaskError, match="needs option labels"):
        plan(source(a=1), task="classify")


def test_a_renamed_input_column_is_noted() -> None:
    notes = plan(source(body=1, status=pa.int64())).notes
    assert notes[1] == "Input column status is kept as input_status, because the results have a column status of their own."


def test_columns_needed_are_those_of_the_prompt_and_those_kept() -> None:
    of = source(id=pa.int64(), title=1, body=1, note=1)
    assert columns_needed(plan(of, keep=("id", "body")).spec) == ("body", "id")
    assert columns_needed(plan(of, keep=(), **ask("{note} {title}")).spec) == ("note", "title")
    assert columns_needed(plan(of, keep=("id",), column="title", **ask("{note} {text}")).spec) == ("title", "note", "id")


def test_equal_requests_have_equal_keys() -> None:
    assert plan(source(a=1)).spec.key == plan(source(a=1), now_s=9.0, token="0000", column="a", new=True).spec.key


@pytest.mark.parametrize(
    "request_",
    [
        {"column": "b"},
        {"keep": ("a",)},
        {"id_column": "n"},
        {"max_tokens": 5},
        {"temperature": 0.5},
        {"task": "translate", "options": {"to": "German"}},
        {"model": "other"},
    ],
    ids=lambda request: next(iter(request)),
)
def test_what_changes_the_results_changes_the_key(request_: dict[str, Any]) -> None:
    of = TableSource(pa.table({"a": ["x", "y"], "b": ["x", "y"], "n": [1, 2]}))
    assert plan(of, **{"column": "a", **request_}).spec.key != plan(of, column="a").spec.key


def test_another_order_of_properties_is_another_job() -> None:
    properties = {"x": {"type": "string"}, "y": {"type": "string"}}
    schemas = [{"type": "object", "properties": dict(items)} for items in (properties.items(), reversed(properties.items()))]
    keys = {plan(source(a=1), task="extract", options={"schema": schema}).spec.key for schema in schemas}
    assert len(keys) == 2


@given(st.lists(st.integers(0, 700), max_size=12), st.integers(1, 300), st.integers(1, 20), st.integers(1, 40))
def test_slices_cover_every_row_once_within_their_groups(group_rows: list[int], most: int, fewest: int, wanted: int) -> None:
    harvest = HarvestConfig(max_slice_rows=max(most, fewest), min_slice_rows=fewest, slices_per_job=wanted)
    groups, start = [], 0
    for index, count in enumerate(group_rows):
        groups.append(RowGroup(index, start, count))
        start += count
    slices = cut_slices(groups, start, harvest)
    assert [item.slice_id for item in slices] == list(range(len(slices)))
    assert [row for item in slices for row in range(item.row_start, item.row_start + item.row_count)] == list(range(start))
    for item in slices:
        group = groups[item.group_index]
        assert item.row_start == group.row_start + item.offset
        assert item.offset + item.row_count <= group.row_count
        assert item.row_count <= harvest.max_slice_rows


@pytest.mark.parametrize(
    ("rows", "group_rows", "sizes"),
    [
        pytest.param(3, 100, [3], id="fewer-than-the-least"),
        pytest.param(10, 100, [3, 3, 4], id="least"),
        pytest.param(6400, 10_000, [200] * 32, id="about-32"),
        pytest.param(100_000, 100_000, {255, 256}, id="most"),
        pytest.param(10, 5, [2, 3, 2, 3], id="not-across-groups"),
    ],
)
def test_a_job_is_cut_into_slices_of_like_size(rows: int, group_rows: int, sizes: list[int] | set[int]) -> None:
    cut = [item.row_count for item in plan(source(group_rows, rows, a=1)).slices]
    assert (set(cut) if isinstance(sizes, set) else cut) == sizes


def test_a_million_rows_are_planned_without_reading_one() -> None:
    of = source(100_000, 1_000_000, a=pa.string())
    planned = plan(of)
    assert of.rows_read == 0
    assert sum(item.row_count for item in planned.slices) == 1_000_000


def test_an_id_column_of_unique_values_is_read_once() -> None:
    of = ids(["a", "b", "c", "A", ""])
    plan(of, id_column="id")
    assert of.rows_read == 5


@pytest.mark.parametrize(
    ("values", "message"),
    [
        pytest.param([3, 1, 2, 1, 3], "--id-column id has '3' in rows 0 and 4;", id="first-double"),
        pytest.param(["x", "y", "x", "x"], "has 'x' in rows 0 and 2;", id="three-times"),
        pytest.param([1, 2, None, 4], "--id-column id is null in row 2;", id="null"),
        pytest.param([[1], [2], [1]], "has '[1]' in rows 0 and 2;", id="lists"),
    ],
)
def test_an_id_column_must_name_each_row(values: list[Any], message: str) -> None:
    with pytest.raises(ColumnError) as caught:
        plan(ids(values), id_column="id")
    assert message in caught.value.message


def test_an_error_of_the_source_stays_its_own_while_ids_are_checked() -> None:
    of = ids([1, 2, 3])
    of.fails = True
    with pytest.raises(SourceError, match=r"^docs.parquet is gone; put it back$"):
        plan(of, id_column="id")


def test_messages_hold_the_row_and_the_text_column() -> None:
    task = resolve_task("t", inline={"system": "About {topic}.", "prompt": "{text} / {title}"})
    row = {"topic": "a {b}", "title": "T", "body": "the body", "text": "not this"}
    assert build_messages(task, "body", row) == (
        {"role": "system", "content": "About a {b}."},
        {"role": "user", "content": "the body / T"},
    )


def test_a_task_without_a_system_message_gives_one_message() -> None:
    task = resolve_task("ask", options={"prompt": "{a}{b}"})
    assert build_messages(task, None, {"a": 1, "b": None}) == ({"role": "user", "content": "1"},)
