"""An Iceberg table in a folder: the rows of its newest snapshot, by the library ``pyiceberg``."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from pyarrow import fs

from connectors.copied.snapshot import Origin
from connectors.copied.source import Rows
from connectors.edge import reading
from connectors.errors import SourceError
from connectors.lakehouse.extra import extra
from connectors.lakehouse.inside import check_folder, check_named, plain_batches, plain_types
from connectors.lakehouse.storage import storage_of
from connectors.parquet.source import name_of
from connectors.paths.location import Location

_S3 = ("s3", "s3a", "s3n")
_VERSION = re.compile(r"^(?:v(?P<hadoop>\d+)(?:\.gz)?|(?P<catalog>\d+)-[^/]*)(?:\.gz)?\.metadata\.json$")


class IcebergReading:
    """Without a catalog, the metadata file with the highest number counts as the newest; two of that number are refused."""

    def __init__(self, location: Location) -> None:
        self.origin = Origin(location.uri)
        self.name = name_of(location.path)
        self._location = location

    def fingerprint(self) -> str | None:
        """Over the table's own id, its schema and its newest snapshot."""
        with reading(self.origin.path, "an Iceberg table"):
            if self._location.files.get_file_info([f"{self._location.path}/metadata"])[0].type == fs.FileType.NotFound:
                return None
        found = self._open().metadata
        facts = ["iceberg", self.origin.path, str(found.table_uuid), found.current_snapshot_id, found.current_schema_id]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    @contextmanager
    def rows(self) -> Iterator[Rows]:
        table = self._open()
        with reading(self.origin.path, "an Iceberg table"):
            reader = table.scan().to_arrow_batch_reader()
        schema = plain_types(reader.schema)
        yield schema, plain_batches(reader, schema, self.origin.path, "an Iceberg table")

    def _open(self) -> Any:
        check_folder(self._location)
        address = self._address(self._metadata_file())
        if not _is_s3(address):
            storage_of(self._location, "an Iceberg table")  # for its refusals: the library is told nothing
        tables, files, serializers, noop, _ = (
            extra(f"pyiceberg.{module}", "iceberg", "an Iceberg table")
            for module in ("table", "io", "serializers", "catalog.noop", "io.pyarrow")
        )
        with reading(self.origin.path, "an Iceberg table"):
            # Not `StaticTable.from_metadata`: it gives the table's own properties to the IO, and those name classes to import, and hosts.
            io = files.load_file_io({}, address)
            if _is_s3(address):
                io = _sharing(io, self._location)
            if self._location.rules is not None:
                io = _watched(io, self._location)
            metadata = serializers.FromInputFile.table_metadata(io.new_input(address))
            return tables.StaticTable(("static-table", address), metadata, address, io, noop.NoopCatalog("static-table"))

    def _address(self, path: str) -> str:
        if self._location.local is not None:
            return f"file://{path}"
        scheme = self._location.uri.partition("://")[0]
        return f"{scheme}://{path}"

    def _metadata_file(self) -> str:
        with reading(self.origin.path, "an Iceberg table"):
            entries = self._location.files.get_file_info(fs.FileSelector(f"{self._location.path}/metadata"))
        known = [(int(match["hadoop"] or match["catalog"]), entry.path) for entry in entries if (match := _VERSION.match(entry.base_name))]
        if not known:
            raise SourceError(f"{self._location.label} is an Iceberg table without a metadata file that has a number; give the whole table")
        newest = max(number for number, _ in known)
        best = sorted(path for number, path in known if number == newest)
        if len(best) > 1:
            raise SourceError(
                f"{self._location.label} has {len(best)} metadata files of version {newest}; only its catalog knows which is the "
                "table's, so export it from there"
            )
        return str(best[0])


def _is_s3(address: str) -> bool:
    return address.lower().startswith("s3://")


def _sharing(io: Any, location: Location) -> Any:
    """The table's file IO, with the file system that reached the table for all of S3: it has the region, endpoint and login."""
    others = io.fs_by_scheme

    def fs_by_scheme(scheme: str, netloc: str | None) -> Any:
        return location.files if scheme in _S3 else others(scheme, netloc)

    io.fs_by_scheme = fs_by_scheme
    return io


def _watched(io: Any, location: Location) -> Any:
    """The table's file IO, with the rules checked before each file: the table itself names its metadata, manifests and data."""
    original = io.new_input

    def new_input(address: str) -> Any:
        check_named(_opened(address), location)
        return original(address)

    io.new_input = new_input
    return io


def _opened(address: str) -> str:
    """The part of an address that pyiceberg opens: of a file, the path before any ``?`` or ``#``, with its percent signs as they are."""
    parts = urlsplit(address)
    if not parts.scheme:
        return address
    return f"{parts.netloc}{parts.path}" if parts.scheme == "file" else parts.geturl()
