"""From what a user writes (path, glob, folder, address) to a file system and a path in it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote

import fsspec
import pyarrow as pa
from pyarrow import fs

from connectors.edge import reading, shown
from connectors.errors import SourceError
from connectors.paths.pace import PacedHandler
from connectors.paths.rules import SourceRules
from connectors.paths.web import open_web

_ADDRESS = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")
# `?` is also a sign of globs: only key=value pairs at the very end are options of the address.
_OPTIONS = re.compile(r"\?[A-Za-z_]+=[^/]*$")
_GOOGLE = ("gs://", "gcs://")
_WEB = ("http://", "https://")
_GOOGLE_S = 15  # Arrow by itself retries for 15 minutes, silently
KNOWN_ADDRESSES = "a path, file://, s3://, gs://, hdfs://, abfs:// and the addresses that fsspec knows"


@dataclass(frozen=True, slots=True)
class Location:
    """A path on a file system; ``uri`` is how the user wrote it."""

    files: fs.FileSystem
    path: str
    uri: str
    rules: SourceRules | None = None  # of what is read beneath, and of what a table there names; None: all may be read

    @property
    def label(self) -> str:
        """Name used in messages."""
        return shown(self.uri)

    @property
    def local(self) -> Path | None:
        """The path where it is on this machine's disks, else None."""
        return Path(self.path) if isinstance(self.files, fs.LocalFileSystem) else None

    @property
    def is_web(self) -> bool:
        """Whether it is reached by http or https."""
        return self.uri.lower().startswith(_WEB)

    def check_file(self, path: str) -> None:
        """Raise `SourceError` for a file of this file system that the client may not read. At an address all below it may be read."""
        if self.rules is not None and self.local is not None:
            self.rules.check_file(path)


def locate(uri: str, rules: SourceRules | None = None) -> Location:
    """Find the file system of a path or address, without asking whether the path exists.

    Raises `SourceError` for an unknown kind, and for what ``rules`` do not allow.
    """
    if not uri or "\0" in uri:
        raise SourceError(f"{uri!r} is not a path; give the path of a Parquet file, glob or folder, or of a .duckdb file")
    address = _ADDRESS.match(uri)
    if address is None:
        return _local(uri, uri, rules)
    if address[1].lower() == "file":
        path = re.sub(r"^localhost(?=/)", "", uri[address.end() :])
        return _local(path if Path(path).exists() else unquote(path), uri, rules)
    if rules is None:
        return _remote(uri, address[0])
    rules.check_address(uri)
    if address[0].lower() not in _WEB:
        return replace(_remote(uri, address[0]), rules=rules)
    with reading(uri):
        return Location(fs.PyFileSystem(PacedHandler(open_web(uri, rules), uri)), uri.rstrip("/"), uri, rules)


def _local(path: str, uri: str, rules: SourceRules | None) -> Location:
    if rules is not None and not path.startswith("/"):  # a client must not learn this process's folder
        raise SourceError(f"{uri[:200]} is a relative path, which a server cannot read for its clients; give a path that begins with /")
    absolute = str(Path(os.path.expanduser(path)).absolute())  # noqa: PTH111 - the home of an unknown user stays as it is written
    if rules is not None:
        rules.check_path(absolute)
    return Location(fs.LocalFileSystem(), absolute, uri, rules)


def _remote(uri: str, scheme: str) -> Location:
    bare, asked = split_options(uri)
    asked = f"?{asked}" if asked else ""
    if scheme.lower() in _GOOGLE and "retry_limit_seconds" not in asked:
        asked += f"{'&' if asked else '?'}retry_limit_seconds={_GOOGLE_S}"
    host, _, key = bare[len(scheme) :].partition("/")
    with reading(uri):
        try:
            # Only the host goes through the parser: a path may hold literal spaces, brackets and percent signs.
            files, base = fs.FileSystem.from_uri(f"{scheme}{host}/{asked}")
        except pa.ArrowNotImplementedError:
            return _through_fsspec(uri, scheme)
        except pa.ArrowInvalid as error:
            if "Unrecognized filesystem" in str(error):
                return _through_fsspec(uri, scheme)
            raise SourceError(f"cannot use the address {shown(uri)}: {shown(str(error))}") from error
    return Location(files, f"{base.rstrip('/')}/{key}".rstrip("/") or "/", uri)


def split_options(uri: str) -> tuple[str, str]:
    """An address without its options, and these: ``a=1&b=2``, or nothing."""
    options = _OPTIONS.search(uri)
    return (uri, "") if options is None else (uri[: options.start()], options[0][1:])


def _through_fsspec(uri: str, scheme: str) -> Location:
    try:
        files, path = fsspec.core.url_to_fs(uri)
    except ImportError as error:
        raise SourceError(f"cannot read {shown(uri)}: {scheme} needs one more package: {error}") from error
    except ValueError as error:
        raise SourceError(f"cannot read {shown(uri)}: {scheme} is not a known kind of address; known: {KNOWN_ADDRESSES}") from error
    handler = PacedHandler(files, uri) if scheme.lower() in _WEB else fs.FSSpecHandler(files)
    return Location(fs.PyFileSystem(handler), path.rstrip("/") or "/", uri)
