"""Reads an input file once, line by line, into the rows of a job, or collects its errors with their line numbers."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from connectors.copied.snapshot import Origin, write_snapshot
from jobs.batches.line import BadLine, LineRules, Request
from jobs.batches.record import BatchError
from jobs.config import BatchConfig

CUSTOM_ID, BODY, LINE = "custom_id", "body", "line"
SCHEMA = pa.schema([(LINE, pa.int64()), (CUSTOM_ID, pa.string()), (BODY, pa.string())])
MAX_ERRORS = 100  # more would not be read
_CHUNK_ROWS = 1024
_CHUNK_BYTES = 16 << 20
_TURN_S, _REST_S = 0.0005, 0.00001  # work, then sleep: the threads that answer get the GIL; sleep(0) would not let them wake in time
_DUPLICATES = f"""
    select line, custom_id from (select line, custom_id, row_number() over (partition by custom_id order by line) as time from requests)
    where time > 1 order by line limit {MAX_ERRORS}
"""


class InvalidInput(Exception):
    """The file makes no batch. ``errors``: up to 100, in line order."""

    def __init__(self, errors: list[BatchError]) -> None:
        super().__init__(f"{len(errors)} errors")
        self.errors = tuple(errors)


class Stopped(Exception):
    """The batch was cancelled while its file was read."""


@dataclass(slots=True)
class InputReader:
    """Reads a file of any length with the memory of one row group. Used once; ``rows`` and ``model`` are known at the end."""

    rules: LineRules
    limits: BatchConfig
    is_stopped: Callable[[], bool] = lambda: False
    rows: int = 0
    model: str | None = None

    def write(self, file: BinaryIO, path: Path, source: str) -> None:
        """Write the requests of ``file`` to ``path``, as a Parquet file in `SCHEMA`, whole or not at all.

        Raises `InvalidInput`, `Stopped`, and `StorageError` for the disk's errors. ``source`` names the file in the Parquet file.
        """
        write_snapshot(path, SCHEMA, self._batches(file), Origin(source, None, None), source)
        repeated = _duplicates(path)
        if repeated:
            path.unlink()
            raise InvalidInput(repeated)

    def _batches(self, file: BinaryIO) -> Iterator[pa.RecordBatch]:
        errors: list[BatchError] = []
        held: list[Request] = []
        held_bytes = 0
        for number, raw in self._lines(file):
            try:
                request = self._request(number, raw)
            except BadLine as bad:
                errors.append(bad.error)
                if len(errors) == MAX_ERRORS:
                    break
                continue
            self.model = request.model
            if errors:
                continue  # only looked through for more
            held.append(request)
            held_bytes += len(request.body)
            if len(held) == _CHUNK_ROWS or held_bytes > _CHUNK_BYTES:
                yield _batch(held)
                held, held_bytes = [], 0
        if self.rows == 0 and not errors:
            errors.append(BatchError(code="empty_file", message="The input file is empty; it must hold one request a line."))
        if errors:
            raise InvalidInput(errors)
        yield _batch(held)

    def _request(self, number: int, raw: bytes | None) -> Request:
        if raw is None:
            message = f"This line is longer than {self.limits.max_line_bytes} bytes, the most that this server takes."
            raise BadLine(BatchError(code="line_too_long", message=message, line=number))
        most = self.limits.max_lines
        self.rows += 1
        if most is not None and self.rows > most:
            message = f"The input file has more than {most} requests, which is the limit of this server; split the file."
            raise InvalidInput([BatchError(code="too_many_requests", message=message, line=number)])
        return self.rules.read(number, raw, self.model)

    def _lines(self, file: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
        """Numbers and contents of the lines that are not blank; None for one that is too long. Raises `Stopped`."""
        number, most, turn_s = 0, self.limits.max_line_bytes, time.monotonic()
        while raw := file.readline(most + 1):
            number += 1
            if time.monotonic() - turn_s > _TURN_S:
                time.sleep(_REST_S)
                turn_s = time.monotonic()
            if number % _CHUNK_ROWS == 0 and self.is_stopped():
                raise Stopped
            if len(raw) > most and not raw.endswith(b"\n"):
                while raw and not raw.endswith(b"\n"):
                    raw = file.readline(most)
                yield number, None
                continue
            line = (raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw).strip()
            if line:
                yield number, line


def _batch(requests: list[Request]) -> pa.RecordBatch:
    columns: list[list[Any]] = [[r.line for r in requests], [r.custom_id for r in requests], [r.body for r in requests]]
    return pa.record_batch([pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def _duplicates(path: Path) -> list[BatchError]:
    """Every line whose custom_id an earlier one has. DuckDB sorts them within 1 GB of memory and spills beyond."""
    with tempfile.TemporaryDirectory(prefix="harvester-") as scratch, duckdb.connect() as connection, pq.ParquetFile(path) as rows:
        connection.execute("SET temp_directory = $1", [scratch])
        connection.execute("SET memory_limit = '1GB'")
        ids = rows.iter_batches(columns=[LINE, CUSTOM_ID])
        connection.register("requests", pa.RecordBatchReader.from_batches(pa.schema([SCHEMA.field(0), SCHEMA.field(1)]), ids))
        found = connection.execute(_DUPLICATES).fetchall()
    return [
        BatchError(
            code="duplicate_custom_id",
            message=f"The custom_id {custom_id[:80]!r} was used by an earlier request; it must be unique in a batch.",
            line=line,
            param=CUSTOM_ID,
        )
        for line, custom_id in found
    ]
