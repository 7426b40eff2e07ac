"""Scenario ``fleet``: what it makes of the losses that it saw."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from bench.scenarios.soak import fleet as scenario
from bench.scenarios.soak.fleet import BESIDE, KILLS, Losses, by_kind, goals
from bench.scenarios.soak.work import Work


def loss(
    kind: str, *, api_s: float = 0.0, chat_s: float = 0.0, beside_s: float | None = 0.0, cut: int = 0, told_s: float | None = None
) -> dict[str, Any]:
    shut = {"api": api_s, "chat": chat_s} | ({} if beside_s is None else {BESIDE: beside_s})
    return {
        "kind": kind,
        "machine": "n0",
        "ledger_there": kind == "head_killed",
        "shut_s": shut,
        "asked": {name: {"answered": 10, "failed": round(seconds)} for name, seconds in shut.items()},
        "streams_of_others": 6,
        "streams_of_others_cut": cut,
        "own_streams_told_after_s": told_s,
    }


def rows(**found: int) -> dict[str, Any]:
    return {"expected": 5000, "lost": 0, "unfinished": 0, "twice": 0, "wrong": 0, "errors": 0, "unknown_jobs": 0} | found


GOOD = [loss("killed"), loss("cut_off"), loss("head_killed")] * (KILLS // 2)


def test_the_worst_of_a_kind_is_told_without_probes_of_what_was_lost() -> None:
    found = by_kind([loss("cut_off", chat_s=2.0, beside_s=None), loss("cut_off", chat_s=9.0, beside_s=1.0, cut=2, told_s=64.0)])
    assert set(found) == {"cut_off"}
    assert found["cut_off"] == {
        "count": 2,
        "with_the_ledger": 0,
        "longest_shut_s": {"api": 0.0, "chat": 9.0, BESIDE: 1.0},
        "failed": {"api": 0, "chat": 11, BESIDE: 1},
        "answered": {"api": 20, "chat": 20, BESIDE: 10},
        "streams_of_others": 12,
        "streams_of_others_cut": 2,
        "own_streams_told_after_s": 64.0,
    }


def test_all_goals_are_met_where_nothing_was_noticed() -> None:
    judged = goals(rows(), GOOD)
    assert all(goal["met"] for goal in judged.values()), judged


@pytest.mark.parametrize(
    ("found", "more", "missed"),
    [
        ({"lost": 1}, [], "rows_lost"),
        ({"twice": 1}, [], "rows_twice"),
        ({}, [loss("cut_off", cut=1)], "streams_of_others_cut"),
        ({}, [loss("killed", api_s=6.0)], "api_shut_s_worker"),
        ({}, [loss("cut_off", chat_s=92.0)], "chat_shut_s_worker"),
        ({}, [loss("head_killed", api_s=6.0)], "api_shut_s_head"),
        ({}, [loss("head_killed", beside_s=6.0)], f"{BESIDE}_shut_s_head"),
    ],
)
def test_each_goal_can_be_missed(found: dict[str, int], more: list[Any], missed: str) -> None:
    judged = goals(rows(**found), [*GOOD, *more])
    assert [name for name, goal in judged.items() if not goal["met"]] == [missed]


def test_too_few_losses_are_no_result() -> None:
    judged = goals(rows(), [loss("killed")])
    assert [name for name, goal in judged.items() if not goal["met"]] == ["machines_lost"]


def test_a_fleet_that_does_not_come_back_tells_its_last_loss_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    head, beside = (SimpleNamespace(name=name, address="10.0.0.1") for name in ("head", "beside"))
    fleet: Any = SimpleNamespace(head=head, machines=[head, beside], where=lambda role: [])
    server: Any = SimpleNamespace(url="http://nowhere", port=1)
    work: Any = SimpleNamespace(keep_up=lambda: None, finish=lambda: None)
    losses = Losses(fleet, server, work, {}, 0)
    hanging = SimpleNamespace(replica=None, whole=False, ended_s=None, join=lambda seconds: waits.append(seconds))
    waits: list[float] = []
    last = {
        "kind": "killed",
        "machine": "beside",
        "ledger_there": False,
        "began_s": time.monotonic(),
        "streams": [hanging],
        "theirs": set(),
    }
    calms = iter([None, TimeoutError("the server did not come back within 600 s")])

    def calm(is_well: Any) -> None:
        error = next(calms)
        if error is not None:
            raise error

    monkeypatch.setattr(scenario, "wait_calm", calm)
    monkeypatch.setattr(losses, "_lose", lambda kind: losses.found.append(dict(last)))
    assert losses.play(3) == "the server did not come back within 600 s"
    assert waits == [0.0], "an open stream is not waited for"
    (found,) = json.loads(json.dumps(losses.found))
    assert found["streams_of_others_cut"] == 1


def test_a_fleet_that_did_not_come_back_misses_a_goal() -> None:
    judged = goals(rows(), GOOD, "the server did not come back within 600 s")
    assert [name for name, goal in judged.items() if not goal["met"]] == ["came_back"]


def test_rows_that_nobody_can_read_now_are_unfinished_and_not_lost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server: Any = SimpleNamespace(url="http://nowhere")
    work = Work(server, tmp_path, 50, is_far=True)

    def away(job: str) -> list[tuple[int, str, str]]:
        raise httpx.ConnectError("nobody listens")

    monkeypatch.setattr(work, "_told", away)
    assert work._rows_of("job", True)["lost"] == 0
    assert work._rows_of("job", True)["unfinished"] == 50
