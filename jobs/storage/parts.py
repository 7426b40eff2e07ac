"""Parts of results that are in the storage before they count, and are fetched before they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa

from connectors.parquet.parts import ASIDE, SUFFIX, PartsSink
from jobs.storage.folder import StateFolder
from jobs.storage.mirror import Mirror
from jobs.storage.publish import publish_to


class StoredParts(PartsSink):
    """A `PartsSink` whose folder is a cache of a storage. A part that is only here does not count: nobody else could read it."""

    def __init__(self, folder: Path, mirror: Mirror) -> None:
        super().__init__(folder, lambda path: publish_to(mirror, path))
        self._mirror = mirror

    def metadata(self, name: str) -> Mapping[str, str] | None:
        return super().metadata(name) if self._mirror.fetch(self.path(name)) else None

    def read(self, name: str) -> pa.Table:
        self._mirror.fetch(self.path(name))
        return super().read(name)

    def put_aside(self, name: str) -> None:
        super().put_aside(name)
        path = self.path(name)
        aside = path.with_name(path.name + ASIDE)
        self._mirror.send(aside)
        self._mirror.remove(path)

    def names(self) -> Iterator[str]:
        """Names of the parts in the storage; fetches all of them."""
        yield from (path.name.removesuffix(SUFFIX) for path in self._mirror.fetch_folder(self._folder, SUFFIX))


def results_of(folder: StateFolder, job_id: str) -> PartsSink:
    """Sink of a job's parts."""
    path = folder.results(job_id)
    return PartsSink(path) if folder.mirror is None else StoredParts(path, folder.mirror)
