"""The columns that a hive-partitioned folder keeps in its names (``year=2024/part-0.parquet``)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from connectors.errors import SourceError
from connectors.paths.files import DataFile

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
