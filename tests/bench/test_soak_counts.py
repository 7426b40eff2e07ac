"""What a soak counts: how long a server was shut, and one story over many runs."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.scenarios.soak import soak
from bench.scenarios.soak.probe import Probe
from harvester.errors import EngineError


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
        ([(1.0, True), (2.0, False), (9.0, False)], 0.0, 7.0),
    ],
    ids=[
        "never",
        "once",
        "told in another order",
        "the longest of two",
        "since then",
        "from then on",
        "never again",
    ],
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


GROUPS: list[dict[str, Any]] = [
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


def soak_of(tmp_path: Path) -> soak.Soak:
    server: Any = SimpleNamespace(url="http://nowhere", is_running=True)
    return soak.Soak(server, tmp_path, 0)


def never_back(_: Any) -> None:
    raise TimeoutError("the server did not come back within 600 s")


def test_a_run_whose_server_does_not_come_back_tells_why_and_after_which_kills(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    one = soak_of(tmp_path)
    calm = iter([lambda _: None, never_back])
    monkeypatch.setattr(soak, "wait_calm", lambda is_well: next(calm)(is_well))
    monkeypatch.setattr(soak, "APART_S", 0.0)
    monkeypatch.setattr(soak, "kill", lambda server, role: True)
    monkeypatch.setattr(one.work, "keep_up", lambda: None)
    assert one.play(3600.0) == "the server did not come back within 600 s"
    (group,) = one.groups
    assert group["came_back"] is False
    assert group["roles"]


def test_a_main_process_that_does_not_start_again_is_counted_as_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    one = soak_of(tmp_path)

    def no_start(server: Any, role: str) -> bool:
        raise EngineError("the server did not start")

    monkeypatch.setattr(soak, "wait_calm", lambda is_well: None)
    monkeypatch.setattr(soak, "kill", no_start)
    monkeypatch.setattr(one.work, "keep_up", lambda: None)
    assert one.play(3600.0) == "the server did not start"
    assert [len(group["roles"]) for group in one.groups] == [1]


def test_jobs_that_do_not_end_end_the_run_with_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    one = soak_of(tmp_path)

    def stuck() -> None:
        raise TimeoutError("jobs did not end within 600 s: {'a': 'running'}")

    monkeypatch.setattr(one, "go_on", lambda seconds: None)
    monkeypatch.setattr(one.work, "finish", stuck)
    assert one.play(1.0) == "jobs did not end within 600 s: {'a': 'running'}"


def test_the_longest_time_is_told_by_who_was_killed_alone() -> None:
    assert soak.longest(GROUPS) == {"raylet": {"api": 9.0, "chat": 8.5}, "several": {"api": 20.0, "chat": 21.0}}


def test_kills_and_rows_of_all_runs_add_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(soak, "HISTORY", tmp_path / "soak.json")
    monkeypatch.setattr(soak, "commit", lambda: "c2")
    assert soak.earlier() == {"kills_by_commit": {}, "kills_in_all": 0, "rows_in_all": {}, "runs_not_back": 0}
    before = {"kills_by_commit": {"c1": 10}, "kills_in_all": 10, "rows_in_all": rows(wrong=1), "runs_not_back": 1}
    story = soak.added(before, GROUPS, rows(unfinished=5), came_back=False)
    assert story["runs_not_back"] == 2
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
    judged = soak.goals({"kills_in_all": kills, "rows_in_all": rows(**found), "runs_not_back": 0}, GROUPS)
    assert {name: goal["met"] for name, goal in judged.items()} == met | {"runs_not_back": True}


def test_a_run_whose_server_did_not_come_back_misses_a_goal() -> None:
    judged = soak.goals({"kills_in_all": 1000, "rows_in_all": rows(), "runs_not_back": 1}, GROUPS)
    assert [name for name, goal in judged.items() if not goal["met"]] == ["runs_not_back"]


def test_a_history_that_was_written_before_such_runs_were_counted_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(soak, "HISTORY", tmp_path / "soak.json")
    old = {"kills_by_commit": {"c1": 10}, "kills_in_all": 10, "rows_in_all": rows()}
    soak.HISTORY.write_text(json.dumps(old), encoding="utf-8")
    assert soak.earlier() == old | {"runs_not_back": 0}
