"""Results as Parquet parts in a local folder: each part appears whole and durable, with what is known of it in its footer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from connectors.durable import publish, storage_error, sweep
from connectors.edge import first_line
from connectors.errors import StorageError

SUFFIX = ".parquet"
_PREFIX = b"harvester."  # keeps a part's metadata apart from what Arrow and pandas keep in the same place
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Part:
    """A part as it stands now. ``edition`` changes when it is written again."""

    name: str
    edition: str
    path: Path

    @property
    def rows(self) -> int:
        return int(self._opened().metadata.num_rows)

    def read(self) -> pa.Table:
        """Its rows, of this edition or a later one; without the metadata of the sink. Raises `StorageError`."""
        table = self._opened().read()
        return table.replace_schema_metadata(None)

    def _opened(self) -> pq.ParquetFile:
        try:
            return pq.ParquetFile(self.path)
        except (OSError, pa.ArrowException) as error:
            raise _unreadable(self.path, error) from error


class PartsSink:
    """A `Sink` over ``folder``: the part ``part-000003`` is the file ``part-000003.parquet``. The first write makes the folder.

    Several processes may write at once, to the same part too: the last one wins, and readers see one or the other.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, name: str) -> Path:
        """The file of a part. ``name`` is letters, digits, ``.``, ``_`` and ``-``, without the suffix."""
        assert _NAME.fullmatch(name), f"not a part name: {name!r}"
        assert not name.endswith(SUFFIX), f"a part name has no suffix: {name!r}"
        return self._folder / f"{name}{SUFFIX}"

    def write(self, name: str, table: pa.Table, metadata: Mapping[str, str]) -> None:
        own = {_PREFIX + key.encode(): value.encode() for key, value in metadata.items()}
        marked = table.replace_schema_metadata({**(table.schema.metadata or {}), **own})
        with publish(self.path(name)) as file:
            pq.write_table(marked, file, compression="zstd")

    def metadata(self, name: str) -> Mapping[str, str] | None:
        try:
            found = pq.read_metadata(self.path(name)).metadata
        except FileNotFoundError:
            return None
        except (OSError, pa.ArrowException) as error:
            raise _unreadable(self.path(name), error) from error
        return {key.removeprefix(_PREFIX).decode(): value.decode() for key, value in (found or {}).items() if key.startswith(_PREFIX)}

    def read(self, name: str) -> pa.Table:
        path = self.path(name)
        try:
            table = pq.ParquetFile(path).read()
        except FileNotFoundError as error:
            raise StorageError(f"part {path} does not exist; it was not written yet, or was removed") from error
        except (OSError, pa.ArrowException) as error:
            raise _unreadable(path, error) from error
        rest = {key: value for key, value in (table.schema.metadata or {}).items() if not key.startswith(_PREFIX)}
        return table.replace_schema_metadata(rest or None)

    def names(self) -> Iterator[str]:
        """In sorted order; none where the folder is not there yet."""
        try:
            found = sorted(path.name.removesuffix(SUFFIX) for path in self._folder.glob(f"*{SUFFIX}"))
        except OSError as error:
            raise storage_error("list", self._folder, error) from error
        yield from (name for name in found if _NAME.fullmatch(name))

    def parts(self) -> list[Part]:
        """All parts with their editions, in the order of `names`. Asks the file system only, so many parts cost little."""
        found = []
        for name in self.names():
            with suppress(FileNotFoundError):
                stat = self.path(name).stat()
                found.append(Part(name, f"{stat.st_ino}-{stat.st_mtime_ns}-{stat.st_size}", self.path(name)))
        return found

    def sweep(self) -> tuple[Path, ...]:
        """Remove what writers that died have left half written; returns those files. Safe while others write."""
        try:
            return sweep(self._folder)
        except OSError as error:
            raise storage_error("clean", self._folder, error) from error


def _unreadable(path: Path, error: Exception) -> StorageError:
    if isinstance(error, OSError) and error.errno:
        return storage_error("read", path, error)
    return StorageError(f"the part {path} is damaged: {first_line(error)}; remove it and resume the job, which writes it again")
