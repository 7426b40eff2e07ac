"""Failed rows that are asked again: what is left to do of them, when that ends, and what it is accounted as."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jobs.ledger.ledger import Ledger
from jobs.spec import LeaseProgress, PartStats
from jobs.usage import Usage
from tests.fakes.scripted_ledger import NOW_S, enter, opened, work


@pytest.fixture
def ledger() -> Ledger:
    return opened(Path(":memory:"))


def retried(ledger: Ledger, slices: int = 25, **changes: Any) -> str:
    """A job of which every row failed, whose failed rows are asked again."""
    job_id = enter(ledger, "late", rows=4 * slices, **changes)
    for at in range(slices):
        work(ledger, NOW_S + 6 * at, rows=0, rows_error=4, prompt_tokens=400, output_tokens=80)
    ledger.retry(job_id, NOW_S + 6 * slices)
    return job_id


def done(ledger: Ledger, job_id: str) -> int:
    view = ledger.show(job_id)
    return view.rows_ok + view.rows_error - view.rows_to_retry + view.rows_running


def test_rows_that_are_asked_again_are_not_done_until_they_are(ledger: Ledger) -> None:
    job_id = enter(ledger, "docs", rows=8)
    work(ledger, NOW_S)
    work(ledger, NOW_S, rows=2, rows_error=2)
    assert done(ledger, job_id) == 8
    ledger.retry(job_id, NOW_S + 1)
    assert (done(ledger, job_id), ledger.show(job_id).rows_error) == (6, 2)
    lease = ledger.lease("a", "scripted", NOW_S + 2)
    assert lease is not None
    assert done(ledger, job_id) == 6, "its holder has said nothing yet"
    ledger.heartbeat("a", [LeaseProgress(lease_id=lease.lease_id, rows_done=3)], NOW_S + 3)
    assert (done(ledger, job_id), ledger.show(job_id).rows_running) == (7, 1)
    ledger.commit(lease.lease_id, job_id, lease.slice.slice_id, PartStats(generation=1, rows_ok=3, rows_error=1), NOW_S + 4)
    assert (done(ledger, job_id), ledger.show(job_id).rows_to_retry) == (8, 0)
    ledger.check()


def test_an_ended_job_has_no_rows_to_ask_again(ledger: Ledger) -> None:
    job_id = retried(ledger)
    assert ledger.show(job_id).rows_to_retry == 100
    ledger.cancel(job_id, NOW_S + 200)
    assert ledger.show(job_id).rows_to_retry == 0
    ledger.resume(job_id, NOW_S + 201)
    assert ledger.show(job_id).rows_to_retry == 100


def test_a_ledger_that_is_opened_again_knows_the_rows_to_ask_again(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "ledger.sqlite")
    job_id = retried(ledger)
    ledger.close()
    again = opened(tmp_path / "ledger.sqlite")
    assert again.show(job_id).rows_to_retry == 100
    again.check()
    again.close()


def work_again(ledger: Ledger, at_s: float, tokens: int = 300) -> None:
    """Lease a slice of a retry, report it, and commit it 6 s later. Its failed rows had 400 prompt tokens and 80 of answers."""
    lease = ledger.lease("a", "scripted", at_s)
    assert lease is not None
    ledger.heartbeat("a", [LeaseProgress(lease_id=lease.lease_id, rows_done=4, tokens_done=tokens + 60)], at_s + 6)
    used: dict[str, Any] = {"prompt_tokens": tokens, "output_tokens": 60, "replaced": Usage(prompt_tokens=400, output_tokens=80)}
    ledger.commit(lease.lease_id, lease.job.id, lease.slice.slice_id, PartStats(generation=1, rows_ok=4, **used), at_s + 6)
    ledger.check()


def test_a_retry_is_raised_for_its_deadline_by_the_rows_that_it_asks_again(ledger: Ledger) -> None:
    """Its 25 slices take 150 s more at the pace so far, and it has 60."""
    job_id = retried(ledger, deadline_at_s=NOW_S + 210)
    assert ledger.show(job_id).eta_s == pytest.approx(150, rel=0.2)
    for at in range(5):
        work_again(ledger, NOW_S + 151 + 6 * at)
        ledger.hints(NOW_S + 157 + 6 * at)
    assert ledger.show(job_id).guaranteed_share > 0.0
    assert "after its deadline" in (ledger.show(job_id).standing or "")


def test_the_rate_of_a_retry_goes_on_over_its_commits(ledger: Ledger) -> None:
    """The failed rows had tokens of their own, which those of the new answers replace."""
    job_id = retried(ledger)
    for at in range(6):
        work_again(ledger, NOW_S + 200 + 6 * at)
    assert ledger.show(job_id).offline_tokens_per_s == pytest.approx(60.0)


def accounted(ledger: Ledger) -> list[tuple[int, int, int]]:
    """Rows, prompt tokens and output tokens of each hour, and in all by `harvested`."""
    usage = sorted(ledger.table("usage").to_pylist(), key=lambda line: float(line["hour_s"]))
    harvested = ledger.table("harvested").to_pylist()
    names = ("prompt_tokens", "output_tokens")
    hours = [(line["requests"], *(line[name] for name in names)) for line in usage]
    return [*hours, (sum(line["rows"] for line in harvested), *(sum(line[name] for line in harvested) for name in names))]


def test_a_retry_is_accounted_in_its_own_hour_and_takes_nothing_back(ledger: Ledger) -> None:
    """The failed rows were computed too: their tokens stay in the hour in which they were."""
    retried(ledger, slices=2)
    for at in range(2):
        work_again(ledger, NOW_S + 7200 + 6 * at)
    assert accounted(ledger) == [(8, 800, 160), (0, 600, 120), (8, 1400, 280)]


def test_a_slice_that_is_opened_again_is_accounted_once(ledger: Ledger) -> None:
    job_id = enter(ledger, "docs", rows=4)
    work(ledger, NOW_S)
    ledger.reopen_slice(job_id, 0, NOW_S + 1)
    lease = ledger.lease("a", "scripted", NOW_S + 2)
    assert lease is not None
    ledger.keep(lease.lease_id, PartStats(rows_ok=1, prompt_tokens=100, output_tokens=20), NOW_S + 3)
    work(ledger, NOW_S + 4)
    assert accounted(ledger) == [(4, 400, 80), (4, 400, 80)]
    assert ledger.counts()["scripted"]["rows_ok"] == 4
    ledger.check()


def test_more_than_was_accounted_before_a_slice_was_opened_again_is_added(ledger: Ledger) -> None:
    job_id = enter(ledger, "docs", rows=4)
    work(ledger, NOW_S)
    ledger.reopen_slice(job_id, 0, NOW_S + 1)
    work(ledger, NOW_S + 2, output_tokens=90, prompt_tokens=390)
    assert accounted(ledger) == [(4, 400, 90), (4, 400, 90)]
