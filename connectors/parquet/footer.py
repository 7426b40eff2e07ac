"""What the footers of Parquet files say: their columns and how their rows are cut into groups."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from connectors.edge import reading
from connectors.errors import SourceError
from connectors.paths.files import DataFile
from connectors.request import check_unique

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
        footer = Footer(parquet.schema_arrow, tuple((int(group.num_rows), int(group.total_byte_size)) for group in groups))
    check_unique(footer.schema.names, data_file.path)
    return footer


def common_schema(data_files: Sequence[DataFile], footers: Sequence[Footer]) -> pa.Schema:
    """The columns that all files hold, in the order of the first file. Raises `SourceError` naming the file and column that differ.

    A column that is only null in some file has the type that it has elsewhere: writers cannot know better.
    """
    first, start = footers[0].schema, data_files[0].path
    types = {name: first.field(name).type for name in first.names}
    for data_file, footer in zip(data_files[1:], footers[1:], strict=True):
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
    odd = [name for name in first.names if name not in other.names]
    new = [name for name in other.names if name not in first.names]
    if odd or new:
        what = f"has no column {odd[0]!r}, which {start} has" if odd else f"has a column {new[0]!r}, which {start} has not"
        raise SourceError(f"{path} {what}; write the files with one schema, or submit them as separate jobs")
