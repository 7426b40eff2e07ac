"""A Hugging Face data set that was saved to disk: Arrow files, named by ``state.json``, for each split."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Any

from pyarrow import fs

from connectors.base import listed
from connectors.edge import reading
from connectors.errors import SourceError
from connectors.lakehouse.inside import check_folder
from connectors.paths.files import DataFile
from connectors.paths.location import Location

MAX_STATE_BYTES = 16 << 20


def saved_files(location: Location, split: str | None) -> tuple[DataFile, ...]:
    """The Arrow files of a split, in order; of the data set itself where it has none.

    Raises `SourceError` where a split must be chosen, and if the row order is kept in an index file.
    """
    check_folder(location)
    folder = location.path
    if location.files.get_file_info([f"{folder}/dataset_dict.json"])[0].type == fs.FileType.File:
        splits = [str(name) for name in _json(location, f"{folder}/dataset_dict.json").get("splits", [])]
        if split is None or split not in splits:
            told = "choose one with --table" if split is None else f"it has no split {split!r}"
            raise SourceError(f"{location.label} is a Hugging Face data set with the splits {listed(splits)}; {told}")
        if not _is_plain(split):
            raise SourceError(f"{location.label}: its dataset_dict.json names the split {split!r}, not a folder beside it; save it again")
        folder = f"{folder}/{split}"
    elif split is not None:
        raise SourceError(f"{location.label} is a Hugging Face data set without splits; remove --table {split}")
    state = _json(location, f"{folder}/state.json")
    if state.get("_indices_data_files"):
        raise SourceError(f"{location.label} keeps the order of its rows in an index file; save it again after flatten_indices()")
    names = [str(entry["filename"]) for entry in state.get("_data_files") or []]
    if not names or not all(map(_is_plain, names)):
        raise SourceError(f"{location.label}: its state.json names {names[:1] or 'no file'}, not files beside it; save it again")
    with reading(location.uri, "a Hugging Face data set"):
        infos = location.files.get_file_info([f"{folder}/{name}" for name in names])
    missing = [name for name, info in zip(names, infos, strict=True) if info.type != fs.FileType.File]
    if missing:
        raise SourceError(f"{location.label} lacks the file {missing[0]}, which its state.json names; save it again")
    for info in infos:
        location.check_file(info.path)
    return tuple(DataFile.of(location.files, info, name) for info, name in zip(infos, names, strict=True))


def _is_plain(name: str) -> bool:
    """Whether the name leads to nothing but an entry of the folder that it is looked up in."""
    return name not in ("", "..") and PurePosixPath(name).name == name


def _json(location: Location, path: str) -> dict[str, Any]:
    with reading(path, "a Hugging Face data set"), location.files.open_input_stream(path) as stream:
        raw = bytes(stream.read(MAX_STATE_BYTES))
    try:
        value = json.loads(raw)
    except ValueError as error:
        raise SourceError(f"{path} is not JSON: {error}; save the data set again") from error
    if not isinstance(value, dict):
        raise SourceError(f"{path} is no JSON object; save the data set again")
    return value
