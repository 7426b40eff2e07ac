"""What a terminal shows: tables as wide as it is, answers before columns of record, one word on jobs that no server works on."""

from __future__ import annotations

import pyarrow as pa
import pytest
from rich.cells import cell_len

from harvester.cli.job.text import job_lines, job_table, progress_line
from harvester.cli.job.viewed import few_columns, summary, viewed
from harvester.cli.table import clip, fitted, markdown_table, text_table
from jobs.forecast.duration import seconds_of
from tests.fakes.http_server import job_view

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


def test_numbers_have_all_their_digits():
    numbers = [12345678.9, 0.1, 1764480000.0, 2.0, 1e20, 1 / 3, float("nan"), None]
    told = ["12345678.9", "0.1", "1764480000", "2", "1e+20", "0.3333333333333333", "nan", ""]
    found = pa.record_batch({"n": numbers})
    assert [line.strip("| \n") for line in markdown_table(found.schema, [found])][2:] == told
    assert [line.strip() for line in text_table(found.schema, [found])][2:] == told
    single = pa.record_batch({"n": pa.array([19.99, 0.1], pa.float32())})
    assert [line.strip("| \n") for line in markdown_table(single.schema, [single])][2:] == ["19.99", "0.1"]


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


# Copies to the clipboard; clears the screen; the same by one character of C1; goes back; deletes.
OBEYED = "\x1b]52;c;aGk=\x07 \x1b[2J \x9b2J \b \x7f"


def is_obeyed(shown: str) -> bool:
    return any((ord(letter) < 0x20 and letter != "\n") or 0x7F <= ord(letter) < 0xA0 for letter in shown)


@pytest.mark.parametrize("is_wide", [False, True])
def test_a_table_shows_what_a_terminal_would_obey(is_wide):
    found = batch([{OBEYED: 1, "output": OBEYED, "status": "error", "error_message": OBEYED}])
    shown = "".join(viewed([found], found.schema, is_wide=is_wide, screen=300))
    assert not is_obeyed(shown)
    assert r"\x1b]52;c;aGk=\x07 \x1b[2J \u009b2J \x08 \u007f" in shown


def test_the_end_of_a_job_shows_what_a_terminal_would_obey():
    rows = [{**ROWS[0], "output": OBEYED}, {**ROWS[1], "error_code": "\x1bc", "error_message": OBEYED}]
    shown = "\n".join(summary([batch(rows)]))
    assert r"  \x1b]52;" in shown
    assert r"  1 x \x1bc: \x1b]52;" in shown
    assert not is_obeyed(shown)


def test_what_a_job_tells_shows_what_a_terminal_would_obey():
    view = job_view(id="docs-7f3a", state="failed", source=OBEYED, message=f"no table\n{OBEYED}", notes=[OBEYED])
    for lines in (list(job_lines(view)), list(job_table([view])), [progress_line(view)]):
        assert not is_obeyed("".join(lines))
        assert r"\x1b]52;c;aGk=" in "".join(lines)
    assert len([line for line in job_lines(view) if "\n" in line]) == 0


def test_a_value_with_control_characters_is_cut_by_what_it_takes_on_the_screen():
    assert clip("\x1b" * 10, 12) == r"\x1b\x1b\x1"[:11] + "…"


def test_a_table_for_a_file_holds_the_values_as_they_are():
    found = batch([{"output": OBEYED}])
    assert OBEYED in "".join(markdown_table(found.schema, [found]))
