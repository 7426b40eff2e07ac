"""The sources and sinks of the jobs in work, kept open between slices so that reading on is cheap."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from connectors.base import Sink, Source
from connectors.errors import SourceError
from connectors.open import open_source
from jobs.folder import StateFolder
from jobs.spec import JobSpec

OPEN_JOBS = 8


class SourceCache:
    """Used from one thread. The least recently used job's source is closed when there are too many."""

    def __init__(self, folder: StateFolder, open_sink: Callable[[StateFolder, str], Sink]) -> None:
        self._folder = folder
        self._open_sink = open_sink
        self._open: OrderedDict[str, tuple[Source, Sink]] = OrderedDict()

    def take(self, job: JobSpec) -> tuple[Source, Sink]:
        """Raises `SourceError` where the source is gone, cannot be read, or is no longer what was submitted."""
        if job.id not in self._open:
            self._open[job.id] = (self._source(job), self._open_sink(self._folder, job.id))
            while len(self._open) > OPEN_JOBS:
                _, (source, _) = self._open.popitem(last=False)
                source.close()
        self._open.move_to_end(job.id)
        return self._open[job.id]

    def _source(self, job: JobSpec) -> Source:
        spec = job.source
        if job.endpoint is not None and not Path(spec.uri).exists():
            raise SourceError(f"the requests of batch {job.id} were removed when its files were; make a new batch of them")
        source = open_source(
            spec.uri, table=spec.table, query=spec.query, snapshot_dir=self._folder.snapshot(job.id), fingerprint=job.fingerprint
        )
        if source.fingerprint() != job.fingerprint:
            source.close()
            raise SourceError(
                f"{spec.uri} has changed since job {job.id} was submitted; put the old file back and resume the job, "
                "or submit the new file as a new job"
            )
        return source

    def close(self) -> None:
        for source, _ in self._open.values():
            source.close()
        self._open.clear()
