"""Detects folders of a table format. Their files must not be read one by one: the table's log says which of them count."""

from __future__ import annotations

import re
from collections.abc import Iterable, Set
from enum import StrEnum
from pathlib import PurePosixPath

from pyarrow import fs


class TableFormat(StrEnum):
    DELTA = "Delta"
    ICEBERG = "Iceberg"
    LANCE = "Lance"
    HUDI = "Hudi"
    HUGGING_FACE = "Hugging Face"


_MARKS: tuple[tuple[TableFormat, re.Pattern[str]], ...] = (
    (TableFormat.DELTA, re.compile(r"^(?P<root>.*?)_delta_log/[^/]+")),
    (TableFormat.ICEBERG, re.compile(r"^(?P<root>.*?)metadata/([^/]*\.metadata\.json|version-hint\.text)$")),
    (TableFormat.LANCE, re.compile(r"^(?P<root>.*?)_versions/[^/]+\.manifest$")),
    (TableFormat.HUDI, re.compile(r"^(?P<root>.*?)\.hoodie/[^/]+")),
    (TableFormat.HUGGING_FACE, re.compile(r"^(?P<root>(.*/)?)(dataset_dict\.json|state\.json)$")),
)
_FOLDERS = {"_delta_log": TableFormat.DELTA, "_versions": TableFormat.LANCE, ".hoodie": TableFormat.HUDI}
NAMES = (*_FOLDERS, "metadata", "dataset_dict.json", "state.json", "dataset_info.json")  # of which a folder of a table holds some


def marked(relatives: Iterable[str]) -> tuple[TableFormat, str] | None:
    """The first table among paths below a folder, and where it lies below it (``""``: the folder itself). The outermost wins."""
    names = set(relatives)
    found: list[tuple[int, str, TableFormat]] = []
    for relative in names:
        for form, mark in _MARKS:
            match = mark.match(relative)
            if match and (form is not TableFormat.HUGGING_FACE or _is_saved(relative, names)):
                root = match["root"].rstrip("/")
                found.append((root.count("/") + bool(root), root, form))
    if not found:
        return None
    _, root, form = min(found)
    return form, root


def _is_saved(relative: str, names: Set[str]) -> bool:
    """``state.json`` is a common name: only beside ``dataset_info.json`` does it mark a data set saved to disk."""
    path = PurePosixPath(relative)
    return path.name == "dataset_dict.json" or str(path.with_name("dataset_info.json")) in names


def marks_of(files: fs.FileSystem, folder: str) -> TableFormat | None:
    """The table format of a folder itself; None for a plain one. Looks up a few names only, however many files it holds."""
    infos = files.get_file_info([f"{folder.rstrip('/')}/{name}" for name in NAMES])
    there = {name for name, info in zip(NAMES, infos, strict=True) if info.type != fs.FileType.NotFound}
    for name, form in _FOLDERS.items():
        if name in there:
            return form
    if "metadata" in there:
        inner = files.get_file_info(fs.FileSelector(f"{folder.rstrip('/')}/metadata", allow_not_found=True))
        if any(entry.base_name.endswith(".metadata.json") or entry.base_name == "version-hint.text" for entry in inner):
            return TableFormat.ICEBERG
    if "dataset_dict.json" in there or {"state.json", "dataset_info.json"} <= there:
        return TableFormat.HUGGING_FACE
    return None


def between(relatives: Iterable[str]) -> list[str]:
    """Folders between a root and its files, outermost first. Partition folders (``key=value``) are left out: they are their table's."""
    folders = {str(parent) for relative in relatives for parent in PurePosixPath(relative).parents}
    return sorted((one for one in folders - {"."} if "=" not in one.rpartition("/")[2]), key=lambda one: (one.count("/"), one))


def above(files: fs.FileSystem, path: str) -> tuple[TableFormat, str] | None:
    """The table that contains ``path`` (a folder, or the literal part of a glob), and the table's folder."""
    for folder in (str(parent) for parent in PurePosixPath(path).parents):
        if folder in ("/", ".", ""):
            return None
        form = marks_of(files, folder)
        if form is not None:
            return form, folder
    return None
