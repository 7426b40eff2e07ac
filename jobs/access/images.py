"""Images of rows: turns a cell into the URL of the image in a chat message. Files are read under the access rules of the job's source."""

from __future__ import annotations

import base64
import binascii
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from connectors.credentials import masked
from connectors.errors import SourceError
from connectors.paths.rules import SourceRules
from connectors.text import TextProblem
from jobs.access.media import is_fetched
from jobs.engine import RowError

BAD_IMAGE = "bad_image"  # error code of a row
# First bytes of a file, by media type. A WebP file has its mark behind the length.
_MARKS = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/bmp": (b"BM",),
    "image/tiff": (b"II*\x00", b"MM\x00*"),
}
KNOWN = "PNG, JPEG, GIF, WebP, BMP or TIFF"
_GLOB = re.compile(r"[*?\[]")
_SHOWN_CHARS = 120


@dataclass(frozen=True, slots=True)
class ImageBounds:
    """``hosts``: whose http and https addresses may be fetched; none by default."""

    max_bytes: int = 20 << 20
    hosts: tuple[str, ...] = ()


class ImageReader:
    """Images of one job, whose source is at ``uri`` and may be read by ``rules``; None: all that this process may read."""

    def __init__(self, uri: str, rules: SourceRules | None, bounds: ImageBounds) -> None:
        self._folder = source_folder(uri)
        self._rules = rules
        self._bounds = bounds

    def address(self, column: str, cell: object) -> str:
        """A data: URL of what the cell holds or names, or an address at an allowed host. Reads the file, so call it from a thread.

        ``cell``: bytes, a path, an address, or a struct with ``bytes`` and ``path``. Raises `RowError` with `BAD_IMAGE`.
        """
        try:
            return self._address(_inner(cell))
        except (SourceError, OSError, ValueError) as error:
            told = error.message if isinstance(error, SourceError) else _cause(error)
            raise RowError(BAD_IMAGE, f"image column {column}: {told}") from error

    def _address(self, cell: object) -> str:
        if isinstance(cell, TextProblem):
            raise ValueError(cell.message)
        if isinstance(cell, bytes):
            return self._embedded(cell)
        if not isinstance(cell, str) or not cell.strip():
            raise ValueError("there is no image; give bytes, a path or an address")
        if cell[:5].lower() == "data:":
            return self._embedded(self._decoded(cell))
        if "://" not in cell:
            return self._embedded(self._file(cell))
        if not is_fetched(cell, self._bounds.hosts):
            raise ValueError(
                f"{masked(cell)[:_SHOWN_CHARS]} is not fetched by this server; list its host under engine.allowed_media_domains in the "
                "server's config"
            )
        return cell

    def _embedded(self, content: bytes) -> str:
        self._check_bytes(len(content))
        return f"data:{media_type(content)};base64,{base64.b64encode(content).decode('ascii')}"

    def _check_bytes(self, count: int) -> None:
        if count > self._bounds.max_bytes:
            raise ValueError(
                f"the image has {count:,} bytes or more; the limit is {self._bounds.max_bytes:,} (harvest.max_image_bytes): make it smaller"
            )

    def _decoded(self, address: str) -> bytes:
        head, _, body = address.partition(",")
        if not head.lower().endswith(";base64"):
            raise ValueError("the data: URL is not in base64; write data:image/png;base64,...")
        self._check_bytes(len(body) * 3 // 4 - 2)
        try:
            return base64.b64decode(body, validate=True)
        except binascii.Error as error:
            raise ValueError(f"the data: URL is not in base64: {error}") from error

    def _file(self, path: str) -> bytes:
        if not path.startswith("/") and self._folder is None:
            raise ValueError(f"{path[:_SHOWN_CHARS]} is a relative path, and the source has no folder on this server; give a whole one")
        whole = str(Path(self._folder or "/") / path)
        if self._rules is not None:
            self._rules.check_path(whole)
            self._rules.check_file(whole)
        handle = os.open(whole, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode):
                raise ValueError(f"{path[:_SHOWN_CHARS]} is no regular file; give the path of one")
            if self._rules is not None:  # check the opened file too: a link may have been redirected meanwhile
                self._rules.check_file(os.path.realpath(f"/proc/self/fd/{handle}"))
            self._check_bytes(about.st_size)
            with open(handle, "rb", closefd=False) as file:  # of a handle
                return file.read(self._bounds.max_bytes + 1)
        finally:
            os.close(handle)


def source_folder(uri: str) -> str | None:
    """Base folder of a source's relative paths: itself, the folder of its file, or the one before a glob. None: not on this machine."""
    path = uri.removeprefix("file://")
    path = path if path.startswith("/") else path.partition(":")[2]
    if not path.startswith("/") or path.startswith("//"):
        return None
    parts = Path(path).parts
    literal = Path(*parts[: next((at for at, part in enumerate(parts) if _GLOB.search(part)), len(parts))])
    return str(literal if len(literal.parts) < len(parts) or literal.is_dir() else literal.parent)


def media_type(content: bytes) -> str:
    """Media type of an image, by its first bytes. Raises `ValueError` where that is not a known image format."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    for kind, marks in _MARKS.items():
        if content.startswith(marks):
            return kind
    raise ValueError(f"the {len(content):,} bytes are no {KNOWN} image; save it as one of these")


def _inner(cell: object) -> object:
    """What a struct of bytes and path holds; any other cell as it is."""
    if not isinstance(cell, dict):
        return cell
    return cell.get("bytes") or cell.get("path")


def _cause(error: OSError | ValueError) -> str:
    if isinstance(error, OSError):
        return f"cannot read {str(error.filename)[:_SHOWN_CHARS]}: {error.strerror}; put the file there, or give its path"
    return str(error)
