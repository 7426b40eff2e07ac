"""What a terminal shows: tables as wide as it is, answers before columns of record, one word on jobs that no server works on."""

from __future__ import annotations

import pyarrow as pa
import pytest
from rich.cells import cell_len

from harvester.cli.job.viewed import few_columns, summary, viewed
from harvester.cli.table import fitted, text_table
from jobs.forecast.duration import seconds_of

ROWS = [
    {"row_id": 0, "title": "a" * 50, "output": "b" * 300, "status": "ok", "error_code": None, "error_message": None, "attempts": 1},
    {"row_id": 1, "title": "c", "output": None, "status": "error", "error_code": "bad_row", "error_message": "no text", "attempts": 2},
]


def batch(rows):
    return pa.RecordBatch.from_pylist(rows)


@pytest.mark.parametrize("screen", [20, 40, 80, 200])
def test_a_table_is_never_wider_than_the_screen(screen):
    wide = {f"column_{number}": "x" * (7 * number) for number in range(1, 12)}
    lines = [line for line in text_table(batch([wide]).schema, [batch([wide])], screen) if not line.startswith("...")]
    assert max(cell_len(line.rstrip("\n")) for line in lines) <= screen


def test_columns_that_are_left_out_are_named():
    wide = {f"column_{number}": "value of some width" for number in range(9)}
    assert list(text_table(batch([wide]).schema, [batch([wide])], 40))[-1].startswith("... 5 more columns: column_4, ")


def test_only_the_widest_columns_become_narrower():
    assert fitted([3, 60, 5], 40) == [3, 28, 5]
    assert sum(fitted([30, 30, 30], 61)) + 4 == 61
    assert fitted([3, 4], 40) == [3, 4]


def test_rows_are_shown_without_columns_of_record_unless_one_failed():
    good, both = batch(ROWS[:1]), batch(ROWS)
    assert few_columns([good], good.schema) == ["title", "output"]
    assert few_columns([both], both.schema) == ["title", "output", "status", "error_message"]
    assert "attempts" in next(viewed([both], both.schema, is_wide=True, screen=40))


def test_a_job_ends_with_answers_and_causes_of_errors():
    lines = list(summary([batch(ROWS)]))
    assert lines[0] == "Answers:"
    assert lines[1].startswith("  bbbb")
    assert lines[2:] == ["Errors:", "  1 x bad_row: no text"]


def test_an_error_that_tells_numbers_of_its_row_is_one_cause_and_is_cut_with_a_mark():
    rows = [{**ROWS[1], "error_message": f"the text has {tokens} tokens, and there is room for {'8' * 200}"} for tokens in (9000, 9001)]
    (line,) = list(summary([batch(rows)]))[1:]
    assert line.startswith("  2 x bad_row: the text has 9000 tokens")
    assert line.endswith("…")


def test_times_that_python_has_no_value_for_are_shown():
    at = pa.array([1577836800123456789], pa.timestamp("ns"))
    output, ok = pa.array(["fine"]), pa.array(["ok"])
    found = pa.record_batch({"at": at, "output": output, "status": ok, "error_code": pa.nulls(1, pa.string())})
    assert "2020-01-01T00:00:00.123456789" in "".join(text_table(found.schema, [found], None))
    assert list(summary([found])) == ["Answers:", "  fine"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90m", 5400), ("90min", 5400), ("1d12h", 129_600), ("1.5h", 5400), ("6 h", 21_600), ("1d 12h", 129_600), ("soon", None), ("", None)],
)
def test_a_duration_has_one_form_everywhere(text, seconds):
    assert seconds_of(text) == seconds
