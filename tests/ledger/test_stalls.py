"""Jobs with a deadline that make no progress: they are late, and raised, although no rate of theirs is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jobs.hint import Demand, SchedulingHint
from jobs.ledger.ledger import Ledger
from jobs.spec import LeaseProgress, PartStats
from jobs.testing import scripted_plan

NOW_S = 1_000_000.0
HOUR_S = 3600.0


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(Path(":memory:"), Path("/state/jobs"), lease_s=1000.0, now_s=NOW_S, new_server=True)


def enter(ledger: Ledger, rows: int = 4000, deadline_s: float = 4 * HOUR_S) -> None:
    plan = scripted_plan("late", rows, 4, created_at_s=NOW_S)
    ledger.submit(plan.model_copy(update={"spec": plan.spec.model_copy(update={"deadline_at_s": NOW_S + deadline_s})}), new=True)


def leased(ledger: Ledger, now_s: float) -> str:
    lease = ledger.lease("a", "scripted", now_s)
    assert lease is not None
    return lease.lease_id


def work(ledger: Ledger, from_s: float, minutes: int) -> float:
    """A slice of 4 rows is done each 15 s. Returns the time after."""
    for at in range(0, 60 * minutes, 15):
        stats = PartStats(rows_ok=4, prompt_tokens=400, output_tokens=80)
        lease_id, number = leased(ledger, from_s + at), at // 15
        ledger.commit(lease_id, "late", number, stats, from_s + at)
        ledger.hints(from_s + at)
    return from_s + 60 * minutes


def stand_by(ledger: Ledger, lease_id: str | None, from_s: float, minutes: int, rows: int = 0, row_s: float | None = None) -> float:
    """Heartbeats each 5 s, of a lease (if any) that has ``rows`` done, and one more each ``row_s``. Returns the time after."""
    for at in range(0, 60 * minutes, 5):
        done = rows if row_s is None else rows + int(at / row_s)
        told = [] if lease_id is None else [LeaseProgress(lease_id=lease_id, rows_done=done, tokens_done=120 * done)]
        ledger.heartbeat("a", told, from_s + at)
        ledger.hints(from_s + at)
    return from_s + 60 * minutes


@pytest.mark.parametrize("begins", ["from its start", "later", "before its first lease"])
def test_a_job_without_progress_is_late_and_is_raised_up_to_its_deadline(ledger: Ledger, begins: str) -> None:
    enter(ledger)
    now_s = work(ledger, NOW_S, 10) if begins == "later" else NOW_S
    lease_id = None if begins == "before its first lease" else leased(ledger, now_s)
    now_s = stand_by(ledger, lease_id, now_s, 20)
    assert ledger.demand("scripted", now_s) == Demand(has_work=True, is_late=True)
    view, hint = ledger.show("late"), ledger.hints(now_s)["late"]
    assert (view.eta_s, view.eta_high_s, view.standing) == (None, None, view.standing)
    assert "has made no progress for" in (view.standing or "")
    assert hint.share == 0.25, "no other job has work"
    json.dumps([view.model_dump(), hint.to_args()], allow_nan=False)
    for _ in range(6):
        now_s = stand_by(ledger, lease_id, now_s, 10)
        assert ledger.demand("scripted", now_s).is_late


def test_a_job_that_is_resumed_is_given_time_to_make_progress(ledger: Ledger) -> None:
    enter(ledger)
    now_s = stand_by(ledger, leased(ledger, NOW_S), NOW_S, 20)
    ledger.pause("late", now_s)
    ledger.resume("late", now_s + HOUR_S)
    now_s = stand_by(ledger, None, now_s + HOUR_S, 1)
    assert ledger.hints(now_s)["late"] == SchedulingHint("late")
    assert ledger.show("late").standing is None


def test_a_job_whose_first_rows_take_minutes_is_not_raised_for_it_while_there_is_time(ledger: Ledger) -> None:
    enter(ledger)
    now_s = stand_by(ledger, leased(ledger, NOW_S), NOW_S, 10)
    assert ledger.hints(now_s)["late"] == SchedulingHint("late")
    assert ledger.show("late").standing is None


def test_the_nearer_the_deadline_the_sooner_a_job_without_progress_is_late(ledger: Ledger) -> None:
    enter(ledger, deadline_s=600.0)
    now_s = stand_by(ledger, leased(ledger, NOW_S), NOW_S, 1)
    assert ledger.demand("scripted", now_s).is_late


def test_a_job_that_publishes_nothing_for_long_is_told_from_the_rows_in_work(ledger: Ledger) -> None:
    """A row each 90 s, in a slice that is not done: over most of the last minutes no row was done."""
    enter(ledger)
    lease_id = leased(ledger, NOW_S)
    now_s = stand_by(ledger, lease_id, NOW_S, 6, row_s=90.0)
    for _ in range(3):
        now_s = stand_by(ledger, lease_id, now_s, 1, rows=3)
        view = ledger.show("late")
        assert view.eta_s is not None
        assert "after its deadline" in (view.standing or "")


def test_a_job_whose_rows_are_all_done_and_not_published_is_not_late_for_want_of_progress(ledger: Ledger) -> None:
    enter(ledger, rows=4)
    now_s = stand_by(ledger, leased(ledger, NOW_S), NOW_S, 20, rows=4)
    assert ledger.demand("scripted", now_s) == Demand(has_work=True)
