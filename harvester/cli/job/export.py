"""Write rows in the formats of ``--format`` and ``-o``, one batch at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from connectors.parquet.groups import GROUP_ROWS, grouped
from connectors.targets.lines import as_text, csv_lines, json_lines
from harvester.cli.table import markdown_table, text_table
from harvester.errors import StorageError, UsageError


class Format(StrEnum):
    TABLE = "table"
    MARKDOWN = "markdown"
    CSV = "csv"
    JSON = "json"  # one array
    JSONL = "jsonl"  # one object a line
    PARQUET = "parquet"


SUFFIXES = {
    ".parquet": Format.PARQUET,
    ".csv": Format.CSV,
    ".json": Format.JSON,
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".md": Format.MARKDOWN,
    ".txt": Format.TABLE,
}

Batches = Iterable[pa.RecordBatch]


def format_of(path: Path) -> Format:
    """By the file's suffix. Raises `UsageError` for one that names no format."""
    try:
        return SUFFIXES[path.suffix.lower()]
    except KeyError:
        raise UsageError(f"{path.name!r} has no known file extension; use one of {', '.join(SUFFIXES)}, or give --format") from None


def write(out: IO[bytes], shape: Format, schema: pa.Schema, batches: Batches) -> int:
    """Write all rows as they come; returns their number.

    Holds one batch at a time, for `Format.PARQUET` a row group, for `Format.TABLE` all, to find the widths.
    """
    names = _distinct(schema.names)
    renamed = pa.schema([field.with_name(name) for name, field in zip(names, schema, strict=True)])
    counted = _Counted(batch.rename_columns(names) for batch in batches)
    if shape is Format.PARQUET:
        _parquet(out, renamed, counted)
    elif shape is Format.CSV:
        csv_lines(out, renamed, counted)
    else:
        stream = TextIOWrapper(out, encoding="utf-8", newline="\n", write_through=True)
        try:
            for piece in _TEXTS[shape](renamed, counted):
                stream.write(piece)
        finally:
            stream.detach()
    return counted.rows


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears under its name only when it is complete. Raises `StorageError` where it cannot be written."""
    if path.exists() and not path.is_file():  # a pipe or a device
        with path.open("wb") as out:
            yield out
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with draft.open("xb") as out:
            yield out
        draft.replace(path)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}; name another file with -o") from error
    finally:
        draft.unlink(missing_ok=True)


def head(batches: Batches, limit_rows: int) -> tuple[list[pa.RecordBatch], bool]:
    """The first rows, and whether there are more. Reads as few batches as possible."""
    taken: list[pa.RecordBatch] = []
    left = limit_rows
    for batch in batches:
        if batch.num_rows > left:
            return [*taken, batch.slice(0, left)], True
        taken.append(batch)
        left -= batch.num_rows
    return taken, False


class _Counted:
    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self.rows = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.rows += batch.num_rows
            yield batch


def _distinct(names: list[str]) -> list[str]:
    """A query may name two columns alike, a JSON object or a Parquet file may not: the second ``n`` becomes ``n_1``."""
    found: dict[str, None] = {}  # in order
    for name in names:
        fresh, count = name, 0
        while fresh in found:
            count += 1
            fresh = f"{name}_{count}"
        found[fresh] = None
    return list(found)


def _parquet(out: IO[bytes], schema: pa.Schema, batches: Batches) -> None:
    """Columns of types that Parquet lacks (intervals, unions, structs without fields) become text, as in CSV."""
    kept = pa.schema([field if _fits_parquet(field) else pa.field(field.name, pa.string()) for field in schema])
    with pq.ParquetWriter(out, kept, compression="zstd") as parquet:
        for table in grouped(kept, (_as_kept(batch, kept) for batch in batches)):
            parquet.write_table(table, row_group_size=GROUP_ROWS)


def _as_kept(batch: pa.RecordBatch, kept: pa.Schema) -> pa.RecordBatch:
    columns = [as_text(old) if field.type != old.type else old for field, old in zip(kept, batch.columns, strict=True)]
    return pa.record_batch(columns, schema=kept)


def _fits_parquet(field: pa.Field) -> bool:
    try:
        pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([field])).close()
    except pa.ArrowNotImplementedError:
        return False
    return True


def _jsonl(schema: pa.Schema, batches: Batches) -> Iterator[str]:
    return chain.from_iterable(json_lines(batch) for batch in batches)


def _json(schema: pa.Schema, batches: Batches) -> Iterator[str]:
    before = "[\n"
    for line in _jsonl(schema, batches):
        yield before + line.rstrip("\n")
        before = ",\n"
    yield "[]\n" if before == "[\n" else "\n]\n"


_TEXTS: dict[Format, Callable[[pa.Schema, Batches], Iterator[str]]] = {
    Format.TABLE: text_table,
    Format.MARKDOWN: markdown_table,
    Format.JSON: _json,
    Format.JSONL: _jsonl,
}
