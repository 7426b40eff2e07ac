"""Standard input, kept as one Parquet file named by a digest of the input: the same input gives the same file."""

from __future__ import annotations

import csv
import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from connectors.copied.snapshot import Origin, write_snapshot
from connectors.copied.source import CopiedSource
from connectors.copied.widen import unchecked_text
from connectors.durable import publish, storage_error
from connectors.errors import SourceError
from connectors.files.forward import FilesReading
from connectors.parquet.source import ParquetSource
from connectors.paths.files import find
from connectors.paths.location import locate
from connectors.paths.names import FileKind

_HEAD_BYTES = 1 << 16
_LINES_A_BATCH = 1024


class Form(StrEnum):
    """Format of standard input."""

    JSONL = "jsonl"
    CSV = "csv"
    TSV = "tsv"
    LINES = "lines"  # a row a line, in the column `text`
    TEXT = "text"  # one row
    PARQUET = "parquet"
    ARROW = "arrow"


_SUFFIXES = {Form.JSONL: ".jsonl", Form.CSV: ".csv", Form.TSV: ".tsv", Form.TEXT: ".txt", Form.PARQUET: ".parquet", Form.ARROW: ".arrow"}


@dataclass(frozen=True, slots=True)
class KeptInput:
    """``path``: the Parquet file. ``is_new``: it was not there before. ``guessed``: the form was not given."""

    path: Path
    form: Form
    is_new: bool
    guessed: bool


def keep_input(stream: BinaryIO, folder: Path, form: Form | None = None, name: str = "stdin") -> KeptInput:
    """Read ``stream`` to its end and keep its rows as ``folder/DIGEST/name.parquet``, durable.

    Without ``form`` the first bytes decide. Raises `SourceError` for input not of that form, naming the line or row, and for no rows;
    nothing is kept then. Raises `StorageError` for the disk's errors.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".reading-", dir=folder) as scratch:
            raw = Path(scratch, "stdin")
            digest = _spool(stream, raw)
            told = form or form_of(_head(raw))
            path = folder / hashlib.sha256(f"{told} {digest}".encode()).hexdigest()[:16] / f"{name}.parquet"
            if not path.exists():
                _convert(raw, told, path)
                return KeptInput(path, told, is_new=True, guessed=form is None)
            return KeptInput(path, told, is_new=False, guessed=form is None)
    except OSError as error:
        raise storage_error("keep standard input in", folder, error) from error


def forget_input(kept: KeptInput) -> None:
    """Undo `keep_input`, for a caller that made no job of the input. Input that was there before stays."""
    if kept.is_new:
        shutil.rmtree(kept.path.parent, ignore_errors=True)


def form_of(head: bytes) -> Form:
    """The format by the first bytes. Raises `SourceError` for binary data of an unknown kind.

    Text is CSV where its first lines have the same number of cells, two or more; else each line is a row.
    """
    if head.startswith(b"PAR1"):
        return Form.PARQUET
    if head.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        return Form.ARROW
    if head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"["):
        return Form.JSONL
    if b"\0" in head:
        raise SourceError("standard input is binary, but neither Parquet nor Arrow; name its format with --input-format")
    lines = head.decode("utf-8", "replace").splitlines()
    whole = lines[:-1] if len(head) >= _HEAD_BYTES else lines  # the last one may be cut
    for form, delimiter in ((Form.CSV, ","), (Form.TSV, "\t"), (Form.CSV, ";")):
        cells = {len(row) for row in csv.reader(whole[:50], delimiter=delimiter) if row}
        if len(whole) >= 2 and len(cells) == 1 and cells.pop() >= 2:
            return form
    return Form.LINES


def _spool(stream: BinaryIO, path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("wb") as file:
        while piece := stream.read(1 << 20):
            digest.update(piece)
            file.write(piece)
    if path.stat().st_size == 0:
        raise SourceError("standard input is empty; pipe rows into it: cat docs.jsonl | harvester submit -")
    return digest.hexdigest()


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEAD_BYTES)


def _convert(raw: Path, form: Form, path: Path) -> None:
    if form is Form.LINES:
        schema = pa.schema([("text", pa.string())])
        write_snapshot(path, schema, _lines(raw, schema), Origin("standard input"), path.parent.name)
        return
    named = raw.rename(raw.with_suffix(_SUFFIXES[form]))
    location = locate(str(named))
    kind, data_files = find(location)
    try:
        if kind is FileKind.PARQUET:
            ParquetSource(location, data_files=data_files).close()  # whether it is Parquet and holds rows
            with publish(path) as file, named.open("rb") as source:
                shutil.copyfileobj(source, file)
            return
        with CopiedSource(FilesReading(location, kind, data_files)) as copy:
            rows = (batch for group in copy.row_groups() for batch in copy.read(group, 0, group.row_count).to_batches())
            write_snapshot(path, copy.schema.remove_metadata(), rows, Origin("standard input"), path.parent.name)
    except SourceError as error:
        raise SourceError(error.message.replace(str(named), "standard input")) from error


def _lines(raw: Path, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    with raw.open("rb") as file:
        held: list[bytes | None] = []
        for line in file:
            held.append(line.rstrip(b"\r\n"))
            if len(held) == _LINES_A_BATCH:
                yield pa.record_batch([unchecked_text(held)], schema=schema)
                held = []
        if held:
            yield pa.record_batch([unchecked_text(held)], schema=schema)
