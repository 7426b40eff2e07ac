"""A folder of this machine as a cache of a place that other machines reach too: a bucket's prefix, or a shared folder."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
from pyarrow import fs

from connectors.durable import publish, storage_error
from connectors.edge import first_line, shown
from connectors.errors import HarvesterError, StorageError
from connectors.paths.location import Location, locate

AT_ONCE = 8  # files on their way
CHUNK_BYTES = 4 << 20
WHOLE_BYTES = 64 << 20  # up to here a file is read before it is sent, so that a read error replaces nothing in the storage
UNSETTLED_S = 2.0  # S3 tells times in whole seconds: while a file is so young, two editions of it may have the same


class _Replaced(Exception):
    """A file was replaced or removed while it was read. ``info``: of what is there now."""

    def __init__(self, info: fs.FileInfo) -> None:
        self.info = info


class Mirror:
    """Keeps files of the folder ``root`` under the same names in the storage at ``uri``. The storage counts; local files are copies.

    A file in the storage is complete or absent, and is replaced atomically. A copy with the same size and time is taken as current.
    Every method raises `StorageError`. Call them from threads, several at once if need be. The connection is made at the first use, so
    that a process that forks before has nothing open.
    """

    def __init__(self, root: Path, uri: str) -> None:
        self.root = root
        self.uri = uri

    def __str__(self) -> str:
        return shown(self.uri)

    @property
    def folder(self) -> Path | None:
        """The storage as a folder, if it is one of this machine; else None."""
        return self._place.local if self.uri.startswith(("/", "file:")) else None

    def address(self, path: Path) -> str:
        """Address of a file or folder in the storage, in a form that may be shown."""
        base, mark, options = self.uri.partition("?")
        return shown(f"{base.rstrip('/')}/{self._name(path)}{mark}{options}")

    def send(self, path: Path, *, source: Path | None = None) -> None:
        """Write the local file ``path`` to the storage, or under its name the content of ``source``."""
        source = source or path
        try:
            if source.stat().st_size <= WHOLE_BYTES:
                self.put(path, source.read_bytes())
            else:
                with source.open("rb") as file, self._writing(path) as target:
                    shutil.copyfileobj(file, target, CHUNK_BYTES)
        except OSError as error:  # of this machine: those of the storage are mapped already
            raise storage_error("read", source, error) from error

    def put(self, path: Path, data: bytes) -> None:
        """Write ``data`` to the storage, under the name of ``path``."""
        with self._writing(path) as target:
            target.write(data)

    def send_folder(self, folder: Path) -> int:
        """Send the files below ``folder`` but for those that are being written. Returns how many."""
        found = [path for path in folder.rglob("*") if path.is_file() and not _is_hidden(path.relative_to(folder))]
        self._all(self.send, found)
        return len(found)

    def read(self, path: Path) -> bytes | None:
        """Content of the file in the storage; None where there is none."""
        while True:
            with self._mapped("read", path):
                (info,) = self._place.files.get_file_info([self._there(path)])
                if info.type is not fs.FileType.File:
                    return None
                try:
                    with self._place.files.open_input_stream(info.path, compression=None) as file:
                        found = bytes(file.read())
                except FileNotFoundError:
                    return None
            with suppress(_Replaced):
                self._check_same(path, info)
                return found

    def fetch(self, path: Path) -> bool:
        """Make the local file equal to the one in the storage. Where that has none, the local one is removed and this is False."""
        with self._mapped("read", path):
            (info,) = self._place.files.get_file_info([self._there(path)])
        if info.type is fs.FileType.File and self._bring(path, info):
            return True
        path.unlink(missing_ok=True)
        return False

    def fetch_folder(self, folder: Path, suffix: str = "") -> list[Path]:
        """Fetch the files below ``folder`` whose names end in ``suffix``. Returns their local paths, sorted.

        Local files that the storage lacks stay: they may be about to be sent.
        """
        found = {self._here(info): info for info in self._listed(folder) if info.path.endswith(suffix)}
        self._all(lambda path: self._bring(path, found[path]), list(found))
        return sorted(found)

    def has(self, path: Path) -> bool:
        """Whether the storage has a file or folder of that name."""
        with self._mapped("look for", path):
            (info,) = self._place.files.get_file_info([self._there(path)])
        return info.type is not fs.FileType.NotFound

    def names(self, folder: Path) -> set[str]:
        """Names of the files and folders directly in ``folder``, in the storage."""
        return {info.base_name for info in self._listed(folder, of=(fs.FileType.File, fs.FileType.Directory), recursive=False)}

    def remove(self, path: Path) -> None:
        """Remove a file from the storage, if there is one."""
        with self._mapped("remove", path), self._despite_markers(path):
            self._place.files.delete_file(self._there(path))

    def remove_folder(self, folder: Path) -> None:
        """Remove all files below ``folder`` from the storage."""
        with self._mapped("remove", folder), self._despite_markers(folder):
            self._place.files.delete_dir(self._there(folder))

    @contextmanager
    def _despite_markers(self, path: Path) -> Iterator[None]:
        """Ignore an error after a removal that worked: Arrow then makes empty objects as folder markers, which some servers refuse."""
        try:
            yield
        except FileNotFoundError:
            pass
        except OSError:
            (info,) = self._place.files.get_file_info([self._there(path)])
            if info.type is fs.FileType.File or self._listed(path):
                raise

    @cached_property
    def _place(self) -> Location:
        return locate(self.uri)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _there(self, path: Path) -> str:
        return f"{self._place.path.rstrip('/')}/{self._name(path)}"

    def _here(self, info: fs.FileInfo) -> Path:
        return self.root / str(info.path).removeprefix(f"{self._place.path.rstrip('/')}/")

    def _listed(self, folder: Path, of: tuple[fs.FileType, ...] = (fs.FileType.File,), *, recursive: bool = True) -> list[fs.FileInfo]:
        with self._mapped("list", folder):
            selector = fs.FileSelector(self._there(folder), allow_not_found=True, recursive=recursive)
            found = [info for info in self._place.files.get_file_info(selector) if info.type in of]
            # Arrow reads no time such as 12:00:01.5Z, which rclone's server writes in lists; the answer for one file has whole seconds.
            untimed = [info.path for info in found if info.type is fs.FileType.File and not info.mtime_ns]
            told = {info.path: info for info in self._place.files.get_file_info(untimed)} if untimed else {}
        found = [info for info in (told.get(info.path, info) for info in found) if info.type in of]
        return [info for info in found if not _is_hidden(self._here(info).relative_to(folder))]

    def _bring(self, path: Path, info: fs.FileInfo) -> bool:
        """Fetch a file unless the local copy is current. False where it was removed meanwhile."""
        with suppress(FileNotFoundError):
            here = path.stat()
            if (here.st_size, here.st_mtime_ns) == (info.size, info.mtime_ns):
                return True
        while True:
            try:
                return self._copied(path, info)
            except _Replaced as replaced:
                info = replaced.info

    def _copied(self, path: Path, info: fs.FileInfo) -> bool:
        """Fetch a file. Raises `_Replaced` if it changed: then Arrow, which trusts the length it got first, may have read garbage."""
        is_settled = time.time() - info.mtime_ns / 1e9 > UNSETTLED_S
        with self._mapped("read", path):
            try:
                source = self._place.files.open_input_stream(info.path, compression=None)
            except FileNotFoundError:
                return False
        with source, publish(path) as file:
            while piece := self._piece(source, path):
                file.write(piece)
            file.flush()
            self._check_same(path, info)
            if is_settled:
                os.utime(file.fileno(), ns=(info.mtime_ns, info.mtime_ns))
        return True

    def _check_same(self, path: Path, info: fs.FileInfo) -> None:
        with self._mapped("read", path):
            (now,) = self._place.files.get_file_info([info.path])
        is_later = now.type is not fs.FileType.File or abs(now.mtime_ns - info.mtime_ns) >= 10**9  # some tell finer times in a list
        if is_later or now.size != info.size:
            raise _Replaced(now)

    def _piece(self, source: Any, path: Path) -> bytes:
        with self._mapped("read", path):
            return bytes(source.read(CHUNK_BYTES))

    def _all(self, work: Any, paths: list[Path]) -> None:
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="mirror") as pool:
            for _ in pool.map(work, paths):
                pass

    @contextmanager
    def _writing(self, path: Path) -> Iterator[IO[bytes]]:
        """A file to write to; it is in the storage once the block has ended without error."""
        with self._mapped("write", path):
            files, there = self._place.files, self._there(path)
            if isinstance(files, fs.LocalFileSystem):
                with publish(Path(there)) as file:
                    yield file
                return
            target = files.open_output_stream(there, compression=None)
            try:
                yield target
            except BaseException:  # closing it publishes the file, complete or not
                with suppress(Exception):
                    target.close()
                    files.delete_file(there)
                raise
            target.close()

    @contextmanager
    def _mapped(self, doing: str, path: Path) -> Iterator[None]:
        try:
            yield
        except HarvesterError:
            raise
        except (OSError, pa.ArrowException) as error:
            raise StorageError(
                f"cannot {doing} {self.address(path)}: {shown(first_line(error))[:300]}; check that the storage can be reached, "
                "and the credentials of this machine for it"
            ) from error


def _is_hidden(path: Path) -> bool:
    """Whether it is being written, or set aside: names that begin with a dot."""
    return any(part.startswith(".") for part in path.parts)
