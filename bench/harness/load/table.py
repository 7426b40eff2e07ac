"""Input tables: a synthetic one of any length, and pieces of real speeches."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.harness.record import ROOT
from connectors.durable import publish

SPEECHES = ROOT / "examples" / "docs_speeches.parquet"
GROUP_ROWS = 65_536
_WORDS = re.findall(r"\w+", "the of and to in we our people nation world peace work great shall government every country time must freedom")
_SENTENCE_START = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")


def tail_of(row_id: int) -> str:
    """The last word of a synthetic row's text, which the scripted engine answers with."""
    return f"row-{row_id}"


def write_synthetic(path: Path, rows: int, seed: int) -> None:
    """A Parquet file of ``rows`` short texts (100 to 200 bytes), row groups of `GROUP_ROWS`; columns ``id`` and ``text``."""
    generator = np.random.default_rng(seed)
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    with publish(path) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for start in range(0, rows, GROUP_ROWS):
            ids = range(start, min(start + GROUP_ROWS, rows))
            words = generator.integers(0, len(_WORDS), size=(len(ids), 30))
            lengths = generator.integers(19, 31, size=len(ids))
            texts = [
                " ".join([_WORDS[word] for word in line[:length]]) + f" {tail_of(row_id)}"
                for row_id, line, length in zip(ids, words.tolist(), lengths.tolist(), strict=True)
            ]
            writer.write_table(pa.table([pa.array(ids, pa.int64()), texts], schema=schema), row_group_size=GROUP_ROWS)


def write_speeches(path: Path, rows: int, seed: int, chars: tuple[int, int]) -> None:
    """``rows`` pieces of speeches, each of whole sentences and about ``chars`` (least, most) long; columns ``id`` and ``text``."""
    generator = np.random.default_rng(seed)
    speeches = pq.read_table(SPEECHES, columns=["text"]).column("text").to_pylist()
    texts: list[str] = []
    while len(texts) < rows:
        sentences = _SENTENCE_START.split(speeches[int(generator.integers(len(speeches)))])
        first, wanted = int(generator.integers(len(sentences))), int(generator.integers(*chars))
        piece = ""
        for sentence in sentences[first:]:
            piece = f"{piece} {sentence}".strip()
            if len(piece) >= wanted:
                texts.append(piece[: chars[1]])
                break
    with publish(path) as file:
        pq.write_table(pa.table({"id": pa.array(range(rows), pa.int64()), "text": texts}), file)
