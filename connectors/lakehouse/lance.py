"""A Lance data set: the rows of its newest version, by the library ``lance``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager

from pyarrow import fs

from connectors.copied.snapshot import Origin
from connectors.copied.source import Rows
from connectors.edge import reading
from connectors.errors import SourceError
from connectors.lakehouse.extra import extra
from connectors.lakehouse.inside import check_folder, plain_batches, plain_types
from connectors.lakehouse.storage import storage_of
from connectors.parquet.source import name_of
from connectors.paths.location import Location

BATCH_ROWS = 1024


class LanceReading:
    """Deleted rows are left out, as the version's manifest says."""

    def __init__(self, location: Location) -> None:
        self.origin = Origin(location.uri)
        self.name = name_of(location.path.removesuffix(".lance"))
        self._location = location

    def fingerprint(self) -> str | None:
        """Over the version and its manifest's size and time."""
        with reading(self.origin.path, "a Lance data set"):
            entries = self._location.files.get_file_info(fs.FileSelector(f"{self._location.path}/_versions", allow_not_found=True))
        if not entries:
            return None
        manifests = sorted([entry.base_name, int(entry.size or 0), str(entry.mtime_ns)] for entry in entries)
        return hashlib.sha256(json.dumps(["lance", self.origin.path, manifests]).encode()).hexdigest()

    @contextmanager
    def rows(self) -> Iterator[Rows]:
        check_folder(self._location)
        storage = storage_of(self._location, "a Lance data set")
        library = extra("lance", "lance", "a Lance data set")
        with reading(self.origin.path, "a Lance data set"):
            found = library.dataset(storage.address, storage_options=storage.for_object_store())
            outside = [base.path for base in getattr(found, "base_paths", dict)().values()] if self._location.rules is not None else []
        if outside:
            raise SourceError(f"{self._location.label} keeps files outside its folder ({outside[0]}); submit it as the server's own user")
        with reading(self.origin.path, "a Lance data set"):
            batches = found.to_batches(batch_size=BATCH_ROWS, scan_in_order=True)
            schema = plain_types(found.schema)
        yield schema, plain_batches(iter(batches), schema, self.origin.path, "a Lance data set")
