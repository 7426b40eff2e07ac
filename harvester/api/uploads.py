"""Upload files in pieces, each with its checksum. An upload is named by the digest of its content, so that an interrupted one resumes."""

from __future__ import annotations

import glob
import hashlib
import os
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from harvester.api.errors import HarvesterError
from harvester.api.flow import Flow, Work, ask
from harvester.api.frames import safe_name

PIECE_BYTES = 8 << 20
LAST_S = 900.0  # for the last piece: the server then hashes the whole file
DIGEST = "x-content-sha256"
_GLOB = re.compile(r"[*?\[\]]")
_WRONG = re.compile(r"[*?\[\]:\\\x00-\x1f\x7f\ud800-\udfff]")  # the last: bytes that are not UTF-8
MAX_DEPTH, MAX_NAME_BYTES = 8, 220  # of a path below the folder that is uploaded, and of each name in it
_LOGS = ("_delta_log", "_versions", "metadata/*.metadata.json", "dataset_info.json")  # of table formats whose log says which files count


def upload(path: Path) -> Flow[str]:
    """Send a file, or the files of a folder or glob. Returns the address, ``upload:ID/NAME`` or ``upload:ID``.

    Content that the server has already is not sent again. Raises `HarvesterError` if there is no file, or one cannot be read or sent.
    """
    root, files = files_of(path)
    is_alone = files == [path]
    names = [safe_name(path.name)] if is_alone else [_relative(file, root) for file in files]
    digests: list[str] = yield Work(partial(_digests, files))
    if is_alone:
        return (yield from _send(path, digests[0], names[0], digests[0]))
    listed = "\n".join(f"{digest} {name}" for digest, name in zip(digests, names, strict=True))
    together = f"{safe_name(root.name)[:40].replace('.', '-')}.{hashlib.sha256(listed.encode()).hexdigest()}"
    for file, digest, name in zip(files, digests, names, strict=True):
        yield from _send(file, together, name, digest)
    return f"upload:{together}"


def files_of(path: Path) -> tuple[Path, list[Path]]:
    """Root folder, and the sorted files that a server would read at ``path``: one file, or those of a folder or glob.

    Raises `HarvesterError` if there is none, or if they belong to a table format whose log says which files count.
    """
    if path.is_file():
        return path.parent, [path]
    if path.is_dir():
        root = path.resolve()
        found = _files_in(root)
    else:
        parts = path.absolute().parts
        root = Path(*parts[: next((number for number, part in enumerate(parts) if _GLOB.search(part)), len(parts) - 1)])
        matched = [Path(name) for name in glob.glob(str(path.absolute()), recursive=True)]  # noqa: PTH207
        found = {file for one in matched for file in (_files_in(one) if one.is_dir() else {one})}
    for folder in {root, *root.parents, *(parent for file in found for parent in file.parents if parent.is_relative_to(root))}:
        marks = [str(mark.relative_to(folder)) for log in _LOGS for mark in folder.glob(log)]
        if marks:
            raise HarvesterError(
                f"{folder} is a table with a log ({marks[0]}), whose files mean nothing one by one; read it here and submit the frame, "
                "or submit an address that the server reads"
            )
    shown = [file for file in found if not any(part[0] in "._" for part in file.relative_to(root).parts)]
    if not shown:
        raise HarvesterError(f"no file at {path}; give the path of a file, a folder or a glob, or an address that the server reads")
    return root, sorted(shown)


def _files_in(folder: Path) -> set[Path]:
    """All files below ``folder``. Follows links, and visits each real folder once."""
    found, seen = set[Path](), set[str]()
    for base, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(base)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        found |= {Path(base, name) for name in names if Path(base, name).is_file()}
    return found


def _relative(file: Path, root: Path) -> str:
    """Path below ``root``, kept because partition folders become columns. Raises `HarvesterError` for one that the server would refuse."""
    inside = file.relative_to(root)
    if any(_WRONG.search(part) for part in inside.parts):
        shown = str(file).encode("utf-8", "backslashreplace").decode()
        raise HarvesterError(
            f"{shown} has one of * ? [ ] : \\, a control character or what is not UTF-8 in its name, and cannot be uploaded with others; "
            "rename it"
        )
    if len(inside.parts) > MAX_DEPTH:
        raise HarvesterError(f"{inside} is {len(inside.parts)} levels deep in {root}, and at most {MAX_DEPTH} are uploaded; move it up")
    for part in inside.parts:
        if (size := len(part.encode())) > MAX_NAME_BYTES:
            raise HarvesterError(f"the name {part} in {root} has {size} bytes, and at most {MAX_NAME_BYTES} are uploaded; shorten it")
    return inside.as_posix()


def _send(path: Path, upload_id: str, name: str, digest: str) -> Flow[str]:
    route = f"/api/uploads/{upload_id}/{quote(name)}"
    state: dict[str, Any] = yield from ask("GET", route)
    total = path.stat().st_size
    while not state["is_whole"]:
        offset = min(int(state["bytes"]), total)
        piece: bytes = yield Work(partial(_piece, path, offset))
        if not piece and offset < total:
            raise HarvesterError(
                f"{path} had {total:,} bytes and became shorter while it was uploaded; upload it again when nobody writes to it"
            )
        is_last = offset + len(piece) >= total
        params = {"offset": offset} | ({"last": True, "digest": digest} if is_last else {})
        headers = {DIGEST: hashlib.sha256(piece).hexdigest()}
        state = yield from ask("PUT", route, params=params, content=piece, headers=headers, timeout_s=LAST_S if is_last else 120.0)
    return str(state["uri"])


def _piece(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(PIECE_BYTES)
    except OSError as error:
        raise HarvesterError(f"cannot read {path}: {error.strerror}") from error


def _digests(files: Sequence[Path]) -> list[str]:
    return [digest_of(file) for file in files]


def digest_of(path: Path) -> str:
    """SHA-256 of a file, in hex; one piece is in memory."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise HarvesterError(f"cannot read {path}: {error.strerror}") from error
