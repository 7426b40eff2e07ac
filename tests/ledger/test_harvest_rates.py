"""Rates that estimates take: what was done in which hour, in how much time of work, and what an outage leaves of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connectors.errors import StorageError
from jobs.ledger.ledger import Ledger
from jobs.spec import JobChange, LeaseProgress, PartStats
from jobs.states import JobState
from jobs.testing import scripted_plan
from jobs.usage import Usage
from tests.fakes.scripted_ledger import FullDisk

HOUR_S = 3600.0
NOW_S = 1_000_000 * HOUR_S
USED: dict[str, Any] = {"prompt_tokens": 400, "output_tokens": 80}  # of a slice of 4 rows


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(Path(":memory:"), Path("/state/jobs"), lease_s=60.0, now_s=NOW_S, new_server=True)


def enter(ledger: Ledger, name: str, slices: int, model: str = "scripted") -> str:
    return ledger.submit(scripted_plan(name, 4 * slices, 4, model=model), new=True)[0].id


def work(ledger: Ledger, from_s: float, slices: int, slice_s: int, stats: PartStats, model: str = "scripted") -> float:
    """One replica with a heartbeat each second. Returns the time after."""
    for number in range(slices):
        begin_s = from_s + number * slice_s
        lease = ledger.lease(model, model, begin_s)
        assert lease is not None
        for second in range(1, slice_s):
            ledger.heartbeat(model, [LeaseProgress(lease_id=lease.lease_id)], begin_s + second)
        ledger.commit(lease.lease_id, lease.job.id, lease.slice.slice_id, stats, begin_s + slice_s)
    end_s = from_s + slices * slice_s
    ledger.expire(end_s)
    return end_s


def harvested(ledger: Ledger, model: str = "scripted") -> list[tuple[float, int, int]]:
    """Hour since the start, tokens, and busy seconds to ten."""
    lines = [line for line in ledger.table("harvest").to_pylist() if line["model"] == model]
    return sorted(((line["hour_s"] - NOW_S) / HOUR_S, line["tokens"], round(line["busy_s"], -1)) for line in lines)


def test_a_retry_counts_with_its_tokens_and_its_time_in_its_own_hour(ledger: Ledger) -> None:
    job_id = enter(ledger, "docs", 4)
    work(ledger, NOW_S, 4, 50, PartStats(rows_error=4, **USED))
    ledger.retry(job_id, NOW_S + HOUR_S)
    work(ledger, NOW_S + HOUR_S, 4, 100, PartStats(generation=1, rows_ok=4, **USED, replaced=Usage(**USED)))
    assert harvested(ledger) == [(0, 4 * 480, 200), (1, 4 * 480, 400)]
    enter(ledger, "next", 1)
    work(ledger, NOW_S + 2 * HOUR_S, 1, 50, PartStats(rows_ok=4, **USED))
    assert harvested(ledger) == [(0, 4 * 480, 200), (1, 4 * 480, 400), (2, 480, 50)]


def test_rows_of_a_slice_that_was_given_back_count_in_the_hour_in_which_they_were_done(ledger: Ledger) -> None:
    enter(ledger, "docs", 1)
    lease = ledger.lease("scripted", "scripted", NOW_S)
    assert lease is not None
    for second in range(1, 51):
        ledger.heartbeat("scripted", [LeaseProgress(lease_id=lease.lease_id)], NOW_S + second)
    ledger.keep(lease.lease_id, PartStats(rows_ok=2, prompt_tokens=200, output_tokens=40), NOW_S + 50)
    ledger.expire(NOW_S + 50)
    work(ledger, NOW_S + HOUR_S, 1, 20, PartStats(rows_ok=4, **USED))
    assert harvested(ledger) == [(0, 240, 50), (1, 240, 20)]


def test_time_in_which_only_another_model_has_work_is_not_counted(ledger: Ledger) -> None:
    enter(ledger, "long", 1, model="other")
    other = ledger.lease("b", "other", NOW_S)
    assert other is not None
    for number in range(3):
        enter(ledger, f"short-{number}", 1)
        now_s = work(ledger, NOW_S + 100 * number, 1, 20, PartStats(rows_ok=4, **USED))
        for second in range(1, 80):
            ledger.heartbeat("b", [LeaseProgress(lease_id=other.lease_id)], now_s + second)
    assert harvested(ledger) == [(0, 3 * 480, 60)]
    assert harvested(ledger, "other") == [(0, 0, 280)]


def test_what_a_full_disk_refuses_is_written_later(ledger: Ledger) -> None:
    """The third commit is the first that is due to write what was learnt, and its own part is learnt after it."""
    enter(ledger, "docs", 4)
    stats = PartStats(rows_ok=4, **USED, device_s=900.0, cost=2.0, currency="EUR", lengths=((7, 12, 4),))
    now_s = work(ledger, NOW_S, 2, 2, stats)
    lease = ledger.lease("scripted", "scripted", now_s + 10)
    assert lease is not None
    disk = FullDisk(ledger)
    for second in (11, 12):
        with pytest.raises(StorageError, match="No space left on device"):
            ledger.commit(lease.lease_id, lease.job.id, lease.slice.slice_id, stats, now_s + second)
    disk.full = False
    ledger.commit(lease.lease_id, lease.job.id, lease.slice.slice_id, stats, now_s + 13)
    work(ledger, now_s + 13, 1, 2, stats)
    (line,) = ledger.table("harvested").to_pylist()
    assert (line["rows"], line["prompt_tokens"], line["gpu_hours"], line["cost"]) == (16, 1600, 1.0, 8.0)
    assert sum(line["rows"] for line in ledger.table("harvest").to_pylist()) == 16
    assert sum(line["rows"] for line in ledger.table("lengths").to_pylist()) == 16
    ledger.check()


def test_an_outage_does_not_slow_the_rate_of_a_job(ledger: Ledger) -> None:
    job_id = enter(ledger, "docs", 400)
    stats = PartStats(rows_ok=4, **USED)
    now_s = work(ledger, NOW_S, 20, 10, stats)
    now_s = work(ledger, now_s + 2 * HOUR_S, 3, 10, stats)
    view = ledger.show(job_id)
    assert view.eta_s == pytest.approx(377 * 10.0, rel=0.05)
    assert view.offline_tokens_per_s == pytest.approx(48.0, rel=0.1)


def test_a_job_that_waits_behind_others_keeps_its_slow_rate(ledger: Ledger) -> None:
    job_id = enter(ledger, "docs", 400)
    stats = PartStats(rows_ok=4, **USED)
    now_s = work(ledger, NOW_S, 20, 10, stats)
    enter(ledger, "heavy", 30)
    ledger.adjust("heavy", JobChange(weight=1000.0))
    now_s = work(ledger, now_s, 30, 10, stats)
    assert ledger.show("heavy").state is JobState.COMPLETED
    work(ledger, now_s, 1, 10, stats)
    assert ledger.show(job_id).eta_s == pytest.approx(379 * 510 / 21, rel=0.05)


def test_rows_that_an_earlier_holder_left_count_as_done_but_not_for_the_tokens_of_a_row(ledger: Ledger) -> None:
    job_id = ledger.submit(scripted_plan("docs", 1000, 250), new=True)[0].id
    ledger.adjust(job_id, JobChange(deadline_at_s=NOW_S + 900))
    lease, now_s = ledger.lease("first", "scripted", NOW_S), NOW_S
    assert lease is not None
    for rows in range(1, 201):
        now_s += 1
        ledger.heartbeat("first", [LeaseProgress(lease_id=lease.lease_id, rows_done=rows, tokens_done=1000 * rows)], now_s)
        ledger.hints(now_s)
    now_s += 61  # the first holder is gone
    again = ledger.lease("second", "scripted", now_s)
    assert again is not None
    assert again.slice == lease.slice
    for second in range(60):  # five rows, then none
        rows = min(second, 5)
        found = LeaseProgress(lease_id=again.lease_id, rows_done=200 + rows, rows_found=200, tokens_done=1000 * rows)
        ledger.heartbeat("second", [found], now_s + second)
        ledger.hints(now_s + second)
        view = ledger.show(job_id)
        assert view.eta_s is not None
        assert view.eta_s > 0.95 * (800 - rows), second
        assert view.eta_s < 1.05 * (800 - rows) or second > rows, "it grows while nothing is done"
        assert view.guaranteed_share > 0.0, second


def test_a_clock_that_is_set_changes_no_rate_and_nothing_that_was_said(ledger: Ledger) -> None:
    job_id = enter(ledger, "docs", 400)
    now_s = work(ledger, NOW_S, 4, 10, PartStats(rows_ok=4, **USED))
    ledger.adjust(job_id, JobChange(deadline_at_s=now_s + 1000))  # 3,960 s are left to do
    ledger.hints(now_s)
    late = ledger.show(job_id)
    assert late.standing is not None
    assert "after its deadline" in late.standing
    ledger.clock_set(300.0)
    now_s += 300.0
    lease = ledger.lease("a", "scripted", now_s)
    assert lease is not None
    for second in range(1, 10):
        ledger.heartbeat("a", [LeaseProgress(lease_id=lease.lease_id, tokens_done=48 * second)], now_s + second)
        ledger.hints(now_s + second)
        view = ledger.show(job_id)
        assert (view.standing, view.guaranteed_share) == (late.standing, late.guaranteed_share), second
        assert view.offline_tokens_per_s == pytest.approx(48.0, rel=0.2)


def test_a_job_that_makes_progress_again_stays_raised_and_is_no_more_said_to_make_none(ledger: Ledger) -> None:
    """A row that an earlier holder did is progress, and tells no rate: what the job was raised by holds until one is known."""
    job_id = enter(ledger, "docs", 400)
    ledger.adjust(job_id, JobChange(deadline_at_s=NOW_S + 700))
    lease = ledger.lease("a", "scripted", NOW_S)
    assert lease is not None
    for second in range(0, 101, 10):
        ledger.heartbeat("a", [LeaseProgress(lease_id=lease.lease_id)], NOW_S + second)
        ledger.hints(NOW_S + second)
    late = ledger.show(job_id)
    assert late.standing is not None
    assert "no progress for" in late.standing
    ledger.heartbeat("a", [LeaseProgress(lease_id=lease.lease_id, rows_done=1, rows_found=1)], NOW_S + 110)
    ledger.hints(NOW_S + 110)
    view = ledger.show(job_id)
    assert view.guaranteed_share == late.guaranteed_share > 0.0
    assert view.standing == f"has no forecast of its end now; raised: {late.guaranteed_share:.0%} of the engine guaranteed"


def test_the_end_of_a_job_that_waits_is_told_by_what_others_did_since_the_clock_was_set_back(ledger: Ledger) -> None:
    stats = PartStats(rows_ok=4, **USED)
    job_id = enter(ledger, "waits", 100)
    now_s = work(ledger, NOW_S, 1, 2, stats)
    ledger.pause(job_id, now_s)
    ledger.resume(job_id, now_s)
    assert ledger.show(job_id).eta_s is None, "two seconds tell no rate"
    ledger.clock_set(-HOUR_S)
    enter(ledger, "heavy", 6)
    ledger.adjust("heavy", JobChange(weight=1000.0))
    work(ledger, now_s - HOUR_S, 6, 10, stats)
    assert ledger.show("heavy").state is JobState.COMPLETED
    assert ledger.show(job_id).eta_s == pytest.approx(99 * 10.0, rel=0.1)
