"""docs/measured.md and the figures of README.md are what tools/measured.py makes of bench/results."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"harvester_{name}", ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


measured, promise = tool("measured"), tool("promise")
TABLE = yaml.safe_load(measured.TABLE.read_text(encoding="utf-8"))
RESULT: dict[str, Any] = {
    "scenario": "coserve",
    "commit": "0123456789abcdef-dirty",
    "machine": {"cpu": "Some CPU", "cores": 2},
    "model": "small",
    "started_at": "2026-11-22T15:46:21+00:00",
    "arguments": {"quick": True, "seconds": 40.0, "set": {"rounds": 2.0}},
    "ratio": 0.9685,
    "limit": 0.97,
    "rounds": {"rounds": [0.9, 1.1]},
    "points": [{"ms": 7.0}, {"ms": 9.0}],
}


def test_the_page_is_what_the_results_say() -> None:
    assert measured.PAGE.read_text(encoding="utf-8") == measured.page(TABLE), "run: python tools/measured.py"


def test_the_figures_in_the_readme_are_what_the_results_say() -> None:
    text = measured.README.read_text(encoding="utf-8")
    assert text == measured.readme(TABLE, text), "run: python tools/measured.py"


def test_the_picture_in_the_readme_shows_the_figures_of_the_result() -> None:
    assert promise.digest(promise.figures()).encode() in promise.PICTURE.read_bytes(), "run: python tools/promise.py"


def test_the_readme_shows_a_goal_that_was_missed() -> None:
    rows = [row for row in measured.in_readme(TABLE) if row.startswith("|")]
    assert len(rows) == 3
    assert any("**missed**" in row for row in rows)


@pytest.mark.parametrize(
    ("goal", "verdict"),
    [
        ("<= 0.9685", "met"),
        ("<= limit", "met"),
        (">= limit", "**missed**"),
        (">= 0.97", "**missed**"),
        ("== ratio", "met"),
        (None, ""),
        ("within 0.9 0.97", "met"),
        ("within 0.97 1.1", "**missed**"),
    ],
)
def test_a_verdict_is_computed_from_the_value_as_measured(goal: str | None, verdict: str) -> None:
    assert measured.cells(RESULT, {"at": "ratio", "goal": goal})[2] == verdict


def test_a_goal_between_two_bounds_shows_both() -> None:
    assert measured.cells(RESULT, {"at": "ratio", "goal": "within 0.90 1.1"})[1] == "0.9 to 1.1"


def test_a_value_comes_with_the_range_of_its_rounds_and_its_goal_without_idle_zeros() -> None:
    assert measured.cells(RESULT, {"at": "ratio", "spread": "rounds", "goal": ">= 0.950"})[:2] == ("0.969 (0.900 to 1.10)", "≥ 0.95")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1478.3, "ms", "1,478 ms"),
        (290.76, "ms", "291 ms"),
        (0.13749, "%", "13.7%"),
        (17, None, "17"),
        (1.003, None, "1.00"),
        (True, None, "yes"),
    ],
)
def test_a_value_is_shown_with_three_digits(value: float, unit: str | None, text: str) -> None:
    assert measured.shown(value, unit) == text


def test_a_short_run_with_uncommitted_changes_says_so() -> None:
    text = measured.origin(RESULT, "x.json")
    assert "Some CPU, 2 cores; small; commit 0123456789; 2026-11-22; `python -m bench coserve --quick --seconds 40 --set rounds=2`" in text
    assert "**short run (`--quick`)**" in text
    assert "**made with uncommitted changes**" in text


def test_a_full_run_of_a_commit_has_no_mark() -> None:
    whole = RESULT | {"commit": "0123456789abcdef", "arguments": {"quick": False, "seconds": None, "set": {}}}
    assert "**" not in measured.origin(whole, "x.json")


def test_goals_are_counted_in_lists_and_in_grids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "load", lambda file: RESULT)
    grid = {"columns": {"a": "points/0", "b": "points/1"}, "rows": [{"what": "time", "at": "ms", "goal": "<= 8"}]}
    figures = [{"at": "ratio", "goal": ">= 0.97"}, {"at": "ratio"}]
    table = {"sections": [{"file": "x.json", "figures": figures}, {"file": "y.json", "grid": grid}]}
    assert measured.tally(table) == "Of 3 goals 1 are met and 2 missed."


def test_a_cell_of_a_grid_that_misses_its_goal_says_so() -> None:
    table = {"columns": {"a": "points/0", "b": "points/1"}, "rows": [{"what": "time", "at": "ms", "goal": "<= 8"}]}
    assert "| time | 7.00 | 9.00 **missed** | ≤ 8 |" in measured.grid(RESULT, table)


@pytest.mark.parametrize("place", ["no/such/place", "points/7"])
def test_a_place_that_a_result_lacks_is_an_error(place: str) -> None:
    with pytest.raises((KeyError, IndexError)):
        measured.value_at(RESULT, place)


@pytest.mark.parametrize("place", ["no/such/place", "points/7", "ratio/deeper", "nothing"])
def test_an_optional_figure_that_a_result_lacks_was_not_measured(place: str) -> None:
    figure = {"at": place, "optional": True, "goal": ">= 0.9"}
    assert measured.cells(RESULT | {"nothing": None}, figure) == ("not measured", "", "")
    assert measured.cells(RESULT, figure | {"at": "ratio"}) == ("0.969", "≥ 0.9", "met")


def test_headings_come_from_the_points_that_a_result_has() -> None:
    table = {"columns": ["points/1", "points/0", "points/2"], "heading": "{ms:g} ms", "rows": [{"what": "time", "at": "ms"}]}
    assert measured.columns_of(RESULT, table) == {"9 ms": "points/1", "7 ms": "points/0"}
    assert measured.grid(RESULT, table).startswith("| | 9 ms | 7 ms | goal |\n")


def test_a_section_may_wait_for_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(measured, "RESULTS", tmp_path)
    parts = [{"file": "a.json", "optional": True}, {"file": "b.json", "optional": True}, {"file": "c.json"}]
    (tmp_path / "b.json").write_text("{}")
    assert [part["file"] for part in measured.sections({"sections": parts})] == ["b.json", "c.json"]


def test_the_command_has_the_pace_of_chat() -> None:
    given: dict[str, Any] = {"quick": False, "seconds": None, "set": {}, "rate": None, "shares": [0.25, 0.5]}
    assert measured.command(RESULT | {"arguments": given}) == "python -m bench coserve --share 0.25 --share 0.5"
    assert measured.command(RESULT | {"arguments": given | {"rate": 3.0, "shares": []}}) == "python -m bench coserve --rate 3"


def test_a_readme_without_the_marks_of_its_table_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"README\.md has no lines"):
        measured.readme(TABLE, "# harvester\n")


def test_a_goal_against_a_peer_of_one_setting_is_not_met() -> None:
    figure = {"what": "ours", "at": "ratios/rows_over_vllm_priority", "goal": ">= 1"}
    result = {"ratios": {"rows_over_vllm_priority": 1.2}}
    assert measured.cells(result, figure)[2] == "peer not swept"
    assert measured.cells(result | {"vllm_priority_sweep": []}, figure)[2] == "peer not swept", "as with --quick"
    assert measured.cells(result | {"vllm_priority_sweep": [{}]}, figure)[2] == "met"
    assert measured.cells({"ratios": {"rows_over_vllm_priority": 0.9}}, figure)[2] == "**missed**", "which no other setting makes better"
    assert measured.cells(result, figure, {"vllm_priority_sweep": [{}], "points": [result]})[2] == "met"
