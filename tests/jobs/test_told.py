"""What is told of work under way: a slice to the ledger, a job to its batch, a ledger's trouble to whoever asked."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from harvester.errors import DamageError, StorageError
from jobs.batches.record import BatchRecord, BatchWish
from jobs.ledger.ledger import Ledger
from jobs.ledger.store.contract import GO_ON
from jobs.ledger.store.place import read_ledger
from jobs.ledger.store.sqlite import SqliteStore
from jobs.longtext.fit import cut_at_sentence, ends_sentence, sentence_ends
from jobs.result import Row
from jobs.run.active import ActiveSlice
from jobs.run.telling import tell
from jobs.spec import ERROR_RATE, Lease, LeaseProgress
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


async def test_what_the_ledger_can_do_without_is_logged_where_it_cannot_be_told(caplog: pytest.LogCaptureFixture) -> None:
    async def refused() -> None:
        raise StorageError("no space left")

    with caplog.at_level(logging.WARNING):
        await tell(refused())
    assert [record.getMessage() for record in caplog.records] == ["ledger_storage no space left"]


def test_a_batch_shows_the_counts_and_tokens_of_its_job_until_it_has_its_own() -> None:
    ledger = Ledger(Path(":memory:"), Path("/jobs"), lease_s=9.0, now_s=0.0, new_server=True)
    view = ledger.submit(scripted_plan("docs"), new=True)[0].model_copy(
        update={"rows_ok": 5, "rows_error": 2, "prompt_tokens": 70, "cached_tokens": 30, "output_tokens": 20}
    )
    record = BatchRecord.of(BatchWish(input_file_id="f", endpoint="/v1/completions", completion_window="1h"), 0.0)
    shown, none = record.to_openai(view), record.to_openai(None)
    assert shown["request_counts"] == {"total": 10, "completed": 5, "failed": 2}
    assert (shown["usage"]["input_tokens"], shown["usage"]["output_tokens"], shown["usage"]["total_tokens"]) == (70, 20, 90)
    assert shown["usage"]["input_tokens_details"] == {"cached_tokens": 30}
    assert (none["request_counts"], none["errors"]) == ({"total": 0, "completed": 0, "failed": 0}, None)
    ledger.close()


def test_a_job_that_is_asked_for_again_takes_over_what_was_given_this_time() -> None:
    ledger = Ledger(Path(":memory:"), Path("/jobs"), lease_s=9.0, now_s=0.0, new_server=True)
    plan = scripted_plan("docs")
    ledger.submit(plan.model_copy(update={"spec": plan.spec.model_copy(update={"weight": 2.0, "max_error_rate": 0.5})}), new=True)

    def again(**changes: float) -> tuple[float, float, float | None]:
        asked = plan.spec.model_copy(update={"weight": 1.0, "max_error_rate": ERROR_RATE, **changes})
        assert not ledger.submit(plan.model_copy(update={"spec": asked}), new=False)[1]
        spec = ledger.spec("docs")
        return spec.weight, spec.max_error_rate, spec.deadline_at_s

    assert again() == (2.0, 0.5, None)
    assert again(weight=3.0, deadline_at_s=99.0) == (3.0, 0.5, 99.0)
    assert again(max_error_rate=0.25) == (3.0, 0.25, 99.0)
    ledger.fail("docs", "gone", 1.0)
    ledger.close()


def test_a_ledger_that_cannot_be_used_says_which_and_why(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "ledger.sqlite")
    with pytest.raises(StorageError) as caught:
        store.run("set_message", ["too few"])
    assert caught.value.message.startswith("the ledger cannot be written or read (set_message): ")
    assert caught.value.message.endswith("; check the disk of the state folder")
    store.close()
    (tmp_path / "ledger.sqlite").write_bytes(b"x" * 5000)
    damaged = rf"^the ledger {tmp_path}/ledger\.sqlite is damaged: page 1 is not as it was written; {GO_ON}$"
    with pytest.raises(DamageError, match=damaged):
        read_ledger(tmp_path, "jobs")
    with pytest.raises(DamageError, match=damaged):
        SqliteStore(tmp_path / "ledger.sqlite")
    for path in tmp_path.glob("ledger.*"):
        path.unlink()
    assert read_ledger(tmp_path, "jobs") is None
    (tmp_path / "ledger.sqlite").touch()
    assert read_ledger(tmp_path, "jobs") is None, "its server died before it made the tables"


@pytest.mark.parametrize(
    ("text", "most", "head"),
    [
        ("One. Two.", 9, "One. Two."),
        ("One. Two.", 8, "One."),
        ("One. Two.", 4, "One."),
        ("One two three", 9, "One two"),
        ("One two three", 7, "One two"),
        ("Onetwothree", 5, "Onetw"),
        ("One. Two.", 0, ""),
        ("One. Two.", -1, ""),
        ("Version 3.14 is out", 11, "Version"),
        ('He said "no." Then', 14, 'He said "no."'),
        ("一。二。三", 4, "一。二。"),
        ("a\nb c", 4, "a"),
        (". " + "x" * 3000 + " y", 2900, "."),
        ("One two " + "x" * 3000, 2900, "One two"),
    ],
)
def test_a_head_ends_at_a_sentence_else_at_a_word(text: str, most: int, head: str) -> None:
    assert cut_at_sentence(text, most) == head


def test_a_sentence_ends_at_its_mark_and_nothing_ends_none() -> None:
    assert [ends_sentence("One. Two", head) for head in ("One.", "One", "", "One. Two")] == [True, False, False, False]
    assert list(sentence_ends("One. Two. Three", 0, 9)) == [4, 9]
    assert list(sentence_ends("One. Two. Three", 4, 8)) == []
