"""Selected rows of a source: by a condition, a sample or a limit; or the result of a query over all rows."""

from __future__ import annotations

import hashlib
import json
import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from connectors.base import Source, listed
from connectors.copied.snapshot import Origin
from connectors.copied.source import Reading, Rows, temporary_folder
from connectors.databases.database import Settings
from connectors.databases.exact import exactly
from connectors.databases.shape import fault, tokens
from connectors.databases.stall import moving
from connectors.edge import first_line
from connectors.errors import HarvesterError, SourceError
from connectors.kinds import for_duckdb
from connectors.selection import Selection

VIEW = "source"
BATCH_ROWS = 1024
MAX_SCANS = 10  # of the source that count as progress: a recursive query may scan it without end
_NUMBER = "harvester_row_number"
_CONFIG: Settings = {"enable_external_access": "false", "python_enable_replacements": "false", "memory_limit": "2GB"}
_IN_ORDER = frozenset({"PYTHON_ARROW_SCAN", "FILTER", "PROJECTION"})  # operators of DuckDB that give rows in the order in which they come


class SelectedReading:
    """The chosen rows of an open source, to be copied: in the source's order, with its types.

    ``scratch``: folder for what a condition writes beyond its memory; None: the system's temporary folder.
    """

    def __init__(self, origin: Origin, source: Source, selection: Selection, scratch: Path | None = None) -> None:
        self.origin = origin
        self.name = source.name
        self._source = source
        self._selection = selection
        self._scratch = scratch

    def fingerprint(self) -> str | None:
        """Digest of the opened source's fingerprint and the selection."""
        return _digest("selection", self._source.fingerprint(), asdict(self._selection))

    @contextmanager
    def rows(self) -> Iterator[Rows]:
        chosen = self._selection
        numbers: Sequence[int] = range(self._source.row_count)
        if chosen.where is not None:
            numbers = _matching(self._source, chosen.where, chosen.limit if chosen.sample is None else None, self._scratch)
        if chosen.sample is not None and chosen.sample < len(numbers):
            numbers = sorted(random.Random(chosen.seed).sample(numbers, chosen.sample))
        if chosen.limit is not None:
            numbers = numbers[: chosen.limit]
        yield self._source.schema, _taken(self._source, numbers)


class HeadReading:
    """The first rows of a reading, to be copied: no more of it is read than they need."""

    def __init__(self, origin: Origin, whole: Reading, selection: Selection) -> None:
        self.origin = origin
        self.name = whole.name
        self._whole = whole
        self._selection = selection

    def fingerprint(self) -> str | None:
        """Digest of the whole reading's fingerprint and the selection."""
        known = self._whole.fingerprint()
        return None if known is None else _digest("selection", known, asdict(self._selection))

    @contextmanager
    def rows(self) -> Iterator[Rows]:
        with self._whole.rows() as (schema, batches):
            yield schema, _first(batches, self._selection.head_rows or 0)


def _first(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.slice(0, rows)
        rows -= batch.num_rows
        if rows <= 0:
            return


class QueriedReading:
    """The result of one SELECT over an open source, to be copied. The source is the table ``source`` in it.

    ``scratch``: folder for what it writes beyond its memory; None: the system's temporary folder.
    """

    def __init__(self, origin: Origin, source: Source, query: str, scratch: Path | None = None) -> None:
        self.origin = Origin(origin.path, None, query)
        self.name = source.name
        self._source = source
        self._query = query
        self._scratch = scratch

    def fingerprint(self) -> str | None:
        """Digest of the opened source's fingerprint and the query."""
        return _digest("query", self._source.fingerprint(), self._query)

    @contextmanager
    def rows(self) -> Iterator[Rows]:
        with _viewed(self._source, None, self.origin.label, self._scratch) as (connection, stream), _failing(self.origin.label, stream):
            _check_shape(self._query, self.origin.label)
            statements = connection.extract_statements(self._query)
            if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                raise SourceError(f"{self.origin.label} must be one SELECT; given: {' '.join(self._query.split())[:80]!r}")
            reader = exactly(connection.sql(self._query)).to_arrow_reader(BATCH_ROWS)
            yield reader.schema, _drawn(reader, self.origin.label, stream)


def _digest(kind: str, fingerprint: str, told: Any) -> str:
    return hashlib.sha256(json.dumps([kind, fingerprint, told]).encode()).hexdigest()


def _matching(source: Source, where: str, most: int | None, scratch: Path | None) -> array[int]:
    """Row numbers that the condition is true for, in order: the first ``most`` of them, or all."""
    label = f"--where {' '.join(where.split())[:80]!r}"
    _check_shape(where, label)
    with _viewed(source, _NUMBER, label, scratch) as (connection, stream), _failing(label, stream):
        chosen = connection.table(VIEW).filter(where).project(f'"{_NUMBER}"')
        if most is None or not _operators(connection, chosen) <= _IN_ORDER:
            chosen = chosen.order(f'"{_NUMBER}"')  # of all that match, before it gives the first
        if most is not None:
            chosen = chosen.limit(most)
        found = array("q")
        for batch in _drawn(chosen.to_arrow_reader(1 << 16), label, stream):
            found.extend(batch.column(0).to_pylist())
        return found


def _operators(connection: duckdb.DuckDBPyConnection, chosen: duckdb.DuckDBPyRelation) -> set[str]:
    """Names of the operators that a query is planned as."""
    ((_, plan),) = connection.execute(f"explain (format json) {chosen.sql_query()}").fetchall()
    left, found = list(json.loads(plan)), set()
    while left:
        operator = left.pop()
        found.add(operator["name"].strip())
        left += operator["children"]
    return found


def _check_shape(sql: str, label: str) -> None:
    try:
        too_much = fault(tokens(sql))
    except duckdb.Error as error:
        raise SourceError(f"{label} is no SQL: {first_line(error)}") from error
    if too_much is not None:
        raise SourceError(f"{too_much}; given for {label}")


class _Stream:
    """The source as DuckDB scans it: from the start each time, a batch at a time. ``fault`` is the error that ended a scan.

    ``moved`` is called at each progress of the query.
    """

    def __init__(self, source: Source, number: str | None, moved: Callable[[], None]) -> None:
        self._source = source
        self._number = number
        self._scans = 0
        self.moved = moved
        self.fault: HarvesterError | None = None
        known = pa.schema([field.with_type(for_duckdb(field.type)) for field in source.schema])
        self.schema = known if number is None else known.append(pa.field(number, pa.int64()))

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return pa.RecordBatchReader.from_batches(self.schema, self._batches()).__arrow_c_stream__(requested_schema)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        self._scans += 1
        try:
            for start, table in _scanned(self._source):
                if self._scans <= MAX_SCANS:
                    self.moved()
                if self._number is not None:
                    table = table.append_column(self._number, pa.array(range(start, start + table.num_rows), pa.int64()))
                yield from table.cast(self.schema).to_batches()
        except HarvesterError as error:
            self.fault = error
            raise


def _scanned(source: Source) -> Iterator[tuple[int, pa.Table]]:
    """All rows in order, a few at a time, with the number of the first."""
    for group in source.row_groups():
        for offset in range(0, group.row_count, BATCH_ROWS):
            yield group.row_start + offset, source.read(group, offset, min(BATCH_ROWS, group.row_count - offset))


@contextmanager
def _viewed(source: Source, number: str | None, label: str, scratch: Path | None) -> Iterator[tuple[duckdb.DuckDBPyConnection, _Stream]]:
    """A database whose only table is the source, and that reaches no file and no network. ``label`` names its query in messages.

    What does not fit its memory lies in a folder of its own in ``scratch``.
    """
    folded: dict[str, str] = {}
    for name in source.schema.names:
        if folded.setdefault(name.casefold(), name) != name:
            raise SourceError(
                f"the columns {folded[name.casefold()]!r} and {name!r} differ in case only, which SQL cannot tell; rename one"
            )
    # One thread: a `Source` has one reader at a time, and a query may scan it twice at once.
    with (
        temporary_folder(scratch) as spill,
        duckdb.connect(config={**_CONFIG, "threads": 1, "temp_directory": spill}) as connection,
        moving(connection.interrupt, label) as moved,
    ):
        stream = _Stream(source, number, moved)
        connection.register(VIEW, stream)
        connection.execute("set lock_configuration = true")
        yield connection, stream


@contextmanager
def _failing(label: str, stream: _Stream) -> Iterator[None]:
    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        if stream.fault is not None:
            raise stream.fault from error
        columns = listed([name for name in stream.schema.names if name != _NUMBER])
        raise SourceError(f"{label} failed: {first_line(error)}; the table is named {VIEW}, its columns: {columns}") from error


def _drawn(reader: Any, label: str, stream: _Stream) -> Iterator[pa.RecordBatch]:
    while True:
        with _failing(label, stream):
            batch = next(reader, None)
        if batch is None:
            return
        stream.moved()
        yield batch


def _taken(source: Source, numbers: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """The rows with these numbers, which are sorted. Skips groups without any; in a group it reads no further than the last one."""
    at = 0
    for group in source.row_groups():
        while at < len(numbers) and numbers[at] < group.row_start + group.row_count:
            offset = (numbers[at] - group.row_start) // BATCH_ROWS * BATCH_ROWS
            count = min(BATCH_ROWS, group.row_count - offset)
            end = at
            while end < len(numbers) and numbers[end] < group.row_start + offset + count:
                end += 1
            wanted = [number - group.row_start - offset for number in numbers[at:end]]
            table = source.read(group, offset, count)
            yield from (batch for piece in _runs(table, wanted) for batch in piece.to_batches())
            at = end


def _runs(table: pa.Table, wanted: Sequence[int]) -> Iterator[pa.Table]:
    start = 0
    for index in range(1, len(wanted) + 1):
        if index == len(wanted) or wanted[index] != wanted[index - 1] + 1:
            yield table.slice(wanted[start], index - start)
            start = index
