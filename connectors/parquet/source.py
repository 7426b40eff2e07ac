"""Parquet as a source: one file, a glob or a folder, hive-partitioned or not, on any file system that Arrow or fsspec reaches."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import pyarrow as pa

from connectors.base import Closing, RowGroup, check_span, checked_columns
from connectors.errors import SourceError
from connectors.parquet.cursor import GroupCursor
from connectors.parquet.schema import Footer, Partitions, common_schema, read_footers
from connectors.paths.files import DataFile, find, is_glob
from connectors.paths.location import Location
from connectors.paths.names import source_name, stem_of


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a row group of the source lies: group ``group`` of file ``file``, of ``size`` (rows, uncompressed bytes)."""

    file: int
    group: int
    size: tuple[int, int]


class ParquetSource(Closing):
    """The rows of all files of a location, files in sorted path order. Reads footers when made, rows only in `read`.

    ``data_files`` are what `find` gives for the location, where that is known already.
    """

    def __init__(self, location: Location, name: str | None = None, data_files: Sequence[DataFile] | None = None) -> None:
        self._location = location
        self._name = source_name(name) if name else name_of(location.path)
        self._data_files = tuple(data_files) if data_files is not None else find(location)[1]
        self._footers = read_footers(location.files, self._data_files)
        self._stored = common_schema(self._data_files, self._footers)
        self._partitions = Partitions.of(self._data_files, self._stored.names)
        self._schema = pa.schema([*self._stored, *self._partitions.fields])
        self._places, self._groups = _tile(self._footers)
        if not self._groups:
            raise SourceError(f"{location.label} holds no rows; give a source with at least one")
        self._cursor: GroupCursor | None = None
        self._cursor_at: tuple[int, frozenset[str]] | None = None

    @property
    def name(self) -> str:
        return self._name

    @property
    def schema(self) -> pa.Schema:
        """Columns of the files, then those that partitioned folders keep in their names."""
        return self._schema

    @property
    def row_count(self) -> int:
        last = self._groups[-1]
        return last.row_start + last.row_count

    def fingerprint(self) -> str:
        """Over each file's path below the root, size, stamp and footer; the place of the root itself does not count."""
        digest = hashlib.sha256()
        for data_file, footer in zip(self._data_files, self._footers, strict=True):
            schema = footer.schema.to_string(show_field_metadata=False, show_schema_metadata=False)
            facts = [data_file.relative, data_file.size_bytes, data_file.stamp, footer.groups, schema]
            digest.update(json.dumps(facts).encode() + b"\n")
        return digest.hexdigest()

    def row_groups(self) -> Sequence[RowGroup]:
        return self._groups

    def read(self, group: RowGroup, offset: int, count: int, columns: Sequence[str] | None = None) -> pa.Table:
        names = checked_columns(self._schema, columns, self._location.label)
        check_span(self._groups, group, offset, count, self._location.label)
        place = self._places[group.index]
        stored = [name for name in names if name not in self._partitions]
        try:
            batches = self._open(group.index, place, stored, offset).take(count) if stored and count else []
        except BaseException:
            self.close()  # pyarrow's reader gives nothing more after an error, as if the row group ended there
            raise
        arrays = {name: _joined(batches, self._schema.field(name)) for name in stored}
        arrays |= {name: self._partitions.column(name, place.file, count) for name in names if name in self._partitions}
        return pa.Table.from_arrays([arrays[name] for name in names], schema=pa.schema([self._schema.field(name) for name in names]))

    def _open(self, index: int, place: _Place, stored: Sequence[str], offset: int) -> GroupCursor:
        """A cursor at ``offset``: the open one if it can still reach it, else a new one."""
        at = (index, frozenset(stored))
        cursor = self._cursor
        if cursor is None or self._cursor_at != at or cursor.position > offset:
            self.close()
            cursor = GroupCursor(self._location.files, self._data_files[place.file], place.group, place.size, stored)
            self._cursor, self._cursor_at = cursor, at
        cursor.skip(offset - cursor.position)
        return cursor

    def close(self) -> None:
        if self._cursor is not None:
            self._cursor.close()
        self._cursor = self._cursor_at = None


def _tile(footers: Sequence[Footer]) -> tuple[tuple[_Place, ...], tuple[RowGroup, ...]]:
    """The row groups that hold rows, numbered through all files."""
    places: list[_Place] = []
    groups: list[RowGroup] = []
    row_start = 0
    for file, footer in enumerate(footers):
        for group, size in enumerate(footer.groups):
            if size[0] > 0:
                groups.append(RowGroup(len(groups), row_start, size[0]))
                places.append(_Place(file, group, size))
                row_start += size[0]
    return tuple(places), tuple(groups)


def _joined(batches: Sequence[pa.RecordBatch], field: pa.Field) -> pa.ChunkedArray:
    chunks = [batch.column(field.name) for batch in batches]
    # Only a column that is all null in this file has another type than the source.
    return pa.chunked_array([chunk if chunk.type == field.type else chunk.cast(field.type) for chunk in chunks], type=field.type)


def name_of(path: str) -> str:
    """A source name from a path: ``docs`` for ``/data/docs.parquet``, ``/data/docs/`` or ``/data/docs/*.parquet``."""
    last = [part for part in reversed(PurePosixPath(path).parts) if part != "**"][:3]
    stems = [re.sub(r"[*?\[].*", "", part) if is_glob(part) else part for part in last]
    return source_name(*(stem_of(stem) for stem in stems))
