"""The Parquet files that a path, glob or folder stands for, in sorted path order."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote

from pyarrow import fs

from connectors.edge import reading
from connectors.location import Location
from harvester.errors import SourceError

SUFFIXES = (".parquet", ".pq", ".parq")
_NAMES = ", ".join(f"*{suffix}" for suffix in SUFFIXES)
_MAGIC = re.compile(r"[*?\[]")
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file of a source. ``relative`` is its path below the root that the user named, ``stamp`` changes when it is replaced."""

    path: str
    relative: str
    size_bytes: int
    stamp: str

    @classmethod
    def of(cls, files: fs.FileSystem, info: fs.FileInfo, relative: str) -> DataFile:
        return cls(info.path, relative, int(info.size or 0), _stamp(files, info))

    def partitions(self) -> dict[str, str | None]:
        """Values that a hive-partitioned folder keeps in its names: ``year=2024/x.parquet`` gives ``{"year": "2024"}``."""
        pairs = [folder.split("=", 1) for folder in self.relative.split("/")[:-1] if "=" in folder.lstrip("=")]
        return {unquote(key): None if value == _HIVE_NULL else unquote(value) for key, value in pairs}


def is_glob(path: str) -> bool:
    return _MAGIC.search(path) is not None


def suffix_of(name: str) -> str:
    """The suffix that marks a Parquet file, or nothing."""
    return next((suffix for suffix in SUFFIXES if name.lower().endswith(suffix)), "")


def find(location: Location) -> tuple[DataFile, ...]:
    """Every file that the location stands for. A path that exists is taken as it is, whatever glob signs are in it.

    Folders are searched to the bottom for ``*.parquet``, ``*.pq`` and ``*.parq``; names that start with ``_`` or ``.`` are left out.
    Raises `SourceError` where there is nothing.
    """
    with reading(location.uri):
        info = location.files.get_file_info([location.path])[0]
        if info.type == fs.FileType.File:
            return (DataFile.of(location.files, info, info.base_name),)
        if info.type == fs.FileType.Directory:
            found, root, nothing = _below(location.files, info.path), info.path, "holds no Parquet file"
        elif is_glob(location.path):
            root, found = _matches(location.files, location.path)
            nothing = "matches no Parquet file"
        else:
            raise SourceError(f"{location.label} does not exist; give the path of a Parquet file, glob or folder")
    chosen = _chosen(location.files, root, found)
    if not chosen:
        raise SourceError(f"{location.label} {nothing} ({_NAMES}; names that start with _ or . are left out); check the path")
    return chosen


def _stamp(files: fs.FileSystem, info: fs.FileInfo) -> str:
    """What tells two editions of a file apart without reading it: the time of change, or what fsspec holds for it."""
    if info.mtime_ns is not None:
        # Object stores give the same time in seconds or finer, depending on whether the file was listed or asked for by name.
        return str(info.mtime_ns if isinstance(files, fs.LocalFileSystem) else info.mtime_ns // 10**9)
    handler = getattr(files, "handler", None)
    return str(handler.fs.ukey(info.path)) if isinstance(handler, fs.FSSpecHandler) else ""


def _chosen(files: fs.FileSystem, root: str, found: list[fs.FileInfo]) -> tuple[DataFile, ...]:
    prefix = root.rstrip("/") + "/"
    by_relative = {info.path.removeprefix(prefix): info for info in found}
    with reading(root):
        return tuple(DataFile.of(files, by_relative[path], path) for path in sorted(by_relative) if _wanted(path))


def _wanted(relative: str) -> bool:
    return suffix_of(relative) != "" and not any(part.startswith(("_", ".")) for part in relative.split("/"))


def _below(files: fs.FileSystem, folder: str) -> list[fs.FileInfo]:
    entries = files.get_file_info(fs.FileSelector(folder, recursive=True, allow_not_found=True))
    return [entry for entry in entries if entry.type == fs.FileType.File]


def _matches(files: fs.FileSystem, pattern: str) -> tuple[str, list[fs.FileInfo]]:
    """The folder up to which the pattern is literal, and the files it matches; a folder that it matches gives all its files.

    Goes down one component at a time, so that a narrow pattern does not list a whole bucket.
    """
    root, *rest = re.split(r"/(?=[^/]*[*?\[])", pattern, maxsplit=1)
    root = root or "/"
    level = [root] if rest else []
    for part in "".join(rest).split("/"):
        level = list(dict.fromkeys(path for folder in level for path in _step(files, folder, part)))
    found: list[fs.FileInfo] = []
    for info in files.get_file_info(level):
        found += [info] if info.type == fs.FileType.File else _below(files, info.path)
    return root, found


def _step(files: fs.FileSystem, folder: str, part: str) -> Iterator[str]:
    """Paths one component further down; a name that exists as it is written is no pattern."""
    literal = f"{folder.rstrip('/')}/{part}"
    if not is_glob(part) or files.get_file_info([literal])[0].type != fs.FileType.NotFound:
        yield literal
    elif part == "**":
        yield folder
        entries = files.get_file_info(fs.FileSelector(folder, recursive=True, allow_not_found=True))
        yield from (entry.path for entry in entries if entry.type == fs.FileType.Directory)
    else:
        entries = files.get_file_info(fs.FileSelector(folder, allow_not_found=True))
        yield from (entry.path for entry in entries if fnmatch.fnmatchcase(entry.base_name, part))
