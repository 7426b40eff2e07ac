"""Files and batches over HTTP with the official client; ledger, controller and a replica with a scripted engine in this process."""

from __future__ import annotations

import asyncio
import errno
import json
import threading
import urllib.parse
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Literal

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harvester.serve.access.gate import Gate
from harvester.serve.access.keys import KeyRing
from harvester.serve.openai.api import openai_api
from jobs.batches import controller as keeper_module
from jobs.batches.files import FileStore
from jobs.batches.plan import BatchPlanner
from jobs.batches.record import BatchRecord
from jobs.batches.states import BatchStatus
from jobs.batches.store import BatchStore
from jobs.config import BatchConfig
from jobs.engine import ApiCall, RowRequest
from jobs.hint import SchedulingHint
from jobs.spec import JobView, PartStats
from jobs.states import JobState
from jobs.testing import ManualClock, Refused, last_content
from tests.fakes.bureau import ENDED, HARVEST, MODEL, PATIENCE_S, Bureau, going, jsonl, line


async def test_a_keeper_that_is_woken_and_told_to_end_at_once_ends(tmp_path: Path) -> None:
    controller = Bureau(tmp_path, BatchConfig(), last_content).controller
    task = asyncio.create_task(controller.run())
    await asyncio.sleep(0.05)
    controller._poll_s = 60.0
    await asyncio.sleep(0.05)  # it sleeps
    controller._wake.set()
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=PATIENCE_S)
    assert task in done
    assert task.cancelled()


# -- a batch from end to end --------------------------------------------------------------------------------------------------------


async def test_the_official_client_takes_a_batch_from_upload_to_answers(bureau: Bureau) -> None:
    batch = await bureau.create([line(i) for i in range(10)], metadata={"who": "me"})
    assert (batch.status, batch.object, batch.metadata, batch.completion_window) == ("validating", "batch", {"who": "me"}, "24h")
    assert batch.expires_at == batch.created_at + 86_400
    done = await bureau.until(batch.id, ENDED)
    assert (done.status, done.model, done.error_file_id, done.errors) == ("completed", MODEL, None, None)
    assert done.request_counts is not None
    assert done.request_counts.model_dump() == {"total": 10, "completed": 10, "failed": 0}
    assert all(at is not None for at in (done.in_progress_at, done.finalizing_at, done.completed_at))
    assert done.usage is not None
    assert done.usage.total_tokens == done.usage.input_tokens + done.usage.output_tokens > 0
    answers = await bureau.lines(done.output_file_id)
    assert set(answers) == {f"request-{i}" for i in range(10)}
    for number, item in ((i, answers[f"request-{i}"]) for i in range(10)):
        assert item["error"] is None
        assert item["response"]["status_code"] == 200
        assert item["response"]["body"]["choices"][0]["message"]["content"] == f"say {number}"
    stored = await bureau.api.files.retrieve(done.output_file_id or "")
    assert (stored.purpose, stored.filename, stored.status) == ("batch_output", f"{batch.id}_output.jsonl", "processed")


async def test_a_batch_is_a_job_like_any_other(bureau: Bureau) -> None:
    batch = await bureau.ended([line(i) for i in range(6)])
    job = bureau.ledger.show(batch.id)
    assert (job.state, job.task, job.rows_total, job.rows_ok) == ("completed", "batch", 6, 6)
    assert batch.expires_at is not None
    assert job.deadline_at_s == pytest.approx(batch.expires_at, abs=1.0)
    assert job.response_lengths == (), "its requests tell nothing of others"


async def test_a_batch_that_will_be_late_is_raised_as_any_job(bureau: Bureau) -> None:
    asked: list[RowRequest] = []
    told = asyncio.Event()

    async def hints() -> dict[str, SchedulingHint]:
        if bureau.engine.running:
            told.set()
        return {batch.id: SchedulingHint(batch.id, boost=8.0, share=0.25) for batch in bureau.controller.records()}

    bureau.engine.hear = asked.append
    bureau.client.hints = hints  # type: ignore[method-assign]
    bureau.engine.hold()
    batch = await bureau.create([line(i) for i in range(12)])
    async with asyncio.timeout(PATIENCE_S):
        await told.wait()
    bureau.engine.go_on()
    await bureau.until(batch.id, ENDED)
    assert asked[-1].hint == SchedulingHint(batch.id, boost=8.0, share=0.25)


async def test_completions_are_batched_too(bureau: Bureau) -> None:
    lines = [line(i, url="/v1/completions", body={"model": MODEL, "prompt": f"once {i}"}) for i in range(3)]
    done = await bureau.ended(lines, endpoint="/v1/completions")
    assert done.status == "completed"
    answers = await bureau.lines(done.output_file_id)
    assert answers["request-2"]["response"]["body"]["choices"][0]["text"] == "once 2"


def refuse_odd(call: ApiCall) -> str:
    number = int(last_content(call).split()[1])
    if number % 2:
        raise Refused(400, f"{number} is odd")
    return "even"


def refuse_all(call: ApiCall) -> str:
    raise Refused(400, "no")


@pytest.mark.parametrize("reply", [refuse_odd], ids=["odd ones"])
async def test_requests_that_fail_are_in_the_error_file_and_the_others_in_the_output(bureau: Bureau) -> None:
    done = await bureau.ended([line(i) for i in range(5)])
    assert done.request_counts is not None
    assert done.request_counts.model_dump() == {"total": 5, "completed": 3, "failed": 2}
    assert set(await bureau.lines(done.output_file_id)) == {"request-0", "request-2", "request-4"}
    bad = await bureau.lines(done.error_file_id)
    assert set(bad) == {"request-1", "request-3"}
    assert bad["request-3"]["response"]["status_code"] == 400
    assert bad["request-3"]["response"]["body"]["error"]["message"] == "3 is odd"


@pytest.mark.parametrize("reply", [lambda call: "one\u2028two\x85three\u2029"], ids=["line ends"])
async def test_a_line_of_the_output_is_one_for_readers_that_know_more_ends_than_line_feeds(bureau: Bureau) -> None:
    done = await bureau.ended([line(0), line(1)])
    text = (await bureau.api.files.content(done.output_file_id or "")).text
    lines = [json.loads(one) for one in text.splitlines()]
    assert [one["response"]["body"]["choices"][0]["message"]["content"] for one in lines] == ["one\u2028two\x85three\u2029"] * 2


@pytest.mark.parametrize("reply", [refuse_all], ids=["all"])
async def test_a_batch_whose_requests_all_fail_is_completed_without_an_output_file(bureau: Bureau) -> None:
    done = await bureau.ended([line(i) for i in range(5)])
    assert (done.status, done.output_file_id) == ("completed", None)
    assert done.request_counts is not None
    assert done.request_counts.failed == 5
    assert len(await bureau.lines(done.error_file_id)) == 5


# -- ends before the end ------------------------------------------------------------------------------------------------------------


async def some_done(bureau: Bureau, lines: int, done: int) -> str:
    """A batch of which ``done`` requests are answered, in whole slices and in part of one; the others hang in the engine."""
    slots = asyncio.Semaphore(done)
    complete = bureau.engine.complete

    async def gated(request: RowRequest) -> Any:
        await slots.acquire()
        return await complete(request)

    bureau.engine.complete = gated  # type: ignore[method-assign]
    batch = await bureau.create([line(i) for i in range(lines)])
    async with asyncio.timeout(PATIENCE_S):
        while bureau.engine.calls < done or bureau.engine.running:  # noqa: ASYNC110 - the script has no event to wait for
            await asyncio.sleep(0.005)
    await bureau.until(batch.id, {"in_progress"})
    return batch.id


async def test_a_cancelled_batch_keeps_what_is_done(bureau: Bureau) -> None:
    batch_id = await some_done(bureau, 20, 6)
    asked = await bureau.api.batches.cancel(batch_id)
    assert (asked.status, asked.cancelling_at is not None) == ("cancelling", True)
    done = await bureau.until(batch_id, ENDED)
    assert (done.status, done.error_file_id) == ("cancelled", None)
    assert done.cancelled_at is not None
    answers = await bureau.lines(done.output_file_id)
    assert len(answers) == 6, "also the answers of slices that were not whole"
    assert done.request_counts is not None
    assert done.request_counts.model_dump() == {"total": 20, "completed": 6, "failed": 0}
    assert (await bureau.api.batches.cancel(batch_id)).status == "cancelled"


async def test_an_expired_batch_keeps_what_is_done_and_names_what_is_not(bureau: Bureau) -> None:
    batch_id = await some_done(bureau, 20, 6)
    bureau.clock.advance(86_400)
    done = await bureau.until(batch_id, ENDED)
    assert (done.status, done.expired_at is not None) == ("expired", True)
    answers, missed = await bureau.lines(done.output_file_id), await bureau.lines(done.error_file_id)
    assert len(answers) == 6
    assert set(answers) | set(missed) == {f"request-{i}" for i in range(20)}
    assert {item["error"]["code"] for item in missed.values()} == {"batch_expired"}
    assert {item["response"] for item in missed.values()} == {None}


async def test_a_batch_expires_also_where_no_replica_is(idle_bureau: Bureau) -> None:
    batch = await idle_bureau.create([line(i) for i in range(3)], completion_window="90m")
    await idle_bureau.until(batch.id, {"in_progress"})
    idle_bureau.clock.advance(5400)
    done = await idle_bureau.until(batch.id, ENDED)
    assert (done.status, done.output_file_id, done.expires_at) == ("expired", None, batch.created_at + 5400)
    assert len(await idle_bureau.lines(done.error_file_id)) == 3


async def test_a_job_cancelled_by_its_own_command_ends_its_batch(idle_bureau: Bureau) -> None:
    batch = await idle_bureau.create([line(i) for i in range(3)])
    await idle_bureau.until(batch.id, {"in_progress"})
    await idle_bureau.client.change(batch.id, "cancel")
    done = await idle_bureau.until(batch.id, ENDED)
    assert (done.status, done.output_file_id, done.error_file_id) == ("cancelled", None, None)


@pytest.mark.parametrize("lines", [[{}], [line(0)]], ids=["whose input is none", "whose rows are all done"])
async def test_a_batch_cancelled_at_its_last_moment_ends_cancelled(
    tmp_path: Path, lines: Sequence[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cancelling is being written when the controller decides on what it read before."""
    bureau = Bureau(tmp_path, BatchConfig(), last_content)
    controller, loop, put = bureau.controller, asyncio.get_running_loop(), bureau.controller._store.put
    decided, begun = threading.Event(), asyncio.Event()

    def slow(record: BatchRecord) -> None:
        if record.status is BatchStatus.CANCELLING and not decided.is_set():
            loop.call_soon_threadsafe(begun.set)
            assert decided.wait(PATIENCE_S)
        put(record)

    async with bureau.http:
        batch = await bureau.create(lines)
        if lines != [{}]:
            await controller.look()
            await controller.settle()
            async with going(bureau.runner().run()):
                await bureau.until(batch.id, {"in_progress"}, lambda _: bureau.ledger.show(batch.id).state is JobState.COMPLETED)
        monkeypatch.setattr(controller._store, "put", slow)
        cancelling = asyncio.create_task(controller.cancel(batch.id))
        await begun.wait()
        await controller.look()
        await bureau.until(batch.id, {batch.status, "in_progress"}, lambda _: bool(controller._writing._waiters))
        decided.set()
        await cancelling
        await controller.settle()
        await controller.look()  # the input is none: there is no job to wait for
        await controller.settle()
        assert (await bureau.api.batches.retrieve(batch.id)).status == "cancelled"
    bureau.ledger.check()
    bureau.ledger.close()


@pytest.mark.parametrize("status", ["completed", "failed"])
async def test_what_has_ended_cannot_be_cancelled(bureau: Bureau, status: str) -> None:
    done = await bureau.ended([line(0)] if status == "completed" else b"no json\n")
    assert done.status == status
    with pytest.raises(openai.ConflictError, match=f"Cannot cancel a batch with status '{status}'"):
        await bureau.api.batches.cancel(done.id)


# -- inputs that are none -----------------------------------------------------------------------------------------------------------

GOOD = jsonl([line(0)])


@pytest.mark.parametrize(
    ("data", "code", "number", "param"),
    [
        (b"", "empty_file", None, None),
        (b"\n\n", "empty_file", None, None),
        (GOOD + b"{torn\n", "invalid_json_line", 2, None),
        (GOOD + b"\n\n" + b'{"a": NaN}\n', "invalid_json_line", 4, None),
        (GOOD + b"[1]\n", "invalid_json_line", 2, None),
        (GOOD + b'"\xff\xfe"\n', "invalid_json_line", 2, None),
        (GOOD + b"[" * 100_000 + b"\n", "invalid_json_line", 2, None),
        (GOOD + jsonl([line(1, url="/v1/embeddings")]), "invalid_url", 2, "url"),
        (GOOD + jsonl([line(1, url="http://other/v1/chat/completions")]), "invalid_url", 2, "url"),
        (GOOD + jsonl([line(1, url="/v1/completions")]), "mismatched_endpoint", 2, "url"),
        (GOOD + jsonl([line(1, method="GET")]), "invalid_method", 2, "method"),
        (GOOD + jsonl([line(1, body=None)]), "missing_required_parameter", 2, "body"),
        (GOOD + jsonl([line(1, body={"messages": []})]), "missing_required_parameter", 2, "body.model"),
        (GOOD + jsonl([line(1, body={"model": "other"})]), "mismatched_model", 2, "body.model"),
        (jsonl([line(1, body={"model": "other"})]), "model_not_found", 1, "body.model"),
        (GOOD + jsonl([line(1, custom_id=None)]), "missing_required_parameter", 2, "custom_id"),
        (GOOD + jsonl([line(1, custom_id=7)]), "invalid_custom_id", 2, "custom_id"),
        (GOOD + jsonl([line(1, custom_id="\ud800")]), "invalid_custom_id", 2, "custom_id"),
        (GOOD + jsonl([line(1), line(0)]), "duplicate_custom_id", 3, "custom_id"),
    ],
    ids=lambda value: f"{len(value):,} bytes" if isinstance(value, bytes) else str(value),
)
async def test_an_input_that_is_none_fails_with_the_line_and_why(
    idle_bureau: Bureau, data: bytes, code: str, number: int | None, param: str | None
) -> None:
    done = await idle_bureau.ended(data)
    assert (done.status, done.failed_at is not None, done.output_file_id) == ("failed", True, None)
    assert done.errors is not None
    (error,) = done.errors.data or []
    assert (error.code, error.line, error.param) == (code, number, param)
    assert error.message
    assert list(idle_bureau.folder.jobs.iterdir()) == [], "nothing is left of it"


async def test_every_wrong_line_is_named_up_to_a_hundred(idle_bureau: Bureau) -> None:
    done = await idle_bureau.ended(GOOD + b"{\n" * 150)
    assert done.errors is not None
    assert [error.line for error in done.errors.data or ()] == list(range(2, 102))


@pytest.mark.parametrize("limits", [BatchConfig(max_lines=3)], ids=["three lines"])
async def test_more_lines_than_the_limit_fail(idle_bureau: Bureau) -> None:
    assert (await idle_bureau.create([line(i) for i in range(3)])).status == "validating"
    done = await idle_bureau.ended([line(i) for i in range(4)])
    assert done.errors is not None
    assert [(error.code, error.line) for error in done.errors.data or ()] == [("too_many_requests", 4)]


@pytest.mark.parametrize("limits", [BatchConfig(max_line_bytes=2000)], ids=["2,000 bytes"])
async def test_a_line_longer_than_the_limit_fails_and_the_next_is_read(idle_bureau: Bureau) -> None:
    long = line(1, body={"model": MODEL, "messages": [{"role": "user", "content": "x" * 9000}]})
    done = await idle_bureau.ended(jsonl([line(0), long]) + b"{\n")
    assert done.errors is not None
    assert [(error.code, error.line) for error in done.errors.data or ()] == [("line_too_long", 2), ("invalid_json_line", 3)]


async def test_a_request_of_a_million_characters_is_answered(bureau: Bureau) -> None:
    text = "é" * 1_000_000
    done = await bureau.ended([line(0, body={"model": MODEL, "messages": [{"role": "user", "content": text}]})])
    answers = await bureau.lines(done.output_file_id)
    assert answers["request-0"]["response"]["body"]["choices"][0]["message"]["content"] == text


async def test_windows_line_ends_a_byte_order_mark_and_blank_lines_are_taken(bureau: Bureau) -> None:
    data = b"\xef\xbb\xbf" + jsonl([line(0), line(1)]).replace(b"\n", b"\r\n\r\n")
    assert (await bureau.ended(data)).status == "completed"


async def test_a_file_deleted_while_its_batch_runs_is_not_missed(idle_bureau: Bureau) -> None:
    batch = await idle_bureau.create([line(i) for i in range(5)])
    await idle_bureau.until(batch.id, {"in_progress"})
    await idle_bureau.api.files.delete(batch.input_file_id)
    async with going(idle_bureau.runner().run()):
        done = await idle_bureau.until(batch.id, ENDED)
    assert (done.status, len(await idle_bureau.lines(done.output_file_id))) == ("completed", 5)


async def test_a_file_deleted_before_it_was_read_fails_its_batch(tmp_path: Path) -> None:
    bureau = Bureau(tmp_path, BatchConfig(), last_content)
    async with bureau.http:
        batch = await bureau.create([line(0)])
        await bureau.api.files.delete(batch.input_file_id)
        async with going(bureau.controller.run()):
            done = await bureau.until(batch.id, ENDED)
    assert done.errors is not None
    assert [error.code for error in done.errors.data or ()] == ["file_not_found"]
    bureau.ledger.close()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/embeddings"}, "endpoint"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"completion_window": "0h"}, "completion_window"),
        ({"completion_window": "-24h"}, "completion_window"),
        ({"completion_window": "99999999w"}, "completion_window"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"metadata": {"k" * 65: ""}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 5}}, "output_expires_after.seconds"),
        ({"extra_body": {"priority": 1}}, "priority"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value,
)
async def test_a_wrong_wish_is_refused_with_the_parameter(idle_bureau: Bureau, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await idle_bureau.create([line(0)], **fields)
    assert str(refused.value.param).startswith(param)
    assert refused.value.type == "invalid_request_error"
    assert (await idle_bureau.api.batches.list()).data == []


async def test_half_a_surrogate_pair_is_refused(idle_bureau: Bureau) -> None:
    body = (
        b'{"input_file_id": "\\ud800", "endpoint": "\\ud800", "completion_window": "1h", "metadata": {"\\ud800": "\\ud800"}, "\\ud800": 1}'
    )
    answer = await idle_bureau.http.post("/v1/batches", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text


@pytest.mark.parametrize(
    "file_id",
    [
        "file-000000000000000000000000",
        "/etc/passwd",
        "../../etc/passwd",
        "file-../../../x",
        "https://example.com/a.jsonl",
        "",
        "a\x00b",
        "é" * 999,
    ],
)
async def test_an_input_file_that_is_not_there_is_refused_and_never_opened(idle_bureau: Bureau, file_id: str) -> None:
    with pytest.raises(openai.BadRequestError, match="No such File object") as refused:
        await idle_bureau.api.batches.create(input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h")
    assert refused.value.param == "input_file_id"


async def test_an_output_file_is_no_input(bureau: Bureau) -> None:
    done = await bureau.ended([line(0)])
    with pytest.raises(openai.BadRequestError, match="purpose batch_output"):
        await bureau.api.batches.create(input_file_id=done.output_file_id or "", endpoint="/v1/chat/completions", completion_window="24h")


# -- lists --------------------------------------------------------------------------------------------------------------------------


async def test_batches_are_listed_newest_first_by_pages(idle_bureau: Bureau) -> None:
    made = []
    for number in range(5):
        idle_bureau.clock.advance(1)
        made.append((await idle_bureau.create([line(number)])).id)
    first = await idle_bureau.api.batches.list(limit=2)
    assert ([batch.id for batch in first.data], first.has_more) == (made[:2:-1], True)
    assert [batch.id async for batch in idle_bureau.api.batches.list(limit=2)] == made[::-1]
    with pytest.raises(openai.BadRequestError, match="not in the list"):
        await idle_bureau.api.batches.list(after="batch_nothing")


async def test_files_are_listed_by_purpose_and_order_by_pages(bureau: Bureau) -> None:
    ids = []
    for number in range(3):
        bureau.clock.advance(1)
        ids.append(await bureau.upload([line(number)]))
    assert [file.id async for file in bureau.api.files.list(limit=1)] == ids[::-1]
    assert [file.id async for file in bureau.api.files.list(limit=2, order="asc")] == ids
    assert [file.id async for file in bureau.api.files.list(purpose="batch_output")] == []


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_files_are_deleted_while_their_pages_are_read(idle_bureau: Bureau, order: Literal["asc", "desc"]) -> None:
    ids = []
    for number in range(5):
        idle_bureau.clock.advance(1)
        ids.append(await idle_bureau.upload([line(number)]))
    seen = []
    async for file in idle_bureau.api.files.list(limit=2, order=order):
        seen.append(file.id)
        await idle_bureau.api.files.delete(file.id)
    assert seen == (ids if order == "asc" else ids[::-1])
    assert (await idle_bureau.api.files.list()).data == []


async def test_a_page_begins_behind_a_file_whose_time_is_over(idle_bureau: Bureau) -> None:
    expires: list[Any] = [{}, {"expires_after": {"anchor": "created_at", "seconds": 3600}}, {}]
    ids = []
    for fields in expires:
        idle_bureau.clock.advance(1)
        ids.append(await idle_bureau.upload([line(0)], **fields))
    idle_bureau.clock.advance(3600)
    for _ in range(2):
        assert [file.id for file in (await idle_bureau.api.files.list(after=ids[1])).data] == [ids[0]]
        assert [file.id for file in (await idle_bureau.api.files.list()).data] == [ids[2], ids[0]]
        idle_bureau.files.sweep()


# -- files --------------------------------------------------------------------------------------------------------------------------


async def test_a_file_is_uploaded_shown_read_and_deleted(idle_bureau: Bureau) -> None:
    data = bytes(range(256)) * 5000
    file = await idle_bureau.api.files.create(file=("../../etc/päss.jsonl", data), purpose="batch")
    assert (file.bytes, file.purpose, file.filename, file.object) == (len(data), "batch", "päss.jsonl", "file")
    assert (await idle_bureau.api.files.content(file.id)).content == data
    assert (await idle_bureau.api.files.retrieve(file.id)) == file
    assert (await idle_bureau.api.files.delete(file.id)).deleted
    with pytest.raises(openai.NotFoundError, match="No such File object"):
        await idle_bureau.api.files.content(file.id)
    assert list(idle_bureau.folder.files.iterdir()) == []


async def test_files_go_when_their_time_is_over(idle_bureau: Bureau) -> None:
    file_id = await idle_bureau.upload([line(0)], expires_after={"anchor": "created_at", "seconds": 3600})
    idle_bureau.clock.advance(3599)
    assert (await idle_bureau.api.files.retrieve(file_id)).expires_at is not None
    idle_bureau.clock.advance(1)
    with pytest.raises(openai.NotFoundError):
        await idle_bureau.api.files.retrieve(file_id)
    assert (await idle_bureau.api.files.list()).data == []
    idle_bureau.files.sweep()
    assert list(idle_bureau.folder.files.iterdir()) == []


async def test_the_files_of_a_batch_go_when_it_was_asked_for(bureau: Bureau) -> None:
    done = await bureau.ended([line(0)], output_expires_after={"anchor": "created_at", "seconds": 7200})
    file = await bureau.api.files.retrieve(done.output_file_id or "")
    assert file.expires_at == file.created_at + 7200


@pytest.mark.parametrize("limits", [BatchConfig(max_file_bytes=1000)], ids=["1,000 bytes"])
@pytest.mark.parametrize("told", [True, False], ids=["told its length", "in chunks"])
async def test_an_upload_over_the_limit_is_refused_before_it_is_read(idle_bureau: Bureau, told: bool) -> None:
    read = 0
    head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'

    async def body() -> AsyncIterator[bytes]:
        nonlocal read
        yield head
        for _ in range(2000):
            read += 1
            yield b"x" * 1_000_000

    headers = {"content-type": "multipart/form-data; boundary=b"} | ({"content-length": "2000000100"} if told else {})
    answer = await idle_bureau.http.post("/v1/files", content=body(), headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    assert read <= 1
    assert list(idle_bureau.folder.files.iterdir() if idle_bureau.folder.files.exists() else ()) == []


FORM = {"content-type": "multipart/form-data; boundary=b"}
FILE = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\ndata\r\n'
PURPOSE = b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'


@pytest.mark.parametrize(
    ("headers", "body", "param"),
    [
        ({"content-type": "application/json"}, b"{}", None),
        ({}, b"", None),
        ({"content-type": "multipart/form-data"}, FILE, None),
        (FORM, b"no form at all", None),
        (FORM, FILE + b"--b--\r\n", "purpose"),
        (FORM, PURPOSE + b"--b--\r\n", "file"),
        (FORM, PURPOSE + FILE, "file"),
        (FORM, PURPOSE + FILE + FILE + b"--b--\r\n", "file"),
        (FORM, FILE + PURPOSE.replace(b"batch", b"vision") + b"--b--\r\n", "purpose"),
        (FORM, FILE + PURPOSE.replace(b"batch", b"x" * 5000) + b"--b--\r\n", "purpose"),
        (FORM, FILE + PURPOSE + PURPOSE.replace(b"purpose", b"expires_after[seconds]") + b"--b--\r\n", "expires_after"),
    ],
    ids=[
        "json",
        "nothing",
        "no-boundary",
        "no-form",
        "no-purpose",
        "no-file",
        "torn",
        "two-files",
        "other-purpose",
        "long-field",
        "expires",
    ],
)
async def test_an_upload_that_is_none_is_refused_and_leaves_nothing(
    idle_bureau: Bureau, headers: dict[str, str], body: bytes, param: str | None
) -> None:
    answer = await idle_bureau.http.post("/v1/files", content=body, headers=headers)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param), error
    assert list(idle_bureau.folder.files.iterdir() if idle_bureau.folder.files.exists() else ()) == []


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/files/nothing", 404),
        ("DELETE", "/v1/files/file-000000000000000000000000", 404),
        ("GET", "/v1/files/..%2f..%2fledger.sqlite/content", 404),
        ("GET", "/v1/files/%2e%2e/content", 404),
        ("GET", "/v1/batches/batch_nothing", 404),
        ("POST", "/v1/batches/batch_nothing/cancel", 404),
        ("PUT", "/v1/files", 404),
        ("GET", "/v1/files?limit=0", 400),
        ("GET", "/v1/files?limit=999999999999999999999", 400),
        ("GET", "/v1/files?order=up", 400),
        ("GET", "/v1/batches?limit=101", 400),
        ("POST", "/v1/batches", 400),
    ],
    ids=lambda value: str(value),
)
async def test_every_refusal_has_openais_shape(idle_bureau: Bureau, method: str, path: str, status: int) -> None:
    answer = await idle_bureau.http.request(method, path)
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


async def test_the_application_describes_itself_below_its_prefix(idle_bureau: Bureau) -> None:
    described = (await idle_bureau.http.get("/v1/files/openapi.json")).json()
    assert {"/v1/files", "/v1/files/{file_id}/content", "/v1/batches/{batch_id}/cancel"} <= set(described["paths"])
    alone = openai_api(None, idle_bureau.controller)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(alone), base_url="http://bureau") as http:
        assert (await http.get("/v1/batches/openapi.json")).status_code == 200


WISHES = {
    "input_file_id": "file-x",
    "endpoint": "/v1/completions",
    "completion_window": "1h",
    "metadata": None,
    "output_expires_after": None,
}


async def test_tidying_goes_on_after_an_error_of_any_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bureau, tidied, went_on = Bureau(tmp_path, BatchConfig(), last_content), list[int](), asyncio.Event()

    async def tidy() -> None:
        tidied.append(1)
        if len(tidied) == 1:
            raise OSError(errno.EIO, "Input/output error")
        went_on.set()

    monkeypatch.setattr(bureau.controller, "tidy", tidy)
    monkeypatch.setattr(bureau.controller, "_tidy_s", 0.01)
    running = asyncio.create_task(bureau.controller.run())
    async with asyncio.timeout(PATIENCE_S):
        await went_on.wait()
    assert not running.done()
    assert len(tidied) > 1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await bureau.http.aclose()
    bureau.ledger.close()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(), max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(JSON | st.dictionaries(st.sampled_from(list(WISHES)), JSON).map(lambda some: WISHES | some), st.text(max_size=12))
def test_no_wish_and_no_address_makes_the_server_fail(tmp_path_factory: pytest.TempPathFactory, body: object, word: str) -> None:
    async def ask() -> None:
        bureau = Bureau(tmp_path_factory.mktemp("any"), BatchConfig(), last_content)
        path = urllib.parse.quote(word, safe="")
        async with bureau.http as http:
            answers = [await http.post("/v1/batches", content=json.dumps(body), headers={"content-type": "application/json"})]
            for where in (f"/v1/files/{path}", f"/v1/files/{path}/content", f"/v1/batches/{path}", f"/v1/files?after={path}&limit={path}"):
                answers.append(await http.get(where))
            answers.append(await http.post(f"/v1/batches/{path}/cancel"))
        bureau.ledger.close()
        for answer in answers:
            assert answer.status_code < 500, answer.text
            assert answer.status_code == 200 or set(answer.json()["error"]) == {"message", "type", "param", "code"}

    asyncio.run(ask())


async def test_a_servers_api_key_guards_files_and_batches(tmp_path: Path) -> None:
    store = FileStore(tmp_path, ManualClock())
    app = openai_api(store, None, gate=Gate(KeyRing(["secret", "other"])))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://bureau") as http:
        statuses = []
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "secret"}, {"authorization": "Bearer other"}):
            statuses.append((await http.get("/v1/files", headers=headers)).status_code)
    assert statuses == [401, 401, 401, 200]


# -- a controller that dies -------------------------------------------------------------------------------------------------------------


async def test_a_new_keeper_takes_up_what_the_last_one_left(tmp_path: Path) -> None:
    """At each step: nothing done; job entered but not recorded; files made but not recorded."""
    bureau = Bureau(tmp_path, BatchConfig(), last_content)
    async with bureau.http:
        batch = await bureau.create([line(i) for i in range(8)])
        record = bureau.new_controller().records()[0]
        assert record.status == "validating"
        plan, _ = BatchPlanner(bureau.folder, bureau.files, BatchConfig(), HARVEST, MODEL).plan(record, [MODEL], lambda: False)
        bureau.ledger.submit(plan, new=True)
        async with going(bureau.runner().run(), bureau.controller.run()):
            done = await bureau.until(batch.id, ENDED)
        assert done.status == "completed"
        finished = bureau.new_controller()
        BatchStore(bureau.folder.batches).put(
            finished.records()[0].reach(BatchStatus.FINALIZING, bureau.clock(), output_file_id=None, counts=None)
        )
        again = bureau.new_controller()
        await again.look()
        await again.settle()
        assert (await again.show(batch.id))["output_file_id"] == done.output_file_id
        assert len(await bureau.lines(done.output_file_id)) == 8
        assert len((await bureau.api.files.list(purpose="batch_output")).data) == 1
    bureau.ledger.close()


async def test_a_batch_is_shown_while_the_ledger_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its counts are those of the controller's last look; once that is long ago the ledger is asked."""
    bureau = Bureau(tmp_path, BatchConfig(), last_content)
    asked = 0
    ask = bureau.client.show

    async def show(job_id: str) -> JobView:
        nonlocal asked
        asked += 1
        return await ask(job_id)

    monkeypatch.setattr(bureau.client, "show", show)
    async with bureau.http:
        batch = await bureau.create([line(i) for i in range(8)])
        assert (await bureau.api.batches.retrieve(batch.id)).status == "validating"
        assert asked == 0, "it has no job yet"
        await bureau.controller.look()  # the input is read, the job entered
        await bureau.controller.settle()
        lease = bureau.ledger.lease("a", MODEL, bureau.clock())
        assert lease is not None
        bureau.ledger.commit(lease.lease_id, batch.id, lease.slice.slice_id, PartStats(rows_ok=4), bureau.clock())
        looks = asked
        shown = [(await bureau.api.batches.retrieve(batch.id)).request_counts for _ in range(3)]
        assert [(counts.total, counts.completed) for counts in shown if counts] == [(8, 0)] * 3
        assert asked == looks
        monkeypatch.setattr(keeper_module, "RECENT_S", -1.0)
        counts = (await bureau.api.batches.retrieve(batch.id)).request_counts
        assert counts is not None
        assert (counts.total, counts.completed, asked) == (8, 4, looks + 1)
    bureau.ledger.close()


async def test_a_batch_cancelled_before_it_was_read_has_no_job(tmp_path: Path) -> None:
    bureau = Bureau(tmp_path, BatchConfig(), last_content)
    async with bureau.http:
        batch = await bureau.create([line(0)])
        assert (await bureau.api.batches.cancel(batch.id)).status == "cancelling"
        async with going(bureau.controller.run()):
            done = await bureau.until(batch.id, ENDED)
    assert (done.status, done.output_file_id, bureau.ledger.jobs()) == ("cancelled", None, [])
    bureau.ledger.close()
