"""One job from its submit to its end, as `harvester show` tells it at each station, and what it leaves for the next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harvester.errors import StateError
from jobs.forecast.finish import Span
from jobs.forecast.lengths import MIN_ROWS, Lengths, counted
from jobs.ledger.history import HarvestLog, bands, recent_spans, task_key
from jobs.ledger.ledger import Ledger
from jobs.ledger.record import JobRecord, tokens_per_row
from jobs.ledger.store.sqlite import SqliteStore
from jobs.ledger.store.statements import TABLES
from jobs.spec import JobChange, JobSpec, LeaseProgress, LengthBand, PartStats, SliceSpec
from jobs.states import JobState
from jobs.testing import scripted_plan
from tests.fakes.scripted_ledger import spec_of

NOW_S = 1_000_000.0
HOUR_S = 3600.0


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(Path(":memory:"), Path("/state/jobs"), lease_s=30.0, now_s=NOW_S, new_server=True)


def submit(ledger: Ledger, name: str = "docs", rows: int = 6, **changes: Any) -> str:
    plan = scripted_plan(name, rows, 4, created_at_s=NOW_S)
    spec = plan.spec.model_copy(update=changes)
    return ledger.submit(plan.model_copy(update={"spec": spec, "notes": ("The text is in column text.",)}), new=True)[0].id


def shown(ledger: Ledger, **but: Any) -> dict[str, Any]:
    """The fields of the job's view that are not as they were at its submit."""
    first = {
        "state": "queued",
        "task": "echo",
        "source": "/nowhere/docs.parquet",
        "model": "scripted",
        "rows_total": 6,
        "created_at_s": NOW_S,
        "results": "/state/jobs/docs/results",
        "notes": ("The text is in column text.",),
        "id": "docs",
        "weight": 1.0,
        "boost": 1.0,
    }
    view = ledger.show("latest").model_dump()
    return {name: value for name, value in view.items() if value != first.get(name, () if name == "response_lengths" else None)} | but


NOTHING = {
    **dict.fromkeys(("rows_ok", "rows_error", "rows_truncated", "rows_recomputed", "rows_cut_off", "rows_running", "rows_to_retry"), 0),
    **dict.fromkeys(("prompt_tokens", "cached_tokens", "output_tokens", "preemptions"), 0),
    "guaranteed_share": 0.0,
}


def test_a_job_is_shown_as_it_stands_from_its_submit_to_its_end(ledger: Ledger) -> None:
    submit(ledger)
    assert shown(ledger) == NOTHING

    lease = ledger.lease("a", "scripted", NOW_S + 1)
    assert lease is not None
    assert lease.slice == SliceSpec(slice_id=0, group_index=0, offset=0, row_start=0, row_count=4)
    assert (lease.generation, lease.attempt, lease.expires_at_s, lease.job) == (0, 1, NOW_S + 31, spec_of(ledger, "docs"))
    running = {**NOTHING, "state": "running", "started_at_s": NOW_S + 1}
    assert shown(ledger) == running

    # 3 rows and 300 tokens in 10 s, then as much again: 3 rows are left.
    for after_s, rows in ((2, 0), (12, 3)):
        progress = LeaseProgress(lease_id=lease.lease_id, rows_done=rows, rows_error=rows // 3, tokens_done=100 * rows)
        assert ledger.heartbeat("a", [progress], NOW_S + after_s) == []
    view = ledger.show("docs")
    assert (view.rows_running, view.offline_tokens_per_s, view.eta_s) == (3, 30.0, pytest.approx(10.0))
    assert view.eta_low_s is not None
    assert view.eta_high_s is not None
    assert view.eta_low_s < 10.0 < view.eta_high_s

    counts: dict[str, Any] = {"rows_ok": 3, "rows_error": 1, "rows_truncated": 2, "rows_recomputed": 1}
    used: dict[str, Any] = {"prompt_tokens": 320, "cached_tokens": 64, "output_tokens": 80, "preemptions": 5}
    assert ledger.commit(lease.lease_id, "docs", 0, PartStats(**counts, **used, error_example="bad: row"), NOW_S + 13)
    assert {name: shown(ledger)[name] for name in (*counts, *used, "rows_running")} == {**counts, **used, "rows_running": 0}

    second = ledger.lease("a", "scripted", NOW_S + 14)
    assert second is not None
    assert (second.slice.row_start, second.slice.row_count, second.slice.offset) == (4, 2, 4)
    assert ledger.lease("a", "scripted", NOW_S + 14) is None
    assert ledger.slices_leased("docs") == 1
    assert ledger.commit(second.lease_id, "docs", 1, PartStats(rows_ok=2, prompt_tokens=160, output_tokens=40), NOW_S + 21)
    total = {**counts, "rows_ok": 5, **used, "prompt_tokens": 480, "output_tokens": 120}
    ended = {**running, **total, "state": "completed", "ended_at_s": NOW_S + 21, "eta_s": 0.0, "offline_tokens_per_s": 30.0}
    assert shown(ledger) == ended
    ledger.check()


def test_only_a_replica_of_its_model_gets_its_slices(ledger: Ledger) -> None:
    submit(ledger)
    assert ledger.lease("a", "another", NOW_S) is None
    assert ledger.lease("a", "scripted", NOW_S) is not None


def test_a_note_is_there_until_it_is_taken_back_or_the_job_goes_on(ledger: Ledger) -> None:
    submit(ledger)
    ledger.say("docs", "waits for disk space")
    assert ledger.show("docs").message == "waits for disk space"
    lease = ledger.lease("a", "scripted", NOW_S)
    assert lease is not None
    assert ledger.show("docs").message == "waits for disk space", "a lease is no progress yet"
    ledger.commit(lease.lease_id, "docs", 0, PartStats(rows_ok=4), NOW_S + 1)
    assert ledger.show("docs").message is None
    ledger.say("docs", "waits again")
    ledger.say("docs", None)
    assert ledger.show("docs").message is None


def test_what_cannot_be_done_says_what_can(ledger: Ledger) -> None:
    submit(ledger)
    plan = scripted_plan("docs")
    with pytest.raises(StateError, match=r"^job id docs is taken; submit again$"):
        ledger.submit(plan, new=True)
    with pytest.raises(StateError, match=r"^job docs is queued; failed rows can be retried once it has ended$"):
        ledger.retry("docs", NOW_S)
    ledger.cancel("docs", NOW_S)
    with pytest.raises(StateError, match=r"^job docs has no failed rows to retry$"):
        ledger.retry("docs", NOW_S)
    ledger.resume("docs", NOW_S)
    while lease := ledger.lease("a", "scripted", NOW_S):
        ledger.commit(lease.lease_id, "docs", lease.slice.slice_id, PartStats(rows_ok=lease.slice.row_count), NOW_S)
    with pytest.raises(StateError, match=r"^job docs is completed: nothing is left to do; retry its failed rows with: harvester retry$"):
        ledger.resume("docs", NOW_S)


def test_weight_deadline_and_error_rate_change_and_the_rest_stays(ledger: Ledger) -> None:
    submit(ledger)
    spec = spec_of(ledger, "docs")
    view = ledger.adjust("docs", JobChange(weight=3.0, deadline_at_s=NOW_S + 60))
    assert (view.weight, view.deadline_at_s) == (3.0, NOW_S + 60)
    assert spec_of(ledger, "docs") == spec.model_copy(update={"weight": 3.0, "deadline_at_s": NOW_S + 60})
    assert ledger.hints(NOW_S)["docs"].weight == 3.0
    ledger.adjust("docs", JobChange(max_error_rate=0.5))
    assert (spec_of(ledger, "docs").max_error_rate, spec_of(ledger, "docs").weight) == (0.5, 3.0)


@pytest.mark.parametrize(("at_s", "state"), [(59.0, JobState.PAUSED), (60.0, JobState.EXPIRED)], ids=["before", "then"])
def test_a_job_ends_at_its_deadline_and_not_before(ledger: Ledger, at_s: float, state: JobState) -> None:
    submit(ledger, deadline_at_s=NOW_S + 60)
    assert ledger.pause("docs", NOW_S).started_at_s is None
    ledger.expire(NOW_S + at_s)
    assert ledger.show("docs").state is state


def test_a_job_that_is_resumed_in_the_second_of_its_deadline_has_none_any_more(ledger: Ledger) -> None:
    submit(ledger, deadline_at_s=NOW_S + 60)
    ledger.expire(NOW_S + 60)
    assert ledger.resume("docs", NOW_S + 60).deadline_at_s is None


# -- what is told to the next job -----------------------------------------------------------------------------------------------------


def record(rows_ok: int, rows_error: int, prompt_tokens: int, output_tokens: int) -> JobRecord:
    spec: JobSpec = scripted_plan("docs").spec
    row = {"rows_ok": rows_ok, "rows_error": rows_error, "prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
    return JobRecord(row, spec, spec.hint(), JobState.RUNNING)


def test_a_row_takes_what_its_jobs_rows_took_or_those_of_others_before_it_has_any() -> None:
    new, done, other = record(0, 0, 0, 0), record(3, 1, 300, 100), record(10, 6, 700, 100)
    assert tokens_per_row(done, [new, done, other]) == 100.0
    assert tokens_per_row(new, [new, done, other]) == 60.0
    assert tokens_per_row(new, [new, record(4, 0, 0, 0)]) == 1.0
    assert tokens_per_row(record(4, 0, 0, 0), [other]) == 50.0, "rows that took nothing tell nothing"


def test_tasks_that_ask_the_same_of_the_same_model_are_one_whatever_they_are_called() -> None:
    task = scripted_plan("docs").spec.task
    same = task.model_copy(update={"name": "other", "description": "Tells."})
    assert task_key(task, "m") == task_key(same, "m")
    assert task_key(task, "m") != task_key(task, "n")
    assert task_key(task, "m") != task_key(task.model_copy(update={"prompt": "{text}?"}), "m")
    assert len(task_key(task, "m")) == 32


def test_lengths_are_shown_by_prompt_length_and_never_beyond_the_most_tokens_of_an_answer() -> None:
    lengths = Lengths()
    for _ in range(2):
        lengths.learn(counted([(100, 8)] * MIN_ROWS + [(300, 9)] * 3))
    first = LengthBand(prompt_tokens_from=64, prompt_tokens_to=127, rows=40, p50_tokens=8, p90_tokens=8, p50_coverage=1.0, p90_coverage=1.0)
    rare = LengthBand(
        prompt_tokens_from=256, prompt_tokens_to=511, rows=6, p50_tokens=9, p90_tokens=9, p50_coverage=None, p90_coverage=None
    )
    assert bands(lengths, 128) == (first, rare)
    assert [(band.p50_tokens, band.p90_tokens) for band in bands(lengths, 7)] == [(7, 7), (7, 7)]


def hour(number: int, busy_s: float, tokens: int, model: str = "m") -> dict[str, Any]:
    return {"hour_s": number * HOUR_S, "busy_s": busy_s, "tokens": tokens, "model": model}


def test_the_hours_of_three_days_with_some_work_tell_a_rate() -> None:
    rows = [hour(100, 60.0, 3), hour(28, 5.0, 1), hour(27, 60.0, 9), hour(50, 4.9, 9), hour(60, 60.0, 2, "n")]
    assert recent_spans(rows, "m", 100 * HOUR_S) == [Span(5.0, 1), Span(60.0, 3)]
    assert recent_spans(rows, None, 100 * HOUR_S) == [Span(5.0, 1), Span(60.0, 2), Span(60.0, 3)]


def test_busy_time_is_added_up_by_the_hour_and_a_gap_counts_for_a_minute(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "ledger.sqlite")
    assert "harvest" in TABLES
    log = HarvestLog(store, NOW_S)
    start_s = NOW_S - NOW_S % HOUR_S
    for after_s, busy in ((0.0, True), (10.0, True), (500.0, False), (900.0, True), (930.0, True)):
        log.mark("m", start_s + after_s, busy=busy)
    log.add("m", 5, 700, start_s + 930.0)
    log.write()
    log.wrote()
    log.mark("m", start_s + 950.0, busy=True)
    log.add("m", 1, 40, start_s + 950.0)
    log.write()
    log.wrote()
    log.mark("m", start_s + 949.0, busy=True)
    log.add("m", 1, 60, start_s + HOUR_S)
    log.write()
    log.wrote()
    assert log.spans("m", start_s + HOUR_S) == [Span(120.0, 740)], "10 s, a minute for the gap, 30 s and 20 s; then no time at all"
    assert log.spans("n", start_s) == []
    store.close()
