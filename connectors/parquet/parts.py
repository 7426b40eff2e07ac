"""Results as Parquet parts in a local folder: each part appears whole and durable, with its metadata in the footer."""

from __future__ import annotations

import errno
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from connectors.durable import publish, storage_error, sweep, sync_folder
from connectors.edge import first_line
from connectors.errors import DamageError, StorageError

SUFFIX = ".parquet"
ASIDE = ".damaged"  # added to the file name of a part that was put aside
_PREFIX = b"harvester."  # keeps a part's metadata apart from what Arrow and pandas keep in the same place
_CHECKSUM = _PREFIX + b"crc32"  # of the other metadata: Parquet's own checksums are of pages, not of the footer
_AT_ONCE = 4
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Part:
    """A part as it stands now. ``edition`` changes when it is written again."""

    name: str
    edition: str
    path: Path

    @property
    def rows(self) -> int:
        return int(_footer(self.path).num_rows)

    @property
    def first_row(self) -> int:
        """The smallest ``row_id``, from the footer; 0 where that says none. Raises `StorageError` and `DamageError`."""
        footer = _footer(self.path)
        groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
        chunks = [group.column(index) for group in groups for index in range(group.num_columns)]
        told = [chunk.statistics for chunk in chunks if chunk.path_in_schema == "row_id"]
        return min((int(one.min) for one in told if one is not None and one.has_min_max), default=0)

    @property
    def schema(self) -> pa.Schema:
        """Without the metadata of the sink. Raises `StorageError` and `DamageError`."""
        with _mapped(self.path):
            return pq.read_schema(self.path).remove_metadata()

    def read(self) -> pa.Table:
        """Its rows, of this edition or a later one; without the metadata of the sink. Raises `StorageError`."""
        return _read(self.path).replace_schema_metadata(None)


class PartsSink:
    """A `Sink` over ``folder``: the part ``part-000003`` is the file ``part-000003.parquet``. The first write makes the folder.

    Several processes may write at once, to the same part too: the last one wins, and readers see one or the other. Each page has a
    checksum, and so has the metadata; `read` and `metadata` check them and raise `DamageError`.
    """

    def __init__(self, folder: Path, publishing: Callable[[Path], AbstractContextManager[BinaryIO]] = publish) -> None:
        """``publishing``: makes the file of a part, as `connectors.durable.publish` does."""
        self._folder = folder
        self._publishing = publishing

    def path(self, name: str) -> Path:
        """The file of a part. ``name`` is letters, digits, ``.``, ``_`` and ``-``, without the suffix."""
        assert _NAME.fullmatch(name), f"not a part name: {name!r}"
        assert not name.endswith(SUFFIX), f"a part name has no suffix: {name!r}"
        return self._folder / f"{name}{SUFFIX}"

    def write(self, name: str, table: pa.Table, metadata: Mapping[str, str]) -> None:
        own = {_PREFIX + key.encode(): value.encode() for key, value in metadata.items()}
        marked = table.replace_schema_metadata({**(table.schema.metadata or {}), **own, _CHECKSUM: _checksum(own)})
        with self._publishing(self.path(name)) as file:
            pq.write_table(marked, file, compression="zstd", write_page_checksum=True)

    def metadata(self, name: str) -> Mapping[str, str] | None:
        try:
            found = _footer(self.path(name)).metadata or {}
        except FileNotFoundError:
            return None
        own = {key: value for key, value in found.items() if key.startswith(_PREFIX)}
        told = own.pop(_CHECKSUM, None)  # None: of a version that wrote none
        if told is not None and told != _checksum(own):
            raise _damaged(self.path(name), "its metadata does not fit its checksum")
        return {key.removeprefix(_PREFIX).decode(): value.decode() for key, value in own.items()}

    def read(self, name: str) -> pa.Table:
        path = self.path(name)
        with _there(path):
            table = _read(path)
        rest = {key: value for key, value in (table.schema.metadata or {}).items() if not key.startswith(_PREFIX)}
        return table.replace_schema_metadata(rest or None)

    def stream(self) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Schema and batches of all rows, in the order of `names`; no columns where there is no part. One part is in memory.

        A column that only some parts have, as those of another version may, is null in the rows of the others. Raises `StorageError` and
        `DamageError`, also while the batches are read.
        """
        names = list(self.names())
        schema = pa.unify_schemas([pa.schema([]), *map(self._schema, names)], promote_options="permissive")
        return schema, self._batches(names, schema)

    def _schema(self, name: str) -> pa.Schema:
        path = self.path(name)
        with _there(path), _mapped(path):
            return pq.read_schema(path).remove_metadata()

    def _batches(self, names: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        columns = pa.Table.from_batches([], schema)
        for name in names:
            table = self.read(name).replace_schema_metadata(None)
            yield from pa.concat_tables([columns, table], promote_options="permissive").to_batches()

    def put_aside(self, name: str) -> None:
        path = self.path(name)
        try:
            path.replace(path.with_name(path.name + ASIDE))
            sync_folder(self._folder)
        except OSError as error:
            raise storage_error("move", path, error) from error

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

    def check(self) -> None:
        """Read every part against its checksums. Raises `DamageError` for the first that is damaged."""
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="parts") as pool:
            for _ in pool.map(lambda part: _check(part.path), self.parts()):
                pass

    def sweep(self) -> tuple[Path, ...]:
        """Remove half-written files of dead writers; returns their paths. Safe while others write."""
        try:
            return sweep(self._folder)
        except OSError as error:
            raise storage_error("clean", self._folder, error) from error


def read_batches(path: Path, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
    """A part's columns, ``rows`` at a time, checked. Raises `StorageError` and `DamageError`."""
    with _mapped(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
        yield from file.iter_batches(rows, columns=list(columns))


def _check(path: Path) -> None:
    with suppress(FileNotFoundError), _mapped(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
        for _ in file.iter_batches():
            pass


def _footer(path: Path) -> pq.FileMetaData:
    with _mapped(path):
        return pq.read_metadata(path)


def _read(path: Path) -> pa.Table:
    with _mapped(path):
        return pq.ParquetFile(path, page_checksum_verification=True).read()


@contextmanager
def _there(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise StorageError(f"part {path} does not exist; it was not written yet, or was removed") from error


@contextmanager
def _mapped(path: Path) -> Iterator[None]:
    """Map errors to ours, except `FileNotFoundError`. A page that fails its checksum raises an `OSError` without errno.

    A sector that the disk cannot read is damage too: it stays unreadable, and the part can be computed again.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno not in (None, 0, errno.EIO):
            raise storage_error("read", path, error) from error
        raise _damaged(path, first_line(error)) from error


def _checksum(own: Mapping[bytes, bytes]) -> bytes:
    return b"%08x" % zlib.crc32(repr(sorted(own.items())).encode())


def _damaged(path: Path, how: str) -> DamageError:
    return DamageError(f"the part {path} is damaged: {how}; stop the server and run: harvester repair")
