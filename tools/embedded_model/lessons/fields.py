"""The lesson in `extract`: a flat schema, and a text with lines ``name: value``."""

from __future__ import annotations

import random
from typing import Any

from harvester.engine.embedded.answers import fields
from tools.embedded_model.lessons import words
from tools.embedded_model.lessons.documents import Library, sentences
from tools.embedded_model.lessons.prompts import task_prompt
from tools.embedded_model.lessons.sample import Sample, add_turn, open_chat

KINDS = {"string": 6, "number": 2, "integer": 1, "boolean": 2}
# Common column names; the other names are any word, known or made up.
_KEYS = """
    name title vendor customer city country date due total amount price tax currency status paid open email phone order invoice item
    quantity subject sender priority category product color size year author language department id code note total_price order_id
"""
KEYS = _KEYS.split()
TAKEN = ("row_id", "output", "status", "attempts")  # names of result columns, which a schema may not have


def extract(library: Library, rng: random.Random, tokens: int) -> Sample:
    """`extract`: a flat schema and a text with lines ``name: value``, other lines between them, some lines missing."""
    encoder = library.encoder
    for most in (6, 4, 2, 1):
        schema, lines = _record(library, rng, rng.randint(1, most))
        prompt = task_prompt("extract", {"schema": schema})
        sample = open_chat(encoder, prompt.system)
        before = encoder(prompt.before)
        text = _letter(lines, library, rng, 0)
        answer = encoder(fields(text, schema))
        room = tokens - len(sample.ids) - len(before) - len(answer) - 4
        need = len(encoder(text))
        if need <= room:
            break
    if room - need > 40 and rng.random() < 0.7:
        text = _letter(lines, library, rng, int((room - need - 10) * rng.random() ** 0.5))
    reply = encoder(fields(text, schema))
    sample.schema = schema
    add_turn(sample, encoder, [*before, *encoder(text)], reply)
    return sample


def _record(library: Library, rng: random.Random, count: int) -> tuple[dict[str, Any], list[str]]:
    names = _names(library, rng, count + rng.choice([0, 0, 1, 2, 4]))
    kinds = {name: rng.choices(list(KINDS), list(KINDS.values()))[0] for name in names}
    wanted = names[:count]
    lines = [f"{name}: {_value(kind, library, rng)}" for name, kind in kinds.items() if name not in wanted or rng.random() > 0.06]
    rng.shuffle(lines)
    schema: dict[str, Any] = {"type": "object", "properties": {name: {"type": kinds[name]} for name in wanted}}
    if rng.random() < 0.7:
        schema["required"] = wanted
    return schema, lines


def _names(library: Library, rng: random.Random, count: int) -> list[str]:
    names: dict[str, None] = {}
    while len(names) < count:
        kind = rng.random()
        name = rng.choice(KEYS) if kind < 0.4 else rng.choice(library.known).lower() if kind < 0.7 else words.word(rng)
        name = f"{name}_{rng.choice(KEYS)}" if rng.random() < 0.1 else name
        if not any(name.lower() == other.lower() for other in names) and name not in TAKEN:
            names[name] = None
    return list(names)


def _value(kind: str, library: Library, rng: random.Random) -> str:
    if kind == "string":
        return words.value(rng, library.known, library.alike)
    if kind == "boolean":
        return rng.choice(["true", "false", "yes", "no"])
    whole = str(rng.randrange(10 ** rng.randint(1, 6)))
    return whole if kind == "integer" else words.number(rng)


def _letter(lines: list[str], library: Library, rng: random.Random, tokens: int) -> str:
    """The lines, with sentences of about ``tokens`` tokens before, between and after them."""
    around = sentences(library, rng, tokens) if tokens > 30 else []
    around = [text.replace(": ", ", ") for text in around]
    parts = list(lines)
    if around:
        cut = sorted(rng.randint(0, len(around)) for _ in range(2))
        middle = rng.randint(0, len(parts))
        first, second, third = (" ".join(texts) for texts in (around[: cut[0]], around[cut[0] : cut[1]], around[cut[1] :]))
        groups = [[first], parts[:middle], [second], parts[middle:], [third]]
        parts = [part for group in groups for part in group if part]
    return "\n".join(parts)
