"""One Parquet file, rewritten whole each time it has grown by a quarter, and at the end."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from connectors.base import Closing
from connectors.durable import publish, sweep
from connectors.edge import first_line
from connectors.errors import StorageError
from connectors.parquet.groups import GROUP_ROWS, grouped
from connectors.parquet.parts import Part

GROWTH = 1.25  # all writes together then cost five times the last one
_JOB = b"harvester.job"
_DIGEST = b"harvester.parts"


class RewrittenFile(Closing):
    """A `Target`: a Parquet file cannot grow, but it can be replaced in one step.

    Rows are in the order of the input, because parts are put in the order of their first rows. Their numbers do not tell it: a part that
    was split off a slice has a higher number than the rows behind it.

    The file's own footer says which parts it holds, so that nothing else needs to be remembered.
    """

    def __init__(self, path: Path, job: str) -> None:
        self._path = path
        self._job = job
        self._rows, self._digest = self._known()
        self._counts: dict[Part, int] = {}
        if path.parent.is_dir():
            sweep(path.parent)

    def update(self, parts: Sequence[Part], *, is_final: bool) -> int:
        digest = hashlib.sha256("\n".join(f"{part.name} {part.edition}" for part in parts).encode()).hexdigest()
        if not parts or (digest == self._digest and self._path.exists()):
            return self._rows
        if is_final or not self._rows or self._count(parts) >= self._rows * GROWTH:
            self._rows, self._digest = self._write(parts, digest), digest
        return self._rows

    def _count(self, parts: Sequence[Part]) -> int:
        """Rows of all parts; each footer is read once."""
        for part in parts:
            if part not in self._counts:
                self._counts[part] = part.rows
        return sum(self._counts[part] for part in parts)

    def _write(self, parts: Sequence[Part], digest: str) -> int:
        rows = 0
        parts = sorted(parts, key=lambda part: part.first_row)
        try:
            first = parts[0].read().schema
            schema = first.with_metadata({_JOB: self._job, _DIGEST: digest})
            with publish(self._path) as out, pq.ParquetWriter(out, schema, compression="zstd") as writer:
                for table in grouped(first, _batches(parts, first)):
                    writer.write_table(table.replace_schema_metadata(schema.metadata), row_group_size=GROUP_ROWS)
                    rows += table.num_rows
        except pa.ArrowException as error:
            raise StorageError(f"cannot write {self._path}: {first_line(error)}; check the parts of job {self._job}") from error
        return rows

    def _known(self) -> tuple[int, str | None]:
        if not self._path.exists():
            return 0, None
        footer = _footer(self._path)
        marks = (footer.metadata if footer else None) or {}
        if footer is None or marks.get(_JOB) != self._job.encode():
            raise StorageError(
                f"{self._path} is there already and does not hold the results of job {self._job}; move it away or name another file"
            )
        return int(footer.num_rows), marks[_DIGEST].decode()


def _batches(parts: Sequence[Part], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for part in parts:
        yield from part.read().cast(schema).to_batches()


def is_rewritten(path: Path) -> bool:
    """Whether a file is one that `RewrittenFile` wrote, for whichever job."""
    footer = _footer(path)
    return footer is not None and _JOB in (footer.metadata or {})


def _footer(path: Path) -> pq.FileMetaData | None:
    try:
        return pq.read_metadata(path)
    except (OSError, pa.ArrowException):
        return None
