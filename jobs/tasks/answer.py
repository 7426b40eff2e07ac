"""Answers of a task: their result columns, and the parsing of an answer's text into values for them."""

from __future__ import annotations

import json
import math
from functools import lru_cache
from typing import Any, NoReturn

import pyarrow as pa

from connectors.text import storable
from jobs.engine import RowError
from jobs.tasks.schema import check_schema
from jobs.tasks.shape import Shape, shape_of
from jobs.tasks.spec import REASONING, AnswerKind, Task
from jobs.tasks.validator import AnswerValidator

OUTPUT = "output"
EMBEDDING = "embedding"


def result_fields(task: Task) -> list[pa.Field]:
    """Columns of the answers: ``output`` for text and choice, ``embedding`` for a vector, one for each property of a schema.

    Then ``reasoning``, where the model thinks before it answers.
    """
    thought = [pa.field(REASONING, pa.string())] if task.thinking_tokens else []
    if task.answer is AnswerKind.EMBEDDING:
        return [pa.field(EMBEDDING, pa.list_(pa.float32()))]
    if task.answer is not AnswerKind.JSON:
        return [pa.field(OUTPUT, pa.string()), *thought]
    return [*(shape.field(name) for name, shape in _shapes(task)), *thought]


def check_answerable(task: Task) -> None:
    """Raises `TaskError` where answers cannot be checked by the task's schema. An earlier version may have accepted it."""
    if task.answer is AnswerKind.JSON:
        _validator(task)


def reasoning_value(task: Task, reasoning: str | None) -> dict[str, object]:
    """The value of column ``reasoning``, by name; empty for a task without that column."""
    return {REASONING: None if reasoning is None else storable(reasoning)} if task.thinking_tokens else {}


def check_thought(task: Task, text: str, finish_reason: str) -> None:
    """Raise `RowError` where the model has thought and not answered: ``cut_off``, or ``no_answer`` where it stopped by itself."""
    if not task.thinking_tokens or text.strip():
        return
    if finish_reason == "length":
        raise RowError(
            "cut_off",
            f"the thinking was cut off before an answer, at thinking={task.thinking_tokens} and max_tokens={task.max_tokens} tokens; "
            "raise --thinking or --max-tokens, or use --thinking off",
        )
    raise RowError("no_answer", "the model ended after its thinking, without an answer; see column reasoning")


def parse_answer(task: Task, text: str, finish_reason: str) -> dict[str, object]:
    """Values of `result_fields` by name, without ``reasoning``.

    Raises `RowError` with code ``not_a_label``, ``bad_json``, ``schema_mismatch``, or ``cut_off`` where ``finish_reason`` is "length"
    and the answer is incomplete. A text answer that was cut off is still valid.
    """
    if task.answer is AnswerKind.TEXT:
        return {OUTPUT: storable(text)}
    if task.answer is AnswerKind.EMBEDDING:
        return {EMBEDDING: json.loads(text)}
    if task.answer is AnswerKind.CHOICE:
        return {OUTPUT: _choice(task, text.strip(), finish_reason)}
    try:
        value = _json(task, text, finish_reason)
        _check(task, value)
        return {name: shape.cell(value.get(name)) for name, shape in _shapes(task)}
    except OverflowError as error:
        raise RowError("schema_mismatch", f"the answer contains a number that fits no column: {_excerpt(str(error))}") from error
    except RecursionError as error:
        raise RowError("schema_mismatch", f"the answer is nested too deeply to be checked: {_excerpt(text)}") from error


def _choice(task: Task, answer: str, finish_reason: str) -> str:
    labels = task.labels or ()
    is_cut = finish_reason == "length" and any(label != answer and label.startswith(answer) for label in labels)  # "1" of "10"
    if answer in labels and not is_cut:
        return answer
    if finish_reason == "length":
        _cut_off(task, answer)
    raise RowError("not_a_label", f"the answer is {_excerpt(answer)!r}, not one of: {_excerpt(', '.join(labels))}")


def _json(task: Task, text: str, finish_reason: str) -> Any:
    """Raises `OverflowError` for a number that a double cannot hold, and `RowError` for what is not JSON."""
    try:
        return json.loads(text, parse_constant=_no_constant, parse_float=_number)
    except (ValueError, RecursionError) as error:
        if finish_reason == "length":
            _cut_off(task, text)
        raise RowError("bad_json", f"the answer is not JSON ({_excerpt(str(error))}): {_excerpt(text)}") from error


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _number(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise OverflowError(f"{digits} is larger than a double holds")
    return value


def _cut_off(task: Task, text: str) -> NoReturn:
    raise RowError("cut_off", f"the answer was cut off at max_tokens={task.max_tokens}; raise it: ...{_excerpt(text[-80:])}")


def _excerpt(text: str) -> str:
    line = storable(" ".join(text.split()))
    return line if len(line) <= 120 else f"{line[:117]}..."


def _check(task: Task, value: object) -> None:
    error = _validator(task).error(value)
    if error is not None:
        where = ".".join(str(part) for part in error.absolute_path)
        raise RowError(
            "schema_mismatch", f"the answer does not follow the schema{f' at {where}' if where else ''}: {_excerpt(error.message)}"
        )


def _validator(task: Task) -> AnswerValidator:
    return _validator_by(json.dumps(task.json_schema))


def _shapes(task: Task) -> tuple[tuple[str, Shape], ...]:
    # Keys stay in their order: it is the order of the columns.
    return _shapes_by(json.dumps(task.json_schema))


@lru_cache(maxsize=64)
def _validator_by(schema_text: str) -> AnswerValidator:
    """Built once for each schema, not for each row."""
    return AnswerValidator(check_schema(json.loads(schema_text), "the job's schema"))


@lru_cache(maxsize=64)
def _shapes_by(schema_text: str) -> tuple[tuple[str, Shape], ...]:
    schema = json.loads(schema_text)
    return tuple((name, shape_of(value, schema)) for name, value in schema["properties"].items())
