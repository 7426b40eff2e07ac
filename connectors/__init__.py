"""Tables in and out, in Arrow: `open_source` reads what a user names, `PartsSink` keeps results."""

from __future__ import annotations

from connectors.base import RowGroup, Sink, Source
from connectors.copied import CopiedSource
from connectors.memory import MemorySink, MemorySource
from connectors.open import open_source
from connectors.parquet import ParquetSource
from connectors.parts import PartsSink
from connectors.target import Target, TargetName
from connectors.text import TextProblem, is_text, texts

__all__ = [
    "CopiedSource",
    "MemorySink",
    "MemorySource",
    "ParquetSource",
    "PartsSink",
    "RowGroup",
    "Sink",
    "Source",
    "Target",
    "TargetName",
    "TextProblem",
    "is_text",
    "open_source",
    "texts",
]
