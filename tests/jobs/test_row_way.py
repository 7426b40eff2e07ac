"""What a row asks of the engine, what is kept of how it went, and the files that a batch's rows become."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.text import TextProblem
from jobs.batches.files import FileStore
from jobs.batches.output import write_outputs
from jobs.batches.record import BatchRecord, BatchUsage, BatchWish, Counts, ExpiresAfter
from jobs.engine import PLAIN, ApiCall, Completion, Message, Prompt, Rendering, RowError, RowRequest
from jobs.hint import SchedulingHint
from jobs.longtext.combine import combining, grouped, joined
from jobs.longtext.split import split
from jobs.result import Row, part_table, result_schema
from jobs.run.attempt import WINDOW_ROWS
from jobs.run.row import RowWork
from jobs.run.spool.records import Spool
from jobs.spec import JobSpec, OnLong
from jobs.storage.folder import StateFolder
from jobs.tasks.load import resolve_task
from jobs.tasks.spec import Task
from jobs.testing import ManualClock, ScriptedEngine, scripted_plan
from jobs.usage import Usage

SCHEMA = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}
USED = Usage(prompt_tokens=5, cached_tokens=2, output_tokens=3, preemptions=1)


def job(task: Task | None = None, **changes: Any) -> JobSpec:
    return scripted_plan("docs").spec.model_copy(update=({"task": task} if task else {}) | changes)


class Listening(ScriptedEngine):
    """Answers one text to everything, and keeps what it was asked."""

    def __init__(self, text: str, **scripted: Any) -> None:
        super().__init__(**scripted)
        self.text = text
        self.asked: list[RowRequest] = []

    async def complete(self, request: RowRequest) -> Completion:
        self.asked.append(request)
        return Completion(self.text, "stop", USED, 429 if isinstance(request.content, ApiCall) and self.text != "{}" else 200)


# -- one row --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "answer", "choices", "schema"),
    [
        (resolve_task("summarize"), "short", None, None),
        (resolve_task("classify", options={"labels": "a,b"}), "b", ("a", "b"), None),
        (resolve_task("extract", options={"schema": SCHEMA}), '{"total": 3}', None, SCHEMA),
    ],
    ids=["text", "choice", "json"],
)
async def test_the_engine_is_told_what_the_answer_may_be_and_how_the_row_stands(
    task: Task, answer: str, choices: tuple[str, ...] | None, schema: dict[str, Any] | None
) -> None:
    engine = Listening(answer)
    row = await RowWork(job(task, weight=3.0), engine, ManualClock(7.0)).answer(2 * WINDOW_ROWS, {}, "a text", 1, "t")
    (asked,) = engine.asked
    prompt = asked.content
    assert isinstance(prompt, Prompt)
    assert (asked.request_id, prompt.choices, prompt.json_schema) == (f"docs-{2 * WINDOW_ROWS}-t", choices, schema)
    assert (prompt.max_tokens, prompt.temperature) == (task.max_tokens, 0.0)
    assert asked.hint == SchedulingHint("docs", 2, 3.0)
    assert (row.status, row.usage, row.requests, row.parts, row.finish_reason, row.completed_at_s) == ("ok", USED, 1, 1, "stop", 7.0)


async def test_a_row_is_timed_and_its_second_request_has_a_name_of_its_own() -> None:
    clock, times = ManualClock(10.0), iter((10.0, 10.25))
    engine = Listening("none of them")
    work = RowWork(job(resolve_task("classify", options={"labels": "a,b"})), engine, lambda: next(times, clock()))
    row = await work.answer(1, {}, "a text", 4, "t")
    assert [asked.request_id for asked in engine.asked] == ["docs-1-t", "docs-1-t-1"]
    assert (row.latency_ms, row.completed_at_s, row.attempts, row.requests) == (250.0, 10.25, 4, 2)
    assert (row.status, row.error_code, row.raw_output) == ("error", "not_a_label", "none of them")
    assert row.usage == USED + USED


async def test_a_text_that_is_too_long_says_by_how_much() -> None:
    task = resolve_task("t", inline={"prompt": "{text}"}, max_tokens=20)
    engine = ScriptedEngine(context_tokens=60)
    row = await RowWork(job(task, on_long=OnLong.ERROR), engine, lambda: 0.0).answer(0, {}, "word " * 60, 1, "t")
    tells = (
        "with its text the prompt has 75 tokens or more, and there is room for 40; shorten it, or submit with --on-long split or truncate"
    )
    assert (row.status, row.error_code, row.error_message) == ("error", "text_too_long", tells)


class Counting(ScriptedEngine):
    """Keeps how long the prompts are that it is asked to count."""

    def __init__(self, **scripted: Any) -> None:
        super().__init__(**scripted)
        self.counted: list[int] = []

    async def count_tokens(self, messages: tuple[Message, ...], rendering: Rendering = PLAIN) -> int:
        self.counted.append(sum(len(message["content"]) for message in messages))
        return await super().count_tokens(messages, rendering)


@pytest.mark.parametrize("on_long", OnLong)
async def test_a_text_that_is_very_much_too_long_is_never_tokenized_whole(on_long: OnLong) -> None:
    task = resolve_task("t", inline={"prompt": "Sum up.\n{text}", "combine": "Put together.\n{text}"}, max_tokens=20)
    engine = Counting(context_tokens=1000)
    row = await RowWork(job(task, on_long=on_long), engine, ManualClock()).answer(0, {}, "This is a sentence. " * 100_000, 1, "t")
    assert (row.status, row.error_code) == (("error", "text_too_long") if on_long is OnLong.ERROR else ("ok", None))
    assert 0 < max(engine.counted) <= 16 * 980 + len("Put together.\n")


@pytest.mark.parametrize("on_long", OnLong)
async def test_a_text_that_fits_though_its_bytes_may_not_is_asked_as_it_is(on_long: OnLong) -> None:
    engine = Listening("short", context_tokens=1000)
    text = f"  {'word ' * 400}\n"
    row = await RowWork(job(on_long=on_long), engine, ManualClock()).answer(0, {}, text, 1, "t")
    (asked,) = engine.asked
    assert isinstance(asked.content, Prompt)
    assert text in asked.content.messages[-1]["content"]
    assert (row.status, row.truncated, row.parts) == ("ok", False, 1)


async def test_a_prompt_that_leaves_no_room_for_a_word_cannot_be_split() -> None:
    async def count(text: str) -> int:
        return 10 + len(text)

    with pytest.raises(RowError, match=r"leaves no room for a word of the text within 10 tokens; shorten the prompt$") as caught:
        await split("word word", count, 10)
    assert caught.value.code == "prompt_too_long"


def test_a_row_that_was_begun_too_often_is_given_up() -> None:
    tells = "the engine was lost 3 times while this row was in work"
    for endpoint in (None, "/v1/completions"):
        row = RowWork(job(endpoint=endpoint), ScriptedEngine(), ManualClock(9.0)).give_up(4, 5, 3)
        assert (row.row_id, row.status, row.error_code, row.error_message) == (4, "error", "engine_lost", tells)
        assert (row.attempts, row.requests, row.latency_ms, row.completed_at_s, row.values) == (5, 0, 0.0, 9.0, {})


async def api_row(reply: str, text: str | TextProblem | None) -> tuple[Row, Listening]:
    engine = Listening(reply)
    work = RowWork(job(endpoint="/v1/completions", max_tokens=7), engine, ManualClock(9.0))
    return await work.answer(3 * WINDOW_ROWS, {}, text, 2, "t"), engine


async def test_a_request_goes_to_the_engine_as_it_is_and_its_response_is_the_answer() -> None:
    row, engine = await api_row("{}", '{"n": 2}')
    assert engine.asked == [RowRequest(f"docs-{3 * WINDOW_ROWS}-t", ApiCall("/v1/completions", {"n": 2}, 7), SchedulingHint("docs", 3))]
    assert (row.values, row.status, row.requests, row.usage, row.attempts) == ({"output": "{}"}, "ok", 1, USED, 2)


@pytest.mark.parametrize(
    ("body", "tells"),
    [
        ('{"error": {"message": "too\\n many"}}', "too many"),
        ('{"error": "busy"}', '{"error": "busy"}'),
        ("not JSON", "not JSON"),
        ("x" * 600, "x" * 500),
    ],
    ids=["OpenAI's", "another", "no JSON", "long"],
)
async def test_a_refused_request_keeps_its_response_and_says_why(body: str, tells: str) -> None:
    row, _ = await api_row(body, "{}")
    assert (row.status, row.error_code, row.error_message, row.values) == ("error", "http_429", tells, {"output": body})


@pytest.mark.parametrize(
    ("text", "code", "tells"),
    [(None, "null_text", "the request has no body"), (TextProblem("bad", "is bad"), "bad", "is bad")],
    ids=["null", "unreadable"],
)
async def test_a_row_without_a_request_asks_nothing(text: TextProblem | None, code: str, tells: str) -> None:
    row, engine = await api_row("{}", text)
    assert (row.status, row.error_code, row.error_message, row.requests, engine.asked) == ("error", code, tells, 0, [])


# -- parts of a long text -------------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 30), max_size=14), st.integers(40, 120))
async def test_a_group_takes_every_answer_that_fits(lengths: list[int], budget: int) -> None:
    answers = ["x" * length for length in lengths]

    async def count(text: str) -> int:
        return len(text)

    groups, was_cut = await grouped(answers, count, budget)
    assert not was_cut or any(len(joined(pair)) > budget for pair in pairwise(answers))
    start = 0
    for group in groups[:-1]:
        start += len(group)
        assert len(joined(answers[start - len(group) : start + 1])) > budget, "one more would not fit"


def test_the_combining_prompt_names_the_parts_and_keeps_the_tasks_own_words() -> None:
    assert joined([" a \n", "b"]) == "Part 1 of 2:\na\n\nPart 2 of 2:\nb"
    made = combining(Task(name="t", prompt="Sum up {body} of {title}."), "body").prompt
    assert "Sum up (the text) of {title}." in made
    assert made.endswith("\n\n{text}")
    assert combining(Task(name="t", prompt="{text}", combine="All: {text}"), None).prompt == "All: {text}"
    assert "Sum up (the text)." in combining(Task(name="t", prompt="Sum up {text}."), None).prompt


# -- a batch's files ------------------------------------------------------------------------------------------------------------------


def done(row_id: int, output: str | None, code: str | None = None) -> Row:
    status = "error" if code else "ok"
    return Row(row_id, {"output": output}, status, code, f"{code}!" if code else None, "stop", USED, 1, 1.0, False, 0.0)  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    made = StateFolder(tmp_path)
    made.prepare()
    made.files.mkdir()
    return made


def outputs(
    folder: StateFolder, parts: Sequence[Sequence[Row]], spooled: Sequence[Row], rows: int, *, expired: bool, **wish: Any
) -> tuple[Any, list[dict[str, Any]], list[dict[str, Any]], FileStore]:
    wished = BatchWish(input_file_id="f", endpoint="/v1/completions", completion_window="1h", **wish)
    record = BatchRecord.of(wished, 0.0).model_copy(update={"id": "batch_1"})
    requests = folder.root / "requests.parquet"
    ids = pa.table({"custom_id": [f"c{row_id}" for row_id in range(rows)]})
    pq.write_table(ids, requests)
    schema = result_schema(ids.schema, ("custom_id",), Task(name="t", prompt="{text}"))
    folder.results(record.id).mkdir(parents=True)
    for number, part in enumerate(parts):
        kept = ids.take([row.row_id for row in part])
        pq.write_table(part_table(schema, part, kept), folder.results(record.id) / f"part-{number:06d}.parquet")
    if spooled:
        spool = Spool(folder.spool(record.id, 9, 0))
        for row in spooled:
            spool.finish(row)
        spool.close()
    store = FileStore(folder.files, ManualClock(100.0))
    made = write_outputs(record, rows, requests, folder, store, never_run_expired=expired)
    good, bad = (
        [json.loads(line) for line in store.content(file_id).read_text().splitlines()] if file_id else []
        for file_id in (made.output_file_id, made.error_file_id)
    )
    return made, good, bad, store


def test_every_row_of_a_batch_is_one_line_of_one_of_its_files(folder: StateFolder) -> None:
    told = '{"usage": {"completion_tokens_details": {"reasoning_tokens": 4}}}'
    parts = [[done(0, told), done(1, '{"error": 1}', "http_400")], [done(2, None, "null_text")]]
    made, good, bad, store = outputs(folder, parts, [done(2, "{}"), done(3, '{"b": 1}')], 5, expired=True)
    assert made.counts == Counts(total=5, completed=2, failed=3)
    assert made.usage == BatchUsage(prompt_tokens=20, cached_tokens=8, output_tokens=12, preemptions=4, reasoning_tokens=4)
    assert [(line["custom_id"], line["response"]["status_code"], line["response"]["body"], line["error"]) for line in good] == [
        ("c0", 200, json.loads(told), None),
        ("c3", 200, {"b": 1}, None),
    ]
    message = "This request could not be executed before the completion window expired."
    assert [(line["custom_id"], line["response"] and line["response"]["status_code"], line["error"]) for line in bad] == [
        ("c1", 400, None),
        ("c2", None, {"code": "null_text", "message": "null_text!"}),
        ("c4", None, {"code": "batch_expired", "message": message}),
    ]
    assert len({line["id"] for line in good + bad}) == 5
    assert all(line["id"] == f"batch_req_{line['response']['request_id']}" for line in good)
    shown = [store.get(str(file_id)) for file_id in (made.output_file_id, made.error_file_id)]
    assert [(file.filename, file.purpose, file.expires_at_s) for file in shown] == [
        ("batch_1_output.jsonl", "batch_output", None),
        ("batch_1_error.jsonl", "batch_output", None),
    ]


@pytest.mark.parametrize("code", [None, "http_500"], ids=["all went well", "all failed"])
def test_a_file_without_a_line_is_none(folder: StateFolder, code: str | None) -> None:
    after = ExpiresAfter(anchor="created_at", seconds=3600)
    made, good, bad, store = outputs(folder, [[done(0, "{}", code)]], [], 2, expired=False, output_expires_after=after)
    assert (len(good), len(bad), made.counts.total) == ((0, 1, 2) if code else (1, 0, 2))
    assert (made.output_file_id is None, made.error_file_id is None) == (code is not None, code is None)
    (file,) = store.list()
    assert (file.id, file.expires_at_s) == (made.output_file_id or made.error_file_id, 3700.0)
