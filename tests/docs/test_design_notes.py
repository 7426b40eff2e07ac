"""Every design note has its number in its title, then a status and a date, and its lines can be read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

NOTES = sorted((Path(__file__).parents[2] / "docs" / "design").glob("*.md"))
MAX_COLUMNS = 140

_LINK = r"\[\d{4}\]\(\d{4}-[\w-]+\.md\)"
_BY = rf"(?:partly )?superseded by (?P<by>{_LINK}(?:(?:, | and ){_LINK})*)"
_STATUS = re.compile(rf"Status: (?:accepted|{_BY})\. Date: \d{{4}}-\d\d-\d\d\.")


def lines_of(note: Path) -> list[str]:
    return note.read_text(encoding="utf-8").splitlines()


def test_numbers_run_without_a_gap() -> None:
    assert [note.name[:4] for note in NOTES] == [f"{number:04}" for number in range(1, len(NOTES) + 1)]


@pytest.mark.parametrize("note", NOTES, ids=lambda note: note.stem)
def test_a_note_begins_with_its_number_a_status_and_a_date(note: Path) -> None:
    title, blank, status, after, *_ = lines_of(note)
    assert re.match(rf"# {note.name[:4]} [A-Z]\S*", title), title
    assert (blank, after) == ("", "")
    assert _STATUS.fullmatch(status), status


@pytest.mark.parametrize("note", NOTES, ids=lambda note: note.stem)
def test_a_note_is_superseded_by_later_ones(note: Path) -> None:
    found = _STATUS.fullmatch(lines_of(note)[2])
    assert found is not None
    assert all(number > note.name[:4] for number in re.findall(r"\[(\d{4})\]", found["by"] or ""))


@pytest.mark.parametrize("note", NOTES, ids=lambda note: note.stem)
def test_a_note_names_a_problem_a_choice_and_what_was_rejected(note: Path) -> None:
    text = note.read_text(encoding="utf-8")
    for part in ("Problem", "Choice", "Rejected"):
        assert re.search(rf"^(?:\*\*{part}\b|## {part}$)", text, re.MULTILINE), f"{note.name} has no {part}"


@pytest.mark.parametrize("note", NOTES, ids=lambda note: note.stem)
def test_no_line_but_of_a_table_is_too_long(note: Path) -> None:
    assert [line for line in lines_of(note) if len(line) > MAX_COLUMNS and not line.startswith("|")] == []


@pytest.mark.parametrize(
    ("line", "holds"),
    [
        ("Status: accepted. Date: 2026-11-21.", True),
        ("Status: superseded by [0007](0007-slo-budget.md). Date: 2026-11-21.", True),
        ("Status: partly superseded by [0007](0007-slo-budget.md) and [0018](0018-kv-checkpoints.md). Date: 2026-11-21.", True),
        ("Status: in use. Date: 2026-11-21.", False),
        ("Status: superseded by 0007. Date: 2026-11-21.", False),
        ("Status: accepted.", False),
    ],
)
def test_a_status_has_one_form(line: str, holds: bool) -> None:
    assert bool(_STATUS.fullmatch(line)) is holds
