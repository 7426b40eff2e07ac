"""The columns and row groups of Parquet files: what their footers say, and what a hive-partitioned folder keeps in its names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from connectors.base import check_unique
from connectors.edge import reading, shown
from connectors.errors import SourceError
from connectors.kinds import with_leaves
from connectors.paths.files import DataFile

MAX_ROWS = 1 << 30  # of one file: a footer of some bytes can claim any number
_AT_ONCE = 16  # on object stores a footer is a round trip or two, and a folder may hold thousands of files


@dataclass(frozen=True, slots=True)
class Footer:
    """``groups``: rows and uncompressed bytes of each row group of the file, empty ones too."""

    schema: pa.Schema
    groups: tuple[tuple[int, int], ...]


def read_footers(files: fs.FileSystem, data_files: Sequence[DataFile]) -> tuple[Footer, ...]:
    """The footers, in the order of the files. Raises `SourceError` for a file that is not Parquet or cannot be read."""
    with ThreadPoolExecutor(max_workers=min(_AT_ONCE, len(data_files)), thread_name_prefix="footers") as pool:
        return tuple(pool.map(lambda data_file: _read(files, data_file), data_files))


def _read(files: fs.FileSystem, data_file: DataFile) -> Footer:
    with reading(data_file.path), files.open_input_file(data_file.path) as stream, pq.ParquetFile(stream, pre_buffer=False) as parquet:
        groups = [parquet.metadata.row_group(index) for index in range(parquet.metadata.num_row_groups)]
        footer = Footer(_without_views(parquet.schema_arrow), tuple((int(group.num_rows), int(group.total_byte_size)) for group in groups))
    check_unique(footer.schema.names, data_file.path)
    rows = sum(rows for rows, _ in footer.groups)
    if rows > MAX_ROWS or any(rows < 0 for rows, _ in footer.groups):
        raise SourceError(f"the footer of {shown(data_file.path)} says {rows:,} rows; the limit is {MAX_ROWS:,}: split the file")
    return footer


def _without_views(schema: pa.Schema) -> pa.Schema:
    """The schema with views, as polars writes them, as plain strings and bytes: few of Arrow's functions take views."""
    return pa.schema([pa.field(field.name, with_leaves(field.type, _viewed), field.nullable) for field in schema])


def _viewed(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(kind):
        return pa.string()
    return pa.binary() if pa.types.is_binary_view(kind) else kind


def common_schema(data_files: Sequence[DataFile], footers: Sequence[Footer]) -> pa.Schema:
    """The columns that all files hold, in the order of the first file. Raises `SourceError` naming the file and column that differ.

    A column that is only null in some file has the type that it has elsewhere: writers cannot know better.
    """
    first, start = footers[0].schema, data_files[0].path
    types = {name: first.field(name).type for name in first.names}
    for data_file, footer in zip(data_files[1:], footers[1:], strict=True):
        if footer.schema.equals(first):  # as of most tables
            continue
        _check_names(first, start, footer.schema, data_file.path)
        for field in footer.schema:
            if pa.types.is_null(types[field.name]):
                types[field.name] = field.type
            elif field.type != types[field.name] and not pa.types.is_null(field.type):
                raise SourceError(
                    f"{data_file.path}: column {field.name!r} is {field.type}, in {start} it is {types[field.name]}; "
                    "write the files with one schema, or submit them as separate jobs"
                )
    return pa.schema(list(types.items()))


def _check_names(first: pa.Schema, start: str, other: pa.Schema, path: str) -> None:
    known, found = dict.fromkeys(first.names), dict.fromkeys(other.names)
    odd = [name for name in known if name not in found]
    new = [name for name in found if name not in known]
    if odd or new:
        what = f"has no column {odd[0]!r}, which {start} has" if odd else f"has a column {new[0]!r}, which {start} has not"
        raise SourceError(f"{path} {what}; write the files with one schema, or submit them as separate jobs")


# Without leading zeros: "007" is a name, not the number seven. 18 digits always fit 64 bits.
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")


@dataclass(frozen=True, slots=True)
class Partitions:
    """One value for each partition column and file. A column is int64 where all its values are integers, else string."""

    fields: tuple[pa.Field, ...]
    values: tuple[dict[str, str | None], ...]  # one for each file

    @classmethod
    def of(cls, data_files: Sequence[DataFile], stored: Sequence[str]) -> Partitions:
        """Raises `SourceError` where the files differ in their partition columns. A column that the files hold themselves wins."""
        found = [data_file.partitions() for data_file in data_files]
        for data_file, own in zip(data_files[1:], found[1:], strict=True):
            if odd := set(own) ^ set(found[0]):
                raise SourceError(
                    f"{data_file.path} and {data_files[0].path} differ in the partition column {min(odd)!r}; "
                    "give every file the same key=value folders"
                )
        names = [name for name in found[0] if name not in stored]
        fields = tuple(pa.field(name, _type_of(own[name] for own in found)) for name in names)
        return cls(fields, tuple(found))

    def __contains__(self, name: str) -> bool:
        return any(field.name == name for field in self.fields)

    def column(self, name: str, file: int, count: int) -> pa.ChunkedArray:
        kind = next(field.type for field in self.fields if field.name == name)
        return pa.chunked_array([pa.repeat(pa.scalar(self.values[file][name], pa.string()).cast(kind), count)], type=kind)


def _type_of(values: Iterable[str | None]) -> pa.DataType:
    known = [value for value in values if value is not None]
    return pa.int64() if known and all(_INTEGER.fullmatch(value) for value in known) else pa.string()
