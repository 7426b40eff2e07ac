"""A source and a sink that live in memory: for tests, and for tables a program already holds."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from connectors.base import Closing, RowGroup, check_span, check_unique, checked_columns
from connectors.errors import SourceError, StorageError
from connectors.paths.names import source_name

GROUP_ROWS = 16_384


class MemorySource(Closing):
    """An Arrow table as a `Source`, cut into groups of ``group_rows`` rows. Raises `SourceError` for a table without rows."""

    def __init__(self, table: pa.Table, name: str = "memory", group_rows: int = GROUP_ROWS) -> None:
        assert group_rows >= 1, f"group_rows={group_rows}"
        self._name = source_name(name)
        check_unique(table.schema.names, f"the table {self._name}")
        if table.num_rows == 0:
            raise SourceError(f"the table {self._name} holds no rows; submit at least one row")
        self._table = table
        starts = range(0, table.num_rows, group_rows)
        self._groups = tuple(RowGroup(index, start, min(group_rows, table.num_rows - start)) for index, start in enumerate(starts))

    @property
    def name(self) -> str:
        return self._name

    @property
    def schema(self) -> pa.Schema:
        return self._table.schema

    @property
    def row_count(self) -> int:
        return int(self._table.num_rows)

    def fingerprint(self) -> str:
        """Hashes the rows: a table in memory has no metadata that would tell two apart."""
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, self._table.schema) as writer:
            writer.write_table(self._table.combine_chunks())
        return hashlib.sha256(stream.getvalue()).hexdigest()

    def row_groups(self) -> Sequence[RowGroup]:
        return self._groups

    def read(self, group: RowGroup, offset: int, count: int, columns: Sequence[str] | None = None) -> pa.Table:
        names = checked_columns(self.schema, columns, f"the table {self._name}")
        check_span(self._groups, group, offset, count, f"the table {self._name}")
        return self._table.select(list(names)).slice(group.row_start + offset, count)


class MemorySink:
    """Parts in a dictionary. As with files, a part is there whole or not at all and a second write replaces the first."""

    def __init__(self) -> None:
        self._parts: dict[str, tuple[pa.Table, dict[str, str]]] = {}

    def write(self, name: str, table: pa.Table, metadata: Mapping[str, str]) -> None:
        self._parts[name] = (table, dict(metadata))

    def metadata(self, name: str) -> Mapping[str, str] | None:
        part = self._parts.get(name)
        return None if part is None else dict(part[1])

    def read(self, name: str) -> pa.Table:
        if name not in self._parts:
            raise StorageError(f"part {name} does not exist; it was not written yet")
        return self._parts[name][0]

    def put_aside(self, name: str) -> None:
        del self._parts[name]

    def names(self) -> Iterator[str]:
        yield from sorted(self._parts)
