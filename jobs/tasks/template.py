"""Prompt templates: text with ``{column}`` places, ``{{`` and ``}}`` for braces, and nothing else to learn.

A place holds a name: letters, digits, ``_``, and within it spaces, ``.`` and ``-``; not digits alone. Any other name stands in quotes,
with a quote in it doubled: ``{"price (EUR)"}``. ``{a.b}`` is the column named ``a.b``: no attribute, index, conversion or format
(``{a[0]}``, ``{a!r}``, ``{a:>9}``) is read, so a template can reach nothing but the values it is given.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from typing import NamedTuple

from connectors.errors import ColumnError
from jobs.access.marks import UNMARKED, Marks, Span
from jobs.engine import Message
from jobs.errors import TaskError
from jobs.tasks.spec import Task

TEXT_PLACE = "text"  # stands for the job's text column, so no task option may have its name

_TOKEN = re.compile(r'\{\{|\}\}|\{"(?:[^"]|"")+"\}|\{[^{}]*\}|[{}]')
_NAME = re.compile(r"(?!\d+\Z)\w(?:[\w .\-]*\w)?")
_QUOTED = re.compile(r'"((?:[^"]|"")+)"')


class Segment(NamedTuple):
    """Literal text, then a place (None after the last literal)."""

    literal: str
    place: str | None


@lru_cache(maxsize=256)
def parse(template: str, origin: str = "template") -> tuple[Segment, ...]:
    """Split a template. Raises `TaskError` naming ``origin``, line, character and what is wrong there."""
    parts: list[Segment] = []
    literal = ""
    end = 0
    for match in _TOKEN.finditer(template):
        literal += template[end : match.start()]
        end = match.end()
        token = match.group()
        if token in ("{{", "}}"):
            literal += token[0]
        elif (name := _named(token[1:-1])) is not None:
            parts.append(Segment(literal, name))
            literal = ""
        else:
            raise TaskError(f"{origin}, {_where(template, match.start())}: {_fault(token)}")
    return (*parts, Segment(literal + template[end:], None))


def _named(inner: str) -> str | None:
    """The column that a place names; None where it names none."""
    quoted = _QUOTED.fullmatch(inner)
    if quoted:
        return quoted[1].replace('""', '"')
    return inner if _NAME.fullmatch(inner) else None


def place_of(name: str) -> str:
    """The place that names a column."""
    if _NAME.fullmatch(name):
        return f"{{{name}}}"
    return '{"' + name.replace('"', '""') + '"}'


def _where(template: str, offset: int) -> str:
    line_start = template.rfind("\n", 0, offset) + 1
    return f"line {template.count(chr(10), 0, offset) + 1}, character {offset - line_start + 1}"


def _fault(token: str) -> str:
    if token == "{":
        return "a { is not closed; write {column} for a column or {{ for a brace"
    if token == "}":
        return "a } closes nothing; write }} for a brace"
    if token == "{}":
        return "{} names no column; write {text} for the job's text column"
    shown = " ".join(token.split())
    shown = shown if len(shown) <= 40 else f"{shown[:37]}..."
    return (
        f"{shown} is not a column place: a name of letters, digits, _, -, . and spaces is, or any name in quotes; "
        "write {{ and }} for braces"
    )


def places(template: str) -> tuple[str, ...]:
    """Names in the order they first appear, each once. Raises `TaskError` for a bad template."""
    return tuple(dict.fromkeys(part.place for part in parse(template) if part.place is not None))


def render(template: str, values: Mapping[str, object], marks: Marks = UNMARKED) -> str:
    """Write each place's value out, literally: braces in a value stay braces, and its ``marks`` are parted. Those of the template stay.

    Raises `ColumnError` where ``values`` lacks a place, `TaskError` for a bad template.
    """
    pieces: list[str] = []
    spans: list[Span] = []
    length = 0
    for literal, place in parse(template):
        pieces.append(literal)
        length += len(literal)
        if place is not None:
            if place not in values:
                raise ColumnError(f"the prompt names column {place}, which the row does not have; it has: {', '.join(values)}")
            value = plain_text(values[place])
            pieces.append(value)
            spans.append((length, length + len(value)))
            length += len(value)
    return marks.parted("".join(pieces), spans)


def fill(template: str, values: Mapping[str, object]) -> str:
    """The template with the places in ``values`` filled in and the others left. No value can add a place."""
    pieces: list[str] = []
    for literal, place in parse(template):
        pieces.append(escape(literal))
        if place is not None:
            pieces.append(escape(plain_text(values[place])) if place in values else place_of(place))
    return "".join(pieces)


def escape(text: str) -> str:
    """Escape braces, so that the result is a template that renders to ``text``."""
    return text.replace("{", "{{").replace("}", "}}")


def plain_text(value: object) -> str:
    """A value as it stands in a prompt: null is empty, dates are ISO, lists and structs are JSON."""
    match value:
        case None:
            return ""
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case Decimal():
            return format(value, "f")
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case bytes():
            return value.decode("utf-8", "replace")
        case list() | tuple() | dict():
            return json.dumps(value, ensure_ascii=False, default=plain_text)
        case _:
            return str(value)


def build_messages(task: Task, column: str | None, row: Mapping[str, object], marks: Marks = UNMARKED) -> tuple[Message, ...]:
    """System message, where the task has one, and user message, with the row's values in their places and their ``marks`` parted.

    ``column`` is the job's text column, which ``{text}`` stands for even where a column is named ``text``; None leaves ``{text}`` to the
    column of that name. Raises `ColumnError` where ``row`` lacks a column.
    """
    values = row if column is None or column not in row else {**row, TEXT_PLACE: row[column]}
    system: tuple[Message, ...] = () if task.system is None else ({"role": "system", "content": render(task.system, values, marks)},)
    return (*system, {"role": "user", "content": render(task.prompt, values, marks)})
