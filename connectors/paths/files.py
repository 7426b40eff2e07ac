"""The files that a path, glob or folder stands for, all of one kind, in sorted path order."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

from pyarrow import fs

from connectors.edge import reading
from connectors.errors import SourceError
from connectors.paths.location import Location
from connectors.paths.marks import NAMES, above, between, marked, marks_of
from connectors.paths.names import KNOWN, FileKind, kind_of
from connectors.paths.pace import PacedHandler

_MAGIC = re.compile(r"[*?\[]")
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file of a source. ``relative`` is its path below the root that the user named, or its name: its suffixes say what it holds.

    ``stamp`` changes when it is replaced; None where nothing tells that, but reading it.
    """

    path: str
    relative: str
    size_bytes: int
    stamp: str | None

    @classmethod
    def of(cls, files: fs.FileSystem, info: fs.FileInfo, relative: str) -> DataFile:
        return cls(info.path, relative, int(info.size or 0), _stamp(files, info))

    def partitions(self) -> dict[str, str | None]:
        """Values that a hive-partitioned folder keeps in its names: ``year=2024/x.parquet`` gives ``{"year": "2024"}``."""
        pairs = [folder.split("=", 1) for folder in self.relative.split("/")[:-1] if "=" in folder.lstrip("=")]
        return {unquote(key): None if value == _HIVE_NULL else unquote(value) for key, value in pairs}


def is_glob(path: str) -> bool:
    return _MAGIC.search(path) is not None


def find(location: Location) -> tuple[FileKind, tuple[DataFile, ...]]:
    """Every file that the location stands for, and what kind they are. A path that exists is taken literally, glob characters or not.

    Folders are searched recursively; names that start with ``_`` or ``.`` are left out. Beside Parquet files all others are left out.
    Beside other tables text files (a README) are left out; two kinds of table in one folder are refused. Raises `SourceError` where there
    is nothing, or nothing of a known kind.
    """
    listed = _Listed(location.files)
    with reading(location.uri):
        info = location.files.get_file_info([location.path])[0]
        if info.type == fs.FileType.File:
            return _single(location, info)
        if info.type == fs.FileType.Directory:
            found, root, nothing = listed.below(info.path), info.path, "holds no file"
        elif info.type == fs.FileType.Unknown:  # a pipe, a socket, a device
            raise SourceError(f"{location.label} is no regular file; give the path of {KNOWN}")
        elif is_glob(location.path):
            root, found = _matches(listed, location.path)
            nothing = "matches no file"
        else:
            if location.is_web:  # whose files are "not found" too if the server does not answer
                _ask(location)
            raise SourceError(f"{location.label} does not exist; give the path of {KNOWN}")
    prefix = root.rstrip("/") + "/"
    is_whole = info.type == fs.FileType.Directory
    _refuse_tables(location, root, [entry.path.removeprefix(prefix) for entry in found], None if is_whole else listed)
    visible = {relative: entry for entry in found if not _is_hidden(relative := entry.path.removeprefix(prefix))}
    for entry in visible.values():
        location.check_file(entry.path)
    kind = _common_kind(location, list(visible), nothing)
    with reading(root):
        chosen = sorted(relative for relative in visible if kind_of(relative) is kind)
        return kind, tuple(DataFile.of(location.files, visible[relative], relative) for relative in chosen)


def _ask(location: Location) -> None:
    """Raise `OSError` where the server of an address does not answer. Arrow drops the cause of an error, so fsspec is asked."""
    handler: Any = getattr(location.files, "handler", None)
    try:
        if handler is not None:
            handler.fs.info(location.path)
    except FileNotFoundError as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from error


def _refuse_tables(location: Location, root: str, relatives: Sequence[str], listed: _Listed | None) -> None:
    """Raise `SourceError` for files of a table format: only the table's log says which files, and which of their rows, count.

    ``listed``: the folders that a glob was looked up in; None: all files below the root are known.
    """
    inner = marked(relatives)
    with reading(location.uri):
        found = (
            above(location.files, f"{root.rstrip('/')}/x") if inner is None else (inner[0], f"{root.rstrip('/')}/{inner[1]}".rstrip("/"))
        )
        if listed is not None and found is None:
            folders = (f"{root.rstrip('/')}/{one}" for one in between(relatives))
            tables = ((form, folder) for folder in folders if listed.may_be_table(folder) and (form := marks_of(location.files, folder)))
            found = next(tables, None)
    if found is not None:
        form, folder = found
        raise SourceError(
            f"{location.label} holds files of the {form} table {folder}, whose log says which of them count; give that folder"
        )


def _single(location: Location, info: fs.FileInfo) -> tuple[FileKind, tuple[DataFile, ...]]:
    location.check_file(info.path)
    path = info.path.partition("?")[0] if location.is_web else info.path  # a signed address has options
    name = PurePosixPath(path).name
    kind = kind_of(name)
    if kind is None:
        suffix = PurePosixPath(name).suffix or "a file without suffix"
        raise SourceError(f"{location.label} is of an unknown kind ({suffix}); known: {KNOWN}")
    return kind, (DataFile.of(location.files, info, name),)


def _common_kind(location: Location, names: Sequence[str], nothing: str) -> FileKind:
    example = {kind: name for name in sorted(names, reverse=True) if (kind := kind_of(name)) is not None}
    if FileKind.PARQUET in example:
        return FileKind.PARQUET
    tables = [kind for kind in example if kind is not FileKind.TEXT]
    if len(tables) > 1:
        raise SourceError(
            f"{location.label} holds {example[tables[0]]} ({tables[0]}) and {example[tables[1]]} ({tables[1]}); "
            "choose one kind with a glob such as 'folder/*.csv'"
        )
    if not example:
        raise SourceError(f"{location.label} {nothing} of a known kind (names that start with _ or . are left out); known: {KNOWN}")
    return tables[0] if tables else FileKind.TEXT


def _stamp(files: fs.FileSystem, info: fs.FileInfo) -> str | None:
    """A value that changes when a file is replaced, known without reading it: the time of change, or what fsspec knows; else None."""
    if info.mtime_ns is not None:
        # Object stores give the same time in seconds or finer, depending on whether the file was listed or asked for by name.
        return str(info.mtime_ns if isinstance(files, fs.LocalFileSystem) else info.mtime_ns // 10**9)
    handler = getattr(files, "handler", None)
    if isinstance(handler, PacedHandler):
        return handler.stamp(info.path)
    return str(handler.fs.ukey(info.path)) if isinstance(handler, fs.FSSpecHandler) else None


def _is_hidden(relative: str) -> bool:
    return any(part.startswith(("_", ".")) for part in relative.split("/"))


class _Listed:
    """Lists folders, and keeps what the listings tell of tables: on object stores each name asked for is a round trip."""

    def __init__(self, files: fs.FileSystem) -> None:
        self.files = files
        self._folders: set[str] = set()  # of which all names were seen
        self._marked: set[str] = set()  # which hold a name that a table has

    def entries(self, folder: str, *, recursive: bool = False) -> list[fs.FileInfo]:
        """What is in the folder; with ``recursive`` at any depth."""
        entries: list[fs.FileInfo] = self.files.get_file_info(fs.FileSelector(folder, recursive=recursive, allow_not_found=True))
        folder = folder.rstrip("/")
        self._folders.add(folder)
        for entry in entries:
            path = entry.path
            while len(path) > len(folder):  # not every file system lists the folders between
                path, _, name = path.rpartition("/")
                self._folders.add(path)
                if name in NAMES:
                    self._marked.add(path)
        return entries

    def below(self, folder: str) -> list[fs.FileInfo]:
        """All files, at any depth."""
        return [entry for entry in self.entries(folder, recursive=True) if entry.type == fs.FileType.File]

    def may_be_table(self, folder: str) -> bool:
        """False where its listing holds none of the names by which a table is known."""
        return folder not in self._folders or folder in self._marked


def _matches(listed: _Listed, pattern: str) -> tuple[str, list[fs.FileInfo]]:
    """The folder up to which the pattern is literal, and the files it matches; a folder that it matches gives all its files.

    Goes down one component at a time, so that a narrow pattern does not list a whole bucket.
    """
    root, *rest = re.split(r"/(?=[^/]*[*?\[])", pattern, maxsplit=1)
    root = root or "/"
    level = [fs.FileInfo(root, fs.FileType.Directory)] if rest else []
    for part in "".join(rest).split("/"):
        folders = [info.path for info in level if info.type == fs.FileType.Directory]
        level = list({info.path: info for folder in folders for info in _step(listed, folder, part)}.values())
    found: list[fs.FileInfo] = []
    for info in level:
        found += [info] if info.type == fs.FileType.File else listed.below(info.path)
    return root, found


def _step(listed: _Listed, folder: str, part: str) -> Iterator[fs.FileInfo]:
    """Files and folders one component further down; a name that exists as it is written is no pattern."""
    literal = listed.files.get_file_info([f"{folder.rstrip('/')}/{part}"])[0]
    if not is_glob(part) or literal.type != fs.FileType.NotFound:
        yield literal
    elif part == "**":
        yield fs.FileInfo(folder, fs.FileType.Directory)
        entries = listed.entries(folder, recursive=True)
        yield from (entry for entry in entries if entry.type == fs.FileType.Directory)
    else:
        entries = listed.entries(folder)
        yield from (entry for entry in entries if fnmatch.fnmatchcase(entry.base_name, part))
