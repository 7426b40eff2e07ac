"""Values of a column, where Python has one for them and where it has none."""

from __future__ import annotations

import io
from datetime import datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

from connectors.targets.lines import csv_lines, json_lines
from connectors.text import rows
from connectors.value import values
from jobs.tasks.template import render

NANO = 1577836800123456789
TOLD = "2020-01-01T00:00:00.123456789"


@pytest.mark.parametrize(
    ("column", "told"),
    [
        (pa.array([NANO // 1000, None], pa.timestamp("us")), [datetime.fromisoformat(TOLD[:-3]), None]),
        (pa.array([NANO, None], pa.timestamp("ns")), [TOLD, None]),
        (pa.array([NANO], pa.timestamp("ns", "UTC")), [f"{TOLD}+00:00"]),
        (pa.array([1_234_567_891], pa.time64("ns")), ["00:00:01.234567891"]),
        (pa.array([90_000_000_001, -1], pa.duration("ns")), ["0:01:30.000000001", "-1 day, 23:59:59.999999999"]),
        (pa.array([[NANO], None], pa.list_(pa.timestamp("ns"))), [[TOLD], None]),
        (pa.array([{"at": NANO, "n": 1}], pa.struct({"at": pa.timestamp("ns"), "n": pa.int32()})), [{"at": TOLD, "n": 1}]),
        (pa.array([[("k", NANO)]], pa.map_(pa.string(), pa.timestamp("ns"))), [[("k", TOLD)]]),
        (pa.array([NANO, NANO - 789, 0], pa.timestamp("ns")), [TOLD, TOLD[:-3], "1970-01-01T00:00:00"]),
        (pa.array([NANO - 789], pa.timestamp("ns")), [datetime.fromisoformat(TOLD[:-3])]),
        (
            pa.array([[{"a": NANO - 789}]], pa.large_list(pa.struct({"a": pa.timestamp("ns")}))),
            [[{"a": datetime.fromisoformat(TOLD[:-3])}]],
        ),
        (pa.array([1, 90_500_000_000, 90 * 10**9], pa.duration("ns")), ["0:00:00.000000001", "0:01:30.500000", "0:01:30"]),
        (pa.array([90 * 10**9], pa.duration("ns")), [timedelta(seconds=90)]),
        (pa.array([2**31 - 1, -(2**31) + 1], pa.date32()), ["infinity", "-infinity"]),
        (pa.array([2**63 - 1], pa.timestamp("us")), ["infinity"]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_times_that_python_has_no_value_for_are_iso_text(column: pa.Array, told: list[object]) -> None:
    found = values(column)
    assert found == told
    assert [type(value) for value in found] == [type(value) for value in told], "and none of pandas"


def test_lines_of_such_times_are_written() -> None:
    batch = pa.record_batch({"at": pa.array([NANO], pa.timestamp("ns")), "n": pa.array([1])})
    assert list(json_lines(batch)) == [f'{{"at": "{TOLD}", "n": 1}}\n']
    out = io.BytesIO()
    csv_lines(out, batch.schema, [batch])
    assert out.getvalue().decode() == f'"at","n"\n"{TOLD}",1\n'


def test_decimals_keep_their_last_zeros_in_csv_and_are_numbers_in_json() -> None:
    batch = pa.record_batch({"price": pa.array([Decimal("12.50"), None], pa.decimal128(18, 2))})
    assert list(json_lines(batch)) == ['{"price": 12.5}\n', '{"price": null}\n']
    out = io.BytesIO()
    csv_lines(out, batch.schema, [batch])
    assert out.getvalue().decode() == '"price"\n"12.50"\n\n'


def test_a_column_that_is_no_time_fails_as_it_did() -> None:
    bad = pa.array([b"\xff"], pa.binary()).view(pa.string())
    with pytest.raises(UnicodeDecodeError):
        values(bad)


FLOAT = pa.float32()


@pytest.mark.parametrize(
    ("column", "told"),
    [
        (pa.array([19.99, 0.1, None, 1e20, -1e-7, 16777216, -0.0], FLOAT), [19.99, 0.1, None, 1e20, -1e-7, 16777216.0, -0.0]),
        (pa.array([float("inf"), float("-inf")], FLOAT), [float("inf"), float("-inf")]),
        (pa.array([[0.1, None], None, []], pa.list_(FLOAT)), [[0.1, None], None, []]),
        (pa.array([[0.1]], pa.large_list(FLOAT)), [[0.1]]),
        (pa.array([[0.1, 0.2], None], pa.list_(FLOAT, 2)), [[0.1, 0.2], None]),
        (pa.array([{"a": 0.1, "b": "ü"}, None], pa.struct({"a": FLOAT, "b": pa.string()})), [{"a": 0.1, "b": "ü"}, None]),
        (pa.array([[("k", 0.1)]], pa.map_(pa.string(), FLOAT)), [[("k", 0.1)]]),
        (pa.array([{"a": 0.1, "at": NANO}], pa.struct({"a": FLOAT, "at": pa.timestamp("ns")})), [{"a": 0.1, "at": TOLD}]),
        (pa.array([0.1, None, 2.5], FLOAT).cast(pa.float16()), [0.1, None, 2.5]),
        (pa.ListArray.from_arrays([0, 1], pa.array([0.1], FLOAT).cast(pa.float16())), [[0.1]]),
        (pa.chunked_array([pa.array([0.1, 0.2], FLOAT), pa.array([0.3], FLOAT)]).slice(1), [0.2, 0.3]),
        (pa.array([[0.1], [0.2], [0.3, 0.4]], pa.list_(FLOAT)).slice(1), [[0.2], [0.3, 0.4]]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array | pa.ChunkedArray) else "",
)
def test_a_float_has_the_digits_that_its_column_shows(column: pa.Array, told: list[object]) -> None:
    assert repr(values(column)) == repr(told)


def test_a_float_that_is_no_number_stays_none() -> None:
    assert repr(values(pa.array([float("nan")], FLOAT))) == "[nan]"
    assert list(json_lines(pa.record_batch({"n": pa.array([float("nan")], FLOAT)}))) == ['{"n": null}\n']


def test_prompts_and_lines_show_the_digits_of_a_float() -> None:
    table = pa.table({"price": pa.array([19.99, 0.1], FLOAT), "l": pa.array([[0.1], []], pa.list_(FLOAT))})
    assert [render("{price} {l}", row) for row in rows(table)] == ["19.99 [0.1]", "0.1 []"]
    assert list(json_lines(table.to_batches()[0])) == ['{"price": 19.99, "l": [0.1]}\n', '{"price": 0.1, "l": []}\n']
