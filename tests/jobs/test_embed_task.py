"""Rows that are embedded: the task, the column, what is refused at submit, and what such a row asks of the engine."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pyarrow as pa
import pytest

from harvester.errors import TaskError
from jobs.engine import Prompt
from jobs.result import ROW_ID, part_table, result_schema
from jobs.run.row import RowWork
from jobs.tasks.embedding import Gives, check_model
from jobs.tasks.load import resolve_task
from jobs.testing import ManualClock, ScriptedEngine, scripted_plan

EMBED = resolve_task("embed")
VECTOR = [0.25, -1.5, 3.0]


def test_an_embedded_row_asks_for_its_text_alone_and_becomes_a_vector() -> None:
    asked: list[Prompt] = []

    def answer(prompt: Prompt) -> str:
        asked.append(prompt)
        return json.dumps(VECTOR)

    job = scripted_plan("docs").spec.model_copy(update={"task": EMBED, "column": "text"})
    engine = ScriptedEngine(answer=answer, context_tokens=100)
    row = asyncio.run(RowWork(job, engine, ManualClock().now_s).answer(3, {"text": "some words"}, "some words", 1, "a"))
    assert (row.status, row.values) == ("ok", {"embedding": VECTOR})
    (prompt,) = asked
    assert prompt.messages == ({"role": "user", "content": "some words"},)
    assert (prompt.max_tokens, prompt.rendering.is_plain) == (0, True)
    table = part_table(result_schema(pa.schema([]), (), EMBED), [row], None)
    assert table.schema.field("embedding").type == pa.list_(pa.float32())
    assert table.select([ROW_ID, "embedding"]).to_pylist() == [{ROW_ID: 3, "embedding": VECTOR}]


@pytest.mark.parametrize(
    ("name", "gives", "message"),
    [
        (
            "summarize",
            [Gives.EMBEDDING],
            "m writes no text, so task summarize cannot run on it; use --task embed, or serve a model that writes",
        ),
        ("summarize", [], "m writes no text, so task summarize cannot run on it; no task can, or serve a model that writes"),
        ("embed", [Gives.TEXT], "m makes no embeddings, so task embed cannot run on it; use another task, or serve an embedding model"),
    ],
)
def test_a_task_that_the_model_cannot_do_is_refused_in_one_line(name: str, gives: list[Gives], message: str) -> None:
    with pytest.raises(TaskError) as refused:
        check_model(resolve_task(name), "m", gives)
    assert refused.value.message == message


@pytest.mark.parametrize(
    ("name", "gives"), [("embed", [Gives.EMBEDDING]), ("summarize", [Gives.TEXT]), ("embed", None), ("summarize", None)]
)
def test_a_task_that_the_model_can_do_is_taken(name: str, gives: list[Gives] | None) -> None:
    check_model(resolve_task(name), "m", gives)


@pytest.mark.parametrize(
    "more", [{"system": "You embed."}, {"combine": "{text}"}, {"thinking": "on"}, {"thinking": 5}, {"chat_template_kwargs": {"a": 1}}]
)
def test_what_belongs_to_a_conversation_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(TaskError, match=f"has {next(iter(more))} and gives embeddings"):
        resolve_task("t", inline={"prompt": "{text}", "answer": "embedding", **more})
