"""Values of a column, where Python has one for them and where it has none."""

from __future__ import annotations

import io
from datetime import datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

from connectors.targets.lines import csv_lines, json_lines
from connectors.value import values

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
