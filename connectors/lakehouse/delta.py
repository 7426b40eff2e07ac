"""A Delta table: the rows of its newest version, by the library ``deltalake``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from connectors.copied.snapshot import Origin
from connectors.copied.source import Rows
from connectors.edge import reading
from connectors.lakehouse.extra import extra
from connectors.lakehouse.inside import check_below, check_folder, plain_batches, plain_types
from connectors.lakehouse.storage import storage_of
from connectors.parquet.source import name_of
from connectors.paths.location import Location

BATCH_ROWS = 1024


class DeltaReading:
    """Follows the log for deleted rows, deletion vectors, evolved schemas and renamed columns."""

    def __init__(self, location: Location) -> None:
        self.origin = Origin(location.uri)
        self.name = name_of(location.path)
        self._location = location

    def fingerprint(self) -> str | None:
        """Over the table's own id and its version."""
        if self._is_gone():
            return None
        table = self._open()
        with reading(self.origin.path, "a Delta table"):
            return hashlib.sha256(json.dumps(["delta", self.origin.path, str(table.metadata().id), table.version()]).encode()).hexdigest()

    @contextmanager
    def rows(self) -> Iterator[Rows]:
        table = self._open()
        if self._location.rules is not None:
            with reading(self.origin.path, "a Delta table"):
                # As the log names them: `file_uris` puts each below the table's folder, `scan` may find it elsewhere.
                names = pa.table(table.get_add_actions())["path"].to_pylist()
            for name in names:
                check_below(name, self._location)
        with reading(self.origin.path, "a Delta table"):
            # Its own engine: PyArrow's data sets know neither deletion vectors nor renamed columns.
            reader = pa.RecordBatchReader.from_stream(table.scan())
        schema = plain_types(reader.schema)
        yield schema, plain_batches(reader, schema, self.origin.path, "a Delta table")

    def _is_gone(self) -> bool:
        with reading(self.origin.path, "a Delta table"):
            return bool(self._location.files.get_file_info([f"{self._location.path}/_delta_log"])[0].type.name == "NotFound")

    def _open(self) -> Any:
        check_folder(self._location)
        storage = storage_of(self._location, "a Delta table")
        library = extra("deltalake", "delta", "a Delta table")
        with reading(self.origin.path, "a Delta table"):
            return library.DeltaTable(storage.address, storage_options=storage.for_object_store())
