"""What a file name tells: the kind of file by its suffix, and a short name for the source."""

from __future__ import annotations

import re
import unicodedata
from enum import StrEnum


class FileKind(StrEnum):
    PARQUET = "Parquet"
    ARROW = "Arrow IPC"
    JSONL = "JSON lines"
    CSV = "CSV"
    SHEET = "workbook"
    TEXT = "text"  # one row per file


SUFFIXES: dict[FileKind, tuple[str, ...]] = {
    FileKind.PARQUET: (".parquet", ".pq", ".parq"),
    FileKind.ARROW: (".arrow", ".arrows", ".feather", ".ipc"),
    FileKind.JSONL: (".jsonl", ".ndjson", ".json"),
    FileKind.CSV: (".csv", ".tsv", ".tab"),
    FileKind.SHEET: (".xlsx", ".xls", ".xlsm", ".xlsb", ".ods"),
    FileKind.TEXT: (
        *(".txt", ".md", ".text", ".markdown", ".rst", ".adoc", ".org", ".tex"),
        *(".html", ".htm", ".xml", ".eml", ".srt", ".vtt", ".log"),
    ),
}
_CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}  # of JSON lines and CSV, as Arrow names them
DATABASES = (".duckdb", ".ddb", ".db", ".sqlite", ".sqlite3")

_SHOWN = [f"{kind} ({', '.join(suffixes[:2])})" for kind, suffixes in SUFFIXES.items()]
KNOWN = (
    f"a file, glob or folder of {', '.join(_SHOWN[:-1])} or {_SHOWN[-1]}, or a DuckDB or SQLite file ({', '.join(DATABASES)}) "
    "with --table or --query, or the folder of a Delta, Iceberg, Lance or Hugging Face table"
)


def kind_of(name: str) -> FileKind | None:
    """File kind by the suffix of a file's name, ignoring case."""
    plain = name.lower()
    bare = uncompressed(plain)
    for kind, suffixes in SUFFIXES.items():
        if plain.endswith(suffixes) or (kind in (FileKind.JSONL, FileKind.CSV) and bare.endswith(suffixes)):
            return kind
    return None


def codec_of(name: str) -> str | None:
    """Arrow's name of the compression by the suffix of a file's name, ignoring case; None for a file that is not compressed."""
    return next((codec for end, codec in _CODECS.items() if name.lower().endswith(end)), None)


def uncompressed(name: str) -> str:
    """The name without the suffix of a compression."""
    return next((name[: -len(end)] for end in _CODECS if name.lower().endswith(end)), name)


def stem_of(name: str) -> str:
    """The name without the suffixes that say its kind: ``docs`` of ``docs.csv.gz``."""
    bare = uncompressed(name)
    ends = [end for suffixes in SUFFIXES.values() for end in suffixes]
    return next((bare[: -len(end)] for end in ends if bare.lower().endswith(end)), bare)


MAX_LETTERS = 32


def source_name(*candidates: str) -> str:
    """The first candidate that holds a letter or digit, as lower-case letters, digits and ``-``, at most 32 of them.

    ``table`` where no candidate holds any.
    """
    for candidate in candidates:
        plain = unicodedata.normalize("NFKD", candidate).encode("ascii", "ignore").decode().lower()
        name = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:MAX_LETTERS].rstrip("-")
        if name:
            return name
    return "table"
