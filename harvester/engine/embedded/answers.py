"""The answers that the embedded model is trained to give: one rule per task, simple enough to check an answer against."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

# A full stop after an initial or a title ends no sentence: "Harry S. Truman", "Mr. Speaker".
_SENTENCE_END = re.compile(r"(?<!\b[A-Z])(?<!\bMr)(?<!\bMrs)(?<!\bMs)(?<!\bDr)(?<!\bSt)[.!?]+[\"'”’)\]]*(?=\s|\Z)")

_EMPTY: dict[str, str] = {"string": '""', "number": "0", "integer": "0", "boolean": "false"}
_TRUE = ("true", "yes")


def lead(text: str) -> str:
    """`summarize`: the text up to the end of its first sentence, including headings and a date before it. The whole text if no sentence
    ends in it."""
    text = text.strip()
    end = _SENTENCE_END.search(text)
    return text[: end.end()] if end else text


def label(text: str, labels: Sequence[str]) -> str:
    """`classify`: the label that occurs in the text as whole words, the earliest if several do; the first label if none does."""
    found = ((match.start(), name) for name in labels if (match := re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)))
    return min(found, default=(0, labels[0]))[1]


def fields(text: str, schema: Mapping[str, Any]) -> str:
    """`extract`: compact JSON of what stands in lines ``name: value``, for the properties of ``schema`` in their order.

    A property without a line is empty, 0 or false, by its type; "yes" and "true" are true, all else is false.
    Only flat schemas of string, number, integer and boolean are meant. Raises `KeyError` for another type.
    """
    lines = dict(line.split(": ", 1) for line in reversed(text.splitlines()) if ": " in line)
    return "{" + ",".join(f'"{name}":{_json(lines.get(name), kind["type"])}' for name, kind in schema["properties"].items()) + "}"


def _json(value: str | None, kind: str) -> str:
    if value is None:
        return _EMPTY[kind]
    if kind == "boolean":
        return "true" if value in _TRUE else "false"
    return f'"{value}"' if kind == "string" else value
