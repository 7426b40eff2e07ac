"""Rows, tasks and parts that once failed a whole job, stopped a replica or were taken for what they are not."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from connectors.edge import reading
from connectors.errors import ColumnError, SourceAwayError, SourceError
from connectors.memory import MemorySink
from jobs.engine import Prompt, RowError
from jobs.longtext.fit import cut_at_sentence, sentence_ends
from jobs.plan.columns import columns_needed, pick_column
from jobs.run.row import RowWork
from jobs.run.slice import STATS_KEY, published
from jobs.spec import JobSpec, Lease, PartStats
from jobs.storage.folder import part_name
from jobs.tasks.answer import parse_answer
from jobs.tasks.load import parse_labels, resolve_task
from jobs.tasks.spec import AnswerKind, Task
from jobs.testing import ManualClock, ScriptedEngine, scripted_plan

TWO = {"prompt": "{title}\n{body}", "max_tokens": 8}


def job(**changes: Any) -> JobSpec:
    return scripted_plan("docs").spec.model_copy(update=changes)


async def test_a_row_of_several_text_columns_that_is_too_long_ends_as_that() -> None:
    work = RowWork(job(task=resolve_task("echo", inline=TWO), column=None), ScriptedEngine(context_tokens=64), ManualClock())
    row = await work.answer(0, {"title": "x" * 4000, "body": "y"}, None, 1, "a")
    assert (row.status, row.error_code) == ("error", "text_too_long")
    short = await work.answer(1, {"title": "x", "body": "y"}, None, 1, "a")
    assert short.status == "ok"


async def test_a_mistake_that_a_row_brings_about_is_that_row_s() -> None:
    def mistaken(prompt: Prompt) -> str:
        raise KeyError("of a chat template")

    work = RowWork(job(task=resolve_task("echo", inline=TWO), column=None), ScriptedEngine(answer=mistaken), ManualClock())
    row = await work.answer(0, {"title": "x", "body": "y"}, None, 1, "a")
    assert (row.error_code, row.error_message) == ("unexpected", "KeyError: 'of a chat template'")


def test_an_answer_nested_too_deeply_for_its_schema_does_not_follow_it() -> None:
    node = {"type": "array", "items": {"$ref": "#/$defs/node"}}
    schema = {"type": "object", "properties": {"tree": {"$ref": "#/$defs/node"}}, "required": ["tree"], "$defs": {"node": node}}
    task = Task(name="tree", prompt="{text}", answer=AnswerKind.JSON, json_schema=schema)
    assert parse_answer(task, '{"tree": [[]]}', "stop")["tree"] is not None
    with pytest.raises(RowError) as refused:
        parse_answer(task, f'{{"tree": {"[" * 400}{"]" * 400}}}', "stop")
    assert refused.value.code in ("schema_mismatch", "bad_json")


def test_a_column_that_combine_alone_names_is_looked_for_and_read() -> None:
    inline = {"prompt": "Sum: {text}", "combine": "For {title}: {text}", "max_tokens": 8}
    task = resolve_task("echo", inline=inline)
    with pytest.raises(ColumnError, match="combine names column title"):
        pick_column(pa.schema({"text": pa.string()}), task, None)
    schema = pa.schema({"body": pa.string(), "title": pa.string()})
    with pytest.raises(ColumnError, match="several columns hold text"):
        pick_column(schema.append(pa.field("words", pa.string())).remove(0), task, None)
    assert pick_column(schema, task, "body") == ("body", None)
    assert columns_needed(job(task=task, column="body", keep=())) == ("body", "title")


def test_many_marks_are_looked_at_once() -> None:
    marks = "." * 200_000
    assert cut_at_sentence(marks + "x" * 50_000, 240_000) == marks + "x" * 40_000
    assert list(sentence_ends("One... Two?! (Three.) Four", 0, 26)) == [6, 12, 21]
    assert list(sentence_ends("3.14 is so.", 0, 11)) == [11]


def test_many_labels_are_looked_at_once() -> None:
    labels = [f"label {number}" for number in range(100_000)]
    assert len(parse_labels(labels, "mine")) == 100_000


@pytest.mark.parametrize(
    ("error", "is_away"),
    [
        (OSError("When reading information for key 'a' in bucket 'b': AWS Error SLOW_DOWN during GetObject operation"), True),
        (OSError("When opening 'b/a': AWS Error NETWORK_CONNECTION during HeadObject operation: curlCode: 28, Timeout was reached"), True),
        (ConnectionResetError(104, "Connection reset by peer"), True),
        (OSError(116, "Stale file handle"), True),
        (TimeoutError(), True),
        (OSError("AWS Error ACCESS_DENIED during GetObject operation: Access Denied"), False),
        (OSError("Couldn't deserialize thrift: TProtocolException: Invalid data"), False),
        (FileNotFoundError(2, "No such file or directory"), False),
        (pa.ArrowInvalid("Parquet magic bytes not found in footer"), False),
        (pa.ArrowInvalid("In CSV column #2: conversion error to int64: invalid value 'timeout'"), False),
    ],
)
def test_a_source_that_is_away_is_told_from_one_that_is_wrong(error: Exception, is_away: bool) -> None:
    with pytest.raises(SourceError) as refused, reading("bucket/docs.parquet"):
        raise error
    assert isinstance(refused.value, SourceAwayError) == is_away


def lease(generation: int, row_count: int) -> Lease:
    plan = scripted_plan("docs", row_count, row_count)
    return Lease(lease_id="l", job=plan.spec, slice=plan.slices[0], generation=generation, attempt=1, expires_at_s=9.0)


def test_a_slice_of_a_retry_without_its_part_is_computed() -> None:
    assert published(MemorySink(), lease(1, 4)) is None


def test_a_part_of_another_number_of_rows_is_not_taken_for_the_slice() -> None:
    sink, stats = MemorySink(), PartStats(rows_ok=2)
    sink.write(part_name(0), pa.table({"row_id": [0, 1], "status": ["ok", "ok"]}), {STATS_KEY: stats.model_dump_json()})
    assert published(sink, lease(0, 2)) == stats
    assert published(sink, lease(0, 4)) is None
    assert sink.metadata(part_name(0)) is None, "put aside"


def test_a_task_without_a_temperature_is_greedy_unless_it_thinks() -> None:
    plain = Task(name="t", prompt="{text}")
    assert plain.sampling_temperature == 0.0
    assert plain.model_copy(update={"thinking": 64}).sampling_temperature is None
    assert plain.model_copy(update={"thinking": 64, "temperature": 0.2}).sampling_temperature == 0.2
    assert plain.key_fields() == Task(name="t", prompt="{text}", temperature=0.0).key_fields(), "the same job as before"
