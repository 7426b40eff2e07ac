"""``GET /jobs/JOB/results``: rows as a stream of Arrow record batches that resumes at any row. Memory does not grow with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any

import pyarrow as pa
from fastapi import FastAPI, Query
from fastapi.responses import StreamingResponse

from connectors.parquet.parts import Part, PartsSink, read_batches
from harvester.errors import NotFoundError, StateError
from harvester.serve.access.who import Who
from harvester.serve.http.jobs.download import BATCH_ROWS, KINDS, WRITERS, Pipe, Shape
from harvester.serve.http.jobs.owned import LedgerJobs, own_job
from jobs.sql.spool import small
from jobs.storage.folder import StateFolder
from jobs.storage.parts import results_of
from jobs.threads import with_storage


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where to begin: after ``offset`` rows of a part's ``edition``. Without ``part``, at the first part."""

    part: str | None = None
    offset: int = 0
    edition: str | None = None


def arrow_of(sink: PartsSink, place: Cursor) -> Iterator[bytes]:
    """The parts from ``place`` on, in the order of their names, as one Arrow IPC stream.

    Each batch's metadata names its part and edition. Raises `StateError` if the part was written again since the client read it,
    `NotFoundError` if there is no such part, `DamageError`.
    """
    parts = [part for part in sink.parts() if place.part is None or part.name >= place.part]
    if place.part is not None and (not parts or parts[0].name != place.part):
        raise NotFoundError(f"the results have no part {place.part[:80]!r}; read them from the beginning")
    pipe = Pipe()
    writer: Any = None
    for part in parts:
        skipped = place.offset if part.name == place.part else 0
        if skipped and place.edition not in (None, part.edition):
            raise StateError(f"rows of part {part.name} were computed again while they were read; read the results from the beginning")
        if writer is None:
            writer = pa.ipc.new_stream(pa.PythonFile(pipe, "w"), part.schema)
        for batch in _behind(part, skipped):
            writer.write_batch(batch.replace_schema_metadata(None), custom_metadata={"part": part.name, "edition": part.edition})
            yield pipe.taken()
    writer = writer or pa.ipc.new_stream(pa.PythonFile(pipe, "w"), pa.schema([]))
    writer.close()
    yield pipe.taken()


def _behind(part: Part, rows: int) -> Iterator[pa.RecordBatch]:
    """The batches of a part but for its first ``rows`` rows."""
    for batch in read_batches(part.path, part.schema.names, BATCH_ROWS):
        skipped = min(rows, batch.num_rows)
        rows -= skipped
        yield from small(batch.slice(skipped))


def add_rows(app: FastAPI, ledger: LedgerJobs, folder: StateFolder) -> None:
    """Add ``GET /jobs/JOB/results``."""

    @app.get("/jobs/{job_id}/results", include_in_schema=False)
    async def results(
        job_id: str,
        who: Who,
        part: str | None = None,
        offset: Annotated[int, Query(ge=0)] = 0,
        edition: str | None = None,
        format: Shape = "arrow",
    ) -> StreamingResponse:
        view = await own_job(ledger, job_id, who)
        sink = results_of(folder, view.id)
        pieces = arrow_of(sink, Cursor(part, offset, edition)) if format == "arrow" else WRITERS[format](sink)
        first = await with_storage(next, pieces, b"")  # a problem with the first part becomes an error answer, not a cut stream
        named = {"content-disposition": f'attachment; filename="{view.id}.{format}"'}
        return StreamingResponse(chain([first], pieces), media_type=KINDS[format], headers=named)
