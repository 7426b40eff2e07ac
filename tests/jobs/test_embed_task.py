"""Rows that are embedded: the task, the column, what is refused at submit, and what such a row asks of the engine."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.open import open_source
from harvester.errors import TaskError
from jobs.config import HarvestConfig
from jobs.engine import Prompt
from jobs.plan.job import plan_job
from jobs.result import ROW_ID, part_table, result_schema
from jobs.run.row import RowWork
from jobs.spec import JobPlan, JobRequest, OnLong, SourceSpec
from jobs.tasks.abilities import Abilities
from jobs.tasks.embedding import Gives
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
    row = asyncio.run(RowWork(job, engine, ManualClock()).answer(3, {"text": "some words"}, "some words", 1, "a"))
    assert (row.status, row.values) == ("ok", {"embedding": VECTOR})
    (prompt,) = asked
    assert prompt.messages == ({"role": "user", "content": "some words"},)
    assert (prompt.max_tokens, prompt.rendering.is_plain) == (0, True)
    table = part_table(result_schema(pa.schema([]), (), EMBED), [row], None)
    assert table.schema.field("embedding").type == pa.list_(pa.float32())
    assert table.select([ROW_ID, "embedding"]).to_pylist() == [{ROW_ID: 3, "embedding": VECTOR}]


REFUSED = {
    "no text": (
        "summarize",
        [Gives.EMBEDDING],
        "m writes no text, so task summarize cannot run on it; use --task embed, or serve a model that writes",
    ),
    "neither": ("summarize", [], "m writes no text, so task summarize cannot run on it; serve a model that writes"),
    "no vector": (
        "embed",
        [Gives.TEXT],
        "m makes no embeddings, so task embed cannot run on it; use another task, or serve an embedding model",
    ),
}


@pytest.mark.parametrize(("name", "gives", "message"), REFUSED.values(), ids=REFUSED)
def test_a_task_that_the_model_cannot_do_is_refused_at_submit(tmp_path: Path, name: str, gives: list[Gives], message: str) -> None:
    with pytest.raises(TaskError) as refused:
        planned(tmp_path, task=name, gives=gives)
    assert refused.value.message == message


@pytest.mark.parametrize(("name", "gives"), [("embed", [Gives.EMBEDDING]), ("summarize", [Gives.TEXT]), ("embed", None)])
def test_a_task_that_the_model_can_do_is_taken(tmp_path: Path, name: str, gives: list[Gives] | None) -> None:
    assert planned(tmp_path, task=name, gives=gives).spec.task.name == name


def test_a_text_that_is_too_long_is_not_embedded_in_parts(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="--on-long split combines answers, and embeddings cannot be combined; use truncate or error"):
        planned(tmp_path, task="embed", gives=None, on_long=OnLong.SPLIT)


def planned(folder: Path, gives: list[Gives] | None, **asked: Any) -> JobPlan:
    path = folder / "docs.parquet"
    pq.write_table(pa.table({"text": ["a", "b"]}), path)
    request = JobRequest(source=SourceSpec(uri=str(path)), **asked)
    with open_source(str(path), snapshot_dir=folder / "snapshot") as source:
        return plan_job(
            request,
            source,
            model="m",
            harvest=HarvestConfig(),
            now_s=0.0,
            token="0000",
            able=Abilities(gives=None if gives is None else tuple(gives)),
        )


@pytest.mark.parametrize(
    "more", [{"system": "You embed."}, {"combine": "{text}"}, {"thinking": "on"}, {"thinking": 5}, {"chat_template_kwargs": {"a": 1}}]
)
def test_what_belongs_to_a_conversation_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(TaskError, match=f"has {next(iter(more))} and gives embeddings"):
        resolve_task("t", inline={"prompt": "{text}", "answer": "embedding", **more})
