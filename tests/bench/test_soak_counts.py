"""What a soak counts: how long a server was shut, and one story over many runs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.scenarios.soak import soak
from bench.scenarios.soak.probe import Probe


def probe(*asked: tuple[float, bool]) -> Probe:
    return Probe("http://nowhere", False, list(asked))


@pytest.mark.parametrize(
    ("asked", "since_s", "seconds"),
    [
        ([(1.0, True), (1.1, True)], 0.0, 0.0),
        ([(1.0, True), (1.1, False), (1.2, False), (1.3, True)], 0.0, 0.2),
        ([(1.0, True), (1.3, True), (1.1, False), (1.2, False)], 0.0, 0.2),
        ([(1.0, False), (2.0, True), (3.0, False), (3.5, True)], 0.0, 1.0),
        ([(1.0, False), (2.0, True), (3.0, False), (3.5, True)], 2.5, 0.5),
        ([(1.0, False), (2.0, True)], 1.5, 0.5),
    ],
    ids=["never", "once", "told in another order", "the longest of two", "since then", "from then on"],
)
def test_a_server_is_shut_from_a_request_without_an_answer_to_the_next_with_one(
    asked: list[tuple[float, bool]], since_s: float, seconds: float
) -> None:
    assert probe(*asked).longest_s(since_s) == pytest.approx(seconds)


def test_a_server_is_open_when_all_of_the_last_second_was_answered() -> None:
    asked = probe((8.0, False), (9.5, True), (9.9, True))
    assert asked.is_open(10.0)
    assert not asked.is_open(8.9)
    assert not asked.is_open(12.0), "nothing was asked and told"


GROUPS = [
    {"roles": ["raylet"], "shut_s": {"api": 9.0, "chat": 8.0}},
    {"roles": ["raylet"], "shut_s": {"api": 3.0, "chat": 8.5}},
    {"roles": ["gcs", "main"], "shut_s": {"api": 20.0, "chat": 21.0}},
]


def rows(**found: int) -> dict[str, Any]:
    return {"expected": 8000, "lost": 0, "unfinished": 0, "twice": 0, "wrong": 0, "errors": 0, "unknown_jobs": 0} | found


def test_a_server_that_ctrl_c_has_stopped_is_started_so_that_jobs_can_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[bool] = []
    server: Any = SimpleNamespace(url="http://nowhere", is_running=False, start=lambda: started.append(True))
    one = soak.Soak(server, tmp_path, 0)
    monkeypatch.setattr(one.work, "settle", lambda: bool(started))
    monkeypatch.setattr(one.work, "is_over", lambda: True)
    one.finish()
    assert started == [True]


def test_the_longest_time_is_told_by_who_was_killed_alone() -> None:
    assert soak.longest(GROUPS) == {"raylet": {"api": 9.0, "chat": 8.5}, "several": {"api": 20.0, "chat": 21.0}}


def test_kills_and_rows_of_all_runs_add_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(soak, "HISTORY", tmp_path / "soak.json")
    monkeypatch.setattr(soak, "commit", lambda: "c2")
    assert soak.earlier() == {"kills_by_commit": {}, "kills_in_all": 0, "rows_in_all": {}}
    before = {"kills_by_commit": {"c1": 10}, "kills_in_all": 10, "rows_in_all": rows(wrong=1)}
    story = soak.added(before, GROUPS, rows(unfinished=5))
    assert (story["kills_by_commit"], story["kills_in_all"]) == ({"c1": 10, "c2": 4}, 14)
    assert story["rows_in_all"] == rows(wrong=1, unfinished=5) | {"expected": 16000}


@pytest.mark.parametrize(
    ("kills", "found", "met"),
    [
        (1000, {}, {"kills": True, "rows": True, "shut_s": True}),
        (999, {}, {"kills": False, "rows": True, "shut_s": True}),
        (1000, {"unfinished": 3}, {"kills": True, "rows": False, "shut_s": True}),
        (1000, {"lost": 1}, {"kills": True, "rows": False, "shut_s": True}),
        (1000, {"unknown_jobs": 1}, {"kills": True, "rows": False, "shut_s": True}),
    ],
)
def test_a_row_that_is_lost_in_any_run_misses_the_goal(kills: int, found: dict[str, int], met: dict[str, bool]) -> None:
    judged = soak.goals({"kills_in_all": kills, "rows_in_all": rows(**found)}, GROUPS)
    assert {name: goal["met"] for name, goal in judged.items()} == met
