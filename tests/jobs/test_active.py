"""A slice in work: what it tells of its rows, and how it is taken back."""

from __future__ import annotations

import asyncio

from jobs.result import Row
from jobs.run.active import ActiveSlice
from jobs.spec import Lease, LeaseProgress
from jobs.testing import scripted_plan
from jobs.usage import Usage


def row(row_id: int, code: str | None = None) -> Row:
    usage = Usage(prompt_tokens=10, cached_tokens=4, output_tokens=5)
    return Row(row_id, {}, "error" if code else "ok", code, code and f"no {row_id}", "stop", usage, 1, 1.0, False, 0.0)


def a_slice() -> ActiveSlice:
    plan = scripted_plan("docs", 6, 6)
    lease = Lease(lease_id="l1", job=plan.spec, slice=plan.slices[0], generation=0, attempt=1, expires_at_s=9.0)
    return ActiveSlice(lease, rows_waiting=6)


def test_a_slice_tells_its_rows_and_tokens_and_how_the_last_one_failed() -> None:
    active = a_slice()
    assert active.progress() == LeaseProgress(lease_id="l1")
    active.start([2, 3, 4, 5], [row(0), row(1, "bad")])
    assert (active.rows_waiting, active.progress()) == (4, LeaseProgress(lease_id="l1", rows_done=2, rows_found=2, rows_error=1))
    assert active.feed.rows_unbegun == 0, "an earlier holder may come back"
    for one in (row(2), row(3, "worse"), row(4)):
        active.finished(one)
    told = LeaseProgress(lease_id="l1", rows_done=5, rows_found=2, rows_error=2, error="worse: no 3", tokens_done=45)
    assert active.progress() == told


async def test_a_slice_that_is_taken_back_ends_once_and_not_while_it_is_published() -> None:
    active = a_slice()
    active.drop()
    assert not active.dropped, "nobody works on it yet"
    active.task = asyncio.create_task(asyncio.sleep(60))
    active.begun = True
    active.drop()
    assert (active.dropped, active.publishing, active.is_ending, active.task.cancelling()) == (True, False, True, 1)
    active.drop()
    assert active.task.cancelling() == 1
    late = a_slice()
    late.task, late.begun, late.publishing = active.task, True, True
    late.drop()
    assert (late.dropped, active.task.cancelling()) == (False, 1)
