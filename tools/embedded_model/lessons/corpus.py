"""Real text: the example speeches, cut into sentences, some speeches held out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harvester.engine.embedded.answers import lead

SPEECHES = Path(__file__).parents[3] / "examples" / "docs_speeches.parquet"
HELD_OUT_EVERY = 10
HEADING_LINES = 6


@dataclass(frozen=True, slots=True)
class Speech:
    text: str
    headings: tuple[str, ...]  # the lines before the line of its first sentence
    sentences: tuple[str, ...]


def read_speeches(*, held_out: bool) -> list[Speech]:
    """Every tenth speech, held out for evaluation, if ``held_out``; else the others, which the tokenizer is trained on."""
    import pyarrow.parquet as pq

    texts: list[str] = pq.read_table(SPEECHES, columns=["text"]).column("text").to_pylist()
    return [_speech(text) for index, text in enumerate(texts) if (index % HELD_OUT_EVERY == 0) == held_out]


def _speech(text: str) -> Speech:
    before = lead(text).rpartition("\n")[0]
    headings = tuple(line.strip() for line in before.splitlines() if line.strip())[:HEADING_LINES]
    return Speech(text, headings, tuple(_sentences(text)))


def _sentences(text: str) -> Iterator[str]:
    """Each sentence as `lead` cuts it, with runs of white space replaced by one space."""
    for line in text.splitlines():
        rest = line.strip()
        while rest:
            first = lead(rest)
            rest = rest[len(first) :].strip()
            if re.search(r"[.!?]\W*$", first) and len(first) > 3:
                yield " ".join(first.split())
