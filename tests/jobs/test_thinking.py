"""Thinking before an answer: what is asked of which model, what a row keeps of it, and when it is an error."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from jobs.engine import Prompt, Rendering, RowRequest
from jobs.errors import TaskError
from jobs.ledger.history import task_key
from jobs.result import Row, kept_names, part_stats, part_table, result_schema
from jobs.run.row import RowWork
from jobs.spec import JobRequest, JobSpec, SourceSpec
from jobs.tasks.file import parse_task
from jobs.tasks.load import resolve_task
from jobs.tasks.spec import Task
from jobs.tasks.thinking import ON_TOKENS, ModelThinking, settled
from jobs.testing import ManualClock, ScriptedEngine, scripted_plan

SWITCHED = ModelThinking(thinks=True, can_stop=True, has_budget=True, switches=("enable_thinking",))
ALWAYS = ModelThinking(thinks=True, can_stop=False, has_budget=False)
NEVER = ModelThinking(thinks=False, can_stop=False, has_budget=False)
SCHEMA = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}


def task(**fields: Any) -> Task:
    return Task(name="t", prompt="{text}", **fields)


@pytest.mark.parametrize(
    ("model", "asked", "tokens"),
    [
        pytest.param(SWITCHED, None, 0, id="off where it can be"),
        pytest.param(SWITCHED, "off", 0, id="off"),
        pytest.param(SWITCHED, "on", 4096, id="on"),
        pytest.param(SWITCHED, 300, 300, id="so many tokens"),
        pytest.param(ALWAYS, None, 4096, id="of a model that always thinks"),
        pytest.param(ALWAYS, "on", 4096, id="on of a model that always thinks"),
        pytest.param(NEVER, None, 0, id="of a model that does not think"),
        pytest.param(NEVER, "off", 0, id="off of a model that does not think"),
        pytest.param(None, None, 0, id="of a model that nobody asked"),
    ],
)
def test_a_job_thinks_as_it_was_asked_and_as_its_model_can(model: ModelThinking | None, asked: Any, tokens: int) -> None:
    assert settled(task(thinking=asked), "m", model, 16_000).thinking_tokens == tokens


def test_thinking_on_takes_at_most_half_of_a_small_context() -> None:
    assert settled(task(thinking="on"), "m", SWITCHED, 1000).thinking_tokens == 500 < ON_TOKENS


@pytest.mark.parametrize(
    ("model", "asked", "message"),
    [
        (
            ALWAYS,
            {"thinking": "off"},
            "m always thinks, so --thinking off cannot work; leave it out",
        ),
        (NEVER, {"thinking": "on"}, "m does not think: its chat template has no switch for it; leave --thinking out"),
        (NEVER, {"thinking": 5}, "m does not think: its chat template has no switch for it; leave --thinking out"),
        (ALWAYS, {"thinking": 5}, "the thinking of m cannot be ended after 5 tokens; use --thinking on"),
        (
            SWITCHED,
            {"chat_template_kwargs": {"enable_thinking": True}},
            "chat_template_kwargs sets enable_thinking, which turns thinking on and off; use thinking: on, off or a number instead",
        ),
        (
            SWITCHED,
            {"thinking": "on", "answer": "json", "json_schema": {**SCHEMA, "properties": {"reasoning": {"type": "string"}}}},
            "the schema has a property reasoning, which is the column of the thinking; rename it, or use --thinking off",
        ),
    ],
)
def test_what_a_model_cannot_is_refused_in_one_line(model: ModelThinking, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError) as refused:
        settled(task(**asked), "m", model, 8192)
    assert refused.value.message == message


def test_a_task_file_says_on_and_off_as_yaml_reads_them() -> None:
    said = [parse_task({"name": "t", "prompt": "{text}", "thinking": given}, "t").thinking for given in (True, False, 40)]
    assert said == ["on", "off", 40]


@pytest.mark.parametrize("given", ["maybe", 0, -1, 1.5])
def test_other_words_for_thinking_are_refused(given: Any) -> None:
    with pytest.raises(TaskError, match="thinking"):
        parse_task({"name": "t", "prompt": "{text}", "thinking": given}, "t")


@pytest.mark.parametrize("name", ["chat_template", "tokenize", "messages", "add_generation_prompt", "no name"])
def test_arguments_that_would_replace_the_template_or_the_rendering_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is no argument that a request may give"):
        JobRequest(source=SourceSpec(uri="/x"), chat_template_kwargs={name: "x"})


def test_a_request_lays_its_thinking_and_its_arguments_over_the_files() -> None:
    inline = {"prompt": "{text}", "thinking": "on", "chat_template_kwargs": {"a": 1, "b": 2}}
    found = resolve_task("t", inline=inline, thinking="off", chat_template_kwargs={"b": 3})
    assert (found.thinking, found.chat_template_kwargs) == ("off", {"a": 1, "b": 3})
    assert resolve_task("t", inline=inline).thinking == "on"


def test_jobs_of_before_and_jobs_that_do_not_think_are_the_same_jobs() -> None:
    stored = scripted_plan("docs").spec.model_dump(mode="json")
    for name in ("thinking", "chat_template_kwargs", "images", "adapter"):
        del stored["task"][name]
    before = JobSpec.model_validate(stored)
    assert before.task.thinking_tokens == 0
    stored["task"]["temperature"] = 0.0
    assert before.task.key_fields() == stored["task"] == before.task.model_copy(update={"thinking": "off"}).key_fields()
    assert task_key(before.task, "m") != task_key(before.task.model_copy(update={"thinking": 5}), "m")


def test_reasoning_is_a_column_of_jobs_that_think_alone() -> None:
    source = pa.schema([("reasoning", pa.string())])
    plain, thinking = task(), task(thinking=9, answer="json", json_schema=SCHEMA)
    assert "input_reasoning" not in result_schema(source, ("reasoning",), plain).names
    assert result_schema(source, ("reasoning",), thinking).names[:4] == ["row_id", "input_reasoning", "total", "reasoning"]
    assert kept_names(source, ("reasoning",), plain) == {"reasoning": "reasoning"}


# -- a row ------------------------------------------------------------------------------------------------------------------------------


async def answered(engine: ScriptedEngine, asked: Task) -> Row:
    job = scripted_plan("docs").spec.model_copy(update={"task": asked, "column": "text"})
    return await RowWork(job, engine, ManualClock()).answer(0, {"text": "x"}, "x", 1, "a")


async def test_what_was_thought_is_no_part_of_the_answer() -> None:
    heard: list[RowRequest] = []
    engine = ScriptedEngine(answer=lambda prompt: "yes", think=lambda prompt: "let me see", hear=heard.append)
    row = await answered(engine, task(thinking=10, max_tokens=20, chat_template_kwargs={"effort": "low"}))
    assert (row.values, row.status) == ({"output": "yes", "reasoning": "let me see"}, "ok")
    prompt = heard[0].content
    assert isinstance(prompt, Prompt)
    assert (prompt.max_tokens, prompt.rendering) == (30, Rendering(10, {"effort": "low"})), "the answer keeps its own tokens"


async def test_a_prompt_leaves_room_for_thinking_and_answer() -> None:
    long = "word " * 80  # 100 tokens
    engine = ScriptedEngine(context_tokens=150, think=lambda prompt: "")
    job = scripted_plan("docs").spec.model_copy(update={"task": task(thinking=60, max_tokens=30), "column": "text"})
    row = await RowWork(job, engine, ManualClock()).answer(0, {"text": long}, long, 1, "a")
    assert row.truncated
    assert row.usage.prompt_tokens <= 150 - 90


async def test_thinking_that_is_cut_before_an_answer_is_an_error_that_says_what_to_do() -> None:
    engine = ScriptedEngine(answer=lambda prompt: "yes", think=lambda prompt: "x" * 400)
    row = await answered(engine, task(thinking=10, max_tokens=20))
    assert (row.status, row.error_code, row.finish_reason, engine.calls) == ("error", "cut_off", "length", 1)
    assert row.error_message == (
        "the thinking was cut off before an answer, at thinking=10 and max_tokens=20 tokens; "
        "raise --thinking or --max-tokens, or use --thinking off"
    )
    assert row.values == {"reasoning": "x" * 120}, "what was thought is kept"


async def test_a_model_that_thinks_and_says_nothing_is_an_error() -> None:
    row = await answered(ScriptedEngine(answer=lambda prompt: "\n", think=lambda prompt: "hm"), task(thinking=10))
    assert (row.status, row.error_code, row.values) == ("error", "no_answer", {"reasoning": "hm"})


async def test_a_typed_answer_is_asked_for_again_with_its_thinking() -> None:
    said = iter(["none", '{"total": 3}'])
    engine = ScriptedEngine(answer=lambda prompt: next(said), think=lambda prompt: f"turn {len(prompt.messages)}")
    row = await answered(engine, task(thinking=40, answer="json", json_schema=SCHEMA))
    assert row.values == {"total": 3, "reasoning": "turn 3"}


async def test_answers_that_end_at_max_tokens_are_counted_and_errors_are_not() -> None:
    cut = await answered(ScriptedEngine(answer=lambda prompt: "y" * 400), task(max_tokens=5))
    assert (cut.status, cut.finish_reason, cut.values) == ("ok", "length", {"output": "y" * 20})
    whole = await answered(ScriptedEngine(answer=lambda prompt: "y"), task())
    failed = await answered(ScriptedEngine(answer=lambda prompt: "y" * 400), task(answer="choice", labels=("a", "b"), max_tokens=5))
    assert failed.finish_reason == "length"
    rows = [replace(row, row_id=number, values={"output": "y"}) for number, row in enumerate((cut, whole, failed))]
    stats = part_stats(part_table(result_schema(pa.schema([]), (), task()), rows, None), 0, 0)
    assert (stats.rows_ok, stats.rows_error, stats.rows_cut_off) == (2, 1, 1)
