"""Scenario ``fleet``: what it makes of the losses that it saw."""

from __future__ import annotations

from typing import Any

import pytest

from bench.scenarios.soak.fleet import BESIDE, KILLS, by_kind, goals


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
