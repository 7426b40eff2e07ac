"""Results: schema, rows that survive the spool, parts."""

from __future__ import annotations

import datetime
import json
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.result import RESULT_NAMES, Row, kept_names, part_stats, part_table, result_schema
from jobs.spec import PartStats
from jobs.tasks.load import resolve_task
from jobs.usage import Usage

TEXT = resolve_task("summarize")
ENDING = {
    "status": pa.string(),
    "error_code": pa.string(),
    "error_message": pa.string(),
    "raw_output": pa.string(),
    "finish_reason": pa.string(),
    "prompt_tokens": pa.int64(),
    "cached_tokens": pa.int64(),
    "output_tokens": pa.int64(),
    "preemptions": pa.int32(),
    "attempts": pa.int32(),
    "requests": pa.int32(),
    "parts": pa.int32(),
    "latency_ms": pa.float64(),
    "truncated": pa.bool_(),
    "completed_at": pa.timestamp("us", tz="UTC"),
}
SOURCE = pa.schema(
    [pa.field("title", pa.string(), nullable=False), ("Status", pa.int32()), ("output", pa.large_string()), ("n", pa.int8())]
)


def row(row_id: int, **changes: Any) -> Row:
    values: dict[str, Any] = {
        "row_id": row_id,
        "values": {"output": f"answer {row_id}"},
        "status": "ok",
        "error_code": None,
        "error_message": None,
        "finish_reason": "stop",
        "usage": Usage(prompt_tokens=100, cached_tokens=40, output_tokens=7, preemptions=1),
        "attempts": 1,
        "latency_ms": 12.5,
        "truncated": False,
        "completed_at_s": 1_700_000_000.123456,
    }
    usage = values["usage"].model_copy(update={name: changes.pop(name) for name in Usage.model_fields if name in changes})
    return Row(**{**values, "usage": usage, **changes})


FAILED = row(2, values={}, status="error", error_code="bad_json", error_message="not JSON \ud800", finish_reason=None, output_tokens=0)


def test_the_schema_is_row_id_inputs_answers_and_how_it_went() -> None:
    schema = result_schema(SOURCE, ("n", "title"), TEXT)
    assert schema.names == ["row_id", "n", "title", "output", *ENDING]
    assert {name: schema.field(name).type for name in ENDING} == ENDING
    assert (schema.field("row_id").type, schema.field("n").type, schema.field("output").type) == (pa.int64(), pa.int8(), pa.string())


def test_an_input_column_named_like_a_result_column_is_renamed() -> None:
    assert kept_names(SOURCE, SOURCE.names, TEXT) == {"title": "title", "Status": "input_Status", "output": "input_output", "n": "n"}


def test_a_renamed_column_takes_no_other_columns_name() -> None:
    source = pa.schema([("output", pa.string()), ("input_output", pa.string())])
    assert kept_names(source, source.names, TEXT) == {"output": "input_input_output", "input_output": "input_output"}


def test_columns_of_a_schema_come_typed() -> None:
    schema = {"type": "object", "properties": {"total": {"type": "number"}, "lines": {"type": "array", "items": {"type": "integer"}}}}
    result = result_schema(SOURCE, (), resolve_task("extract", options={"schema": schema}))
    assert result.names[:4] == ["row_id", "total", "lines", "status"]
    assert result.field("lines").type == pa.list_(pa.int64())


def test_no_task_can_hide_a_result_column() -> None:
    assert {"row_id", *ENDING} == RESULT_NAMES


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.dictionaries(st.text(), json_values, max_size=3), st.floats(allow_nan=False), st.floats(0, 4e9), st.none() | st.text(), st.booleans()
)
def test_a_row_survives_the_spool_exactly(
    values: dict[str, object], latency_ms: float, at_s: float, message: str | None, truncated: bool
) -> None:
    before = row(3, values=values, latency_ms=latency_ms, completed_at_s=at_s, error_message=message, truncated=truncated)
    line = json.dumps(before.to_json())
    assert "\n" not in line
    assert Row.from_json(json.loads(line.encode())) == before


@pytest.mark.parametrize("values", [{}, {"row_id": 1}, {**row(1).to_json(), "more": 2}], ids=["empty", "lacking", "too-many"])
def test_an_object_that_is_no_row_is_a_value_error(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a row: "):
        Row.from_json(values)


def test_a_part_is_sorted_and_holds_answers_inputs_and_errors() -> None:
    inputs = pa.table({"n": pa.array([10, 20, 30], pa.int8()), "title": ["a", "b", None]})
    schema = result_schema(SOURCE, ("n", "title"), TEXT)
    table = part_table(schema, [FAILED, row(3), row(1)], inputs)
    assert table.schema == schema
    assert table.select(["row_id", "n", "title", "output", "status", "error_code"]).to_pylist() == [
        {"row_id": 1, "n": 10, "title": "a", "output": "answer 1", "status": "ok", "error_code": None},
        {"row_id": 2, "n": 20, "title": "b", "output": None, "status": "error", "error_code": "bad_json"},
        {"row_id": 3, "n": 30, "title": None, "output": "answer 3", "status": "ok", "error_code": None},
    ]
    assert table["completed_at"].to_pylist()[0] == datetime.datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=datetime.UTC)
    assert table["error_message"].to_pylist()[1] == "not JSON \ufffd"


def test_a_part_without_inputs_holds_answers_alone() -> None:
    schema = result_schema(SOURCE, (), TEXT)
    table = part_table(schema, [row(0)], None)
    assert table == part_table(schema, [row(0)], pa.table({}))
    assert table.num_columns == 2 + len(ENDING)


def broken(kind: pa.DataType) -> pa.Array:
    """Four texts, the second and the last not UTF-8."""
    return pa.array([b"ok", b"caf\xe9", None, b"K\xe4se"], pa.large_binary() if kind == pa.large_string() else pa.binary()).view(kind)


TEXTS = broken(pa.string())
OFFSETS = pa.array([0, 1, 1, 2, 4], pa.int32())
MENDED = ["ok", "caf\ufffd", None, "K\ufffdse"]
LISTED = [["ok"], [], ["caf\ufffd"], [None, "K\ufffdse"]]
KEPT = {
    "string": (TEXTS, MENDED),
    "large_string": (broken(pa.large_string()), MENDED),
    "json": (pa.json_().wrap_array(pa.array([b'"ok"', b'"caf\xe9"'], pa.binary()).view(pa.string())), ['"ok"', '"caf\ufffd"']),
    "dictionary": (
        pa.DictionaryArray.from_arrays(pa.array([1, None, 0, 1], pa.int32()), TEXTS[:2]),
        ["caf\ufffd", None, "ok", "caf\ufffd"],
    ),
    "list": (pa.ListArray.from_arrays(OFFSETS, TEXTS), LISTED),
    "large_list": (pa.LargeListArray.from_arrays(OFFSETS.cast(pa.int64()), TEXTS), LISTED),
    "list of lists": (
        pa.ListArray.from_arrays(pa.array([0, 0, 2, 3, 4], pa.int32()), pa.ListArray.from_arrays(OFFSETS, TEXTS)),
        [[], LISTED[:2], *([one] for one in LISTED[2:])],
    ),
    "fixed_size_list": (pa.FixedSizeListArray.from_arrays(pa.concat_arrays([TEXTS, TEXTS]), 2), [MENDED[:2], MENDED[2:]] * 2),
    "struct": (
        pa.StructArray.from_arrays([TEXTS, pa.array([1, 2, 3, 4])], ["t", "n"], mask=pa.array([False, False, True, False])),
        [None if number == 2 else {"t": text, "n": number + 1} for number, text in enumerate(MENDED)],
    ),
    "map": (
        pa.MapArray.from_arrays(OFFSETS, pa.array(["a", "b", "c", "d"]), TEXTS),
        [{"a": "ok"}, {}, {"b": "caf\ufffd"}, {"c": None, "d": "K\ufffdse"}],
    ),
}


@pytest.mark.parametrize(("column", "mended"), KEPT.values(), ids=KEPT.keys())
@pytest.mark.parametrize("first", [0, 1])
def test_kept_text_that_is_not_utf8_is_repaired_so_that_sql_can_read_it(
    tmp_path: Any, column: pa.Array, mended: list[object], first: int
) -> None:
    inputs = pa.table({"t": column})[first:]
    table = part_table(result_schema(inputs.schema, ("t",), TEXT), [row(number) for number in range(inputs.num_rows)], inputs)
    table.validate(full=True)
    pq.write_table(table, tmp_path / "part.parquet")
    assert [found for (found,) in duckdb.execute(f"select t from '{tmp_path}/part.parquet'").fetchall()] == mended[first:]


def test_the_counts_of_a_part() -> None:
    table = part_table(result_schema(SOURCE, (), TEXT), [row(0, truncated=True), row(1), FAILED], None)
    assert part_stats(table, generation=2, rows_recomputed=1) == PartStats(
        generation=2,
        rows_ok=2,
        rows_error=1,
        rows_truncated=1,
        rows_recomputed=1,
        prompt_tokens=300,
        cached_tokens=120,
        output_tokens=14,
        preemptions=3,
        error_example="bad_json: not JSON �",
    )
