"""Answers out of shape: asked for once more with what is wrong, then an error that keeps the answer as it came."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jobs.engine import Prompt, RowError
from jobs.result import Row
from jobs.run.row import RowWork
from jobs.spec import JobSpec, OnLong
from jobs.tasks.load import resolve_task
from jobs.testing import ScriptedEngine, scripted_plan

SCHEMA = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"], "additionalProperties": False}
EXTRACT = {"name": "extract", "options": {"schema": SCHEMA}}
CLASSIFY = {"name": "classify", "options": {"labels": ["red", "blue"]}}


def job(task: dict[str, Any], **changes: Any) -> JobSpec:
    return scripted_plan("docs").spec.model_copy(update={"task": resolve_task(**task), **changes})


async def answered(spec: JobSpec, engine: ScriptedEngine, text: str = "a text") -> Row:
    return await RowWork(spec, engine, lambda: 0.0).answer(0, {}, text, 1, "t")


def script(*answers: str, seen: list[Prompt] | None = None) -> Callable[[Prompt], str]:
    """These answers one after the other."""
    left = list(answers)

    def answer(prompt: Prompt) -> str:
        if seen is not None:
            seen.append(prompt)
        return left.pop(0)

    return answer


WRONG = [
    pytest.param(EXTRACT, "no JSON", '{"total": 3}', {"total": 3}, "is not JSON", id="not JSON"),
    pytest.param(EXTRACT, '{"total": "x"}', '{"total": 3}', {"total": 3}, "does not follow the schema at total", id="not the schema"),
    pytest.param(CLASSIFY, "green", " blue\n", {"output": "blue"}, "'green', not one of: red, blue", id="no label"),
    pytest.param(EXTRACT, '{"total": ' + "9" * 4000, '{"total": 3}', {"total": 3}, "was cut off at max_tokens=512", id="cut off"),
]


@pytest.mark.parametrize(("task", "wrong", "right", "values", "reason"), WRONG)
async def test_an_answer_out_of_shape_is_asked_for_again_with_the_reason(
    task: dict[str, Any], wrong: str, right: str, values: dict[str, Any], reason: str
) -> None:
    seen: list[Prompt] = []
    names: set[str] = set()
    engine = ScriptedEngine(answer=script(wrong, right, seen=seen), hear=lambda request: names.add(request.request_id))
    row = await answered(job(task), engine)
    assert (row.status, row.values, row.requests, row.raw_output, row.error_code) == ("ok", values, 2, None, None)
    first, second = seen
    assert second.messages[: len(first.messages)] == first.messages
    assert [message["role"] for message in second.messages[len(first.messages) :]] == ["assistant", "user"]
    assert second.messages[-2]["content"] in wrong
    assert reason in second.messages[-1]["content"]
    assert len(names) == 2
    assert (second.choices, second.json_schema) == (first.choices, first.json_schema)


async def test_a_second_answer_out_of_shape_is_an_error_that_keeps_it_as_it_came() -> None:
    engine = ScriptedEngine(answer=script("first", '{"total": 1.5, "x": 2}'))
    row = await answered(job(EXTRACT), engine)
    assert (row.status, row.error_code, row.raw_output, row.values) == ("error", "schema_mismatch", '{"total": 1.5, "x": 2}', {})
    assert row.error_message is not None
    assert row.error_message.startswith("asked twice: ")
    assert (row.requests, engine.calls) == (2, 2)


async def test_the_tokens_of_both_requests_are_the_rows() -> None:
    seen: list[Prompt] = []
    engine = ScriptedEngine(answer=script("no", '{"total": 3}', seen=seen))
    row = await answered(job(EXTRACT), engine)
    assert row.usage.prompt_tokens == sum([await engine.count_tokens(prompt.messages) for prompt in seen])
    assert row.usage.output_tokens == 1 + 3


async def test_a_good_answer_is_asked_for_once() -> None:
    row = await answered(job(CLASSIFY), ScriptedEngine(answer=script("red")))
    assert (row.status, row.requests, row.raw_output) == ("ok", 1, None)


async def test_a_wrong_answer_too_long_for_the_context_is_shortened_in_the_second_prompt() -> None:
    seen: list[Prompt] = []
    spec = job({**EXTRACT, "max_tokens": 300})
    engine = ScriptedEngine(answer=script("x" * 1200, '{"total": 3}', seen=seen), context_tokens=700)
    row = await answered(spec, engine)
    assert row.status == "ok"
    assert seen[1].messages[-2]["content"] == "x" * 600
    assert await engine.count_tokens(seen[1].messages) <= 400


async def test_an_answer_that_cannot_be_asked_for_again_keeps_its_first_fault() -> None:
    spec = job({**EXTRACT, "max_tokens": 20})
    row = await answered(spec, ScriptedEngine(answer=script("wrong"), context_tokens=130, tokens_per_char=0.25))
    assert (row.status, row.error_code, row.raw_output, row.requests) == ("error", "bad_json", "wrong", 1)


async def test_a_row_that_the_engine_refuses_is_not_asked_for_again() -> None:
    def refuse(prompt: Prompt) -> str:
        raise RowError("refused", "no")

    row = await answered(job(EXTRACT), ScriptedEngine(answer=refuse))
    assert (row.error_code, row.requests, row.raw_output) == ("refused", 1, None)


async def test_on_long_error_ends_the_row_before_the_engine_sees_it() -> None:
    spec = job({"name": "summarize", "max_tokens": 10}, on_long=OnLong.ERROR)
    engine = ScriptedEngine(context_tokens=200)
    row = await answered(spec, engine, "One sentence. " * 400)
    assert (row.status, row.error_code, engine.calls, row.truncated) == ("error", "text_too_long", 0, False)
    assert (await answered(spec, engine, "One sentence.")).status == "ok"
