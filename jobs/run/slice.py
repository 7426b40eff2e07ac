"""The files of the slices in work: sources and sinks kept open, a slice's rows, what is known of them already, and the part they become."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from connectors.base import Sink, Source
from connectors.errors import DamageError, SourceError
from connectors.open import open_source
from connectors.parquet.parts import PartsSink
from connectors.text import NULL_TEXT, TextProblem, is_text, rows, texts
from jobs.access.secrets import opened
from jobs.plan.columns import columns_needed, text_columns
from jobs.result import Row, answer_lengths, holds_exactly, part_stats, part_table, result_schema
from jobs.run.active import ActiveSlice
from jobs.run.spool.records import Spool
from jobs.run.spool.spools import Spools
from jobs.spec import JobSpec, Lease, PartStats
from jobs.storage.folder import StateFolder, part_name
from jobs.storage.inputs import fetch_input, is_ours
from jobs.storage.parts import results_of
from jobs.tasks.answer import check_answerable
from jobs.tasks.template import plain_text
from jobs.threads import FairThreads
from jobs.usage import NONE_USED, Usage

log = logging.getLogger("harvester.runner")

READERS = 3  # sources read at once, one for each job: a slow one holds up neither the others nor what is published
LATE_S = 0.25  # a slice whose rows are not there by then keeps no other job from the engine
OPEN_JOBS = 8
STATS_KEY = "harvester_part"  # of a part's metadata
GENERATION_KEY = "harvester_generation"  # of an incomplete part
REPLACED_KEY = "harvester_replaced"  # `PartStats.replaced`, apart: an earlier version would refuse a part with counts it does not know


class SourceCache:
    """Keeps the sources of up to `OPEN_JOBS` jobs open, and closes the least recently used one beyond. Used from several threads."""

    def __init__(self, folder: StateFolder, open_sink: Callable[[StateFolder, str], Sink]) -> None:
        self._folder = folder
        self._open_sink = open_sink
        self._lock = threading.Lock()
        self._idle: OrderedDict[str, tuple[Source, Sink]] = OrderedDict()
        self._is_closed = False

    def take(self, job: JobSpec) -> tuple[Source, Sink]:
        """Source and sink of a job, which nobody else has until `keep`.

        Raises `SourceError` where the source is gone, cannot be read, or is no longer what was submitted.
        """
        with self._lock:
            idle = self._idle.pop(job.id, None)
        return idle or (self._source(job), self._open_sink(self._folder, job.id))

    def keep(self, job_id: str, source: Source, sink: Sink) -> None:
        """Keep what was taken for the next one who takes it."""
        with self._lock:
            spare = self._idle.pop(job_id, None)  # opened beside this one
            unused = [] if spare is None else [spare]
            self._idle[job_id] = (source, sink)
            while len(self._idle) > (0 if self._is_closed else OPEN_JOBS):
                unused.append(self._idle.popitem(last=False)[1])
        for closed, _ in unused:
            closed.close()

    def _source(self, job: JobSpec) -> Source:
        spec = job.source
        fetch_input(self._folder, job.id, spec.uri)
        if job.endpoint is not None and not Path(spec.uri).exists():
            raise SourceError(f"the requests of batch {job.id} were removed when its files were; make a new batch of them")
        source = open_source(
            opened(spec.uri, self._folder.jobs / job.id),
            **spec.choices(),
            snapshot_dir=self._folder.snapshot(job.id),
            fingerprint=job.fingerprint,
            rules=job.rules,
        )
        is_copy = self._folder.mirror is not None and is_ours(self._folder, job.id, spec.uri)  # its time, which fingerprints use, differs
        if not is_copy and source.fingerprint() != job.fingerprint:
            source.close()
            raise SourceError(
                f"{spec.uri} has changed since job {job.id} was submitted; put the old file back and resume the job, "
                "or submit the new file as a new job"
            )
        return source

    def close(self) -> None:
        """Close what is idle now, and the others as soon as they are kept."""
        with self._lock:
            self._is_closed = True
            idle = [source for source, _ in self._idle.values()]
            self._idle.clear()
        for source in idle:
            source.close()


def open_parts(folder: StateFolder, job_id: str) -> PartsSink:
    """Sink of a job's parts, cleared of what dead writers left half written."""
    sink = results_of(folder, job_id)
    sink.sweep()
    return sink


@dataclass(slots=True)
class SliceFiles:
    """Every method reads or writes files: call them from a thread, one at a time."""

    lease: Lease
    source: Source
    sink: Sink
    spool: Spool
    table: pa.Table  # the slice's rows, with the columns that the prompt and the results need
    kept: pa.Table | None  # of an earlier generation's part: the rows that need no retry
    replaced: Usage = NONE_USED  # of the other rows in that part

    @property
    def job(self) -> JobSpec:
        return self.lease.job

    def todo(self) -> list[int]:
        """row_ids that have no result yet."""
        known = set(self.spool.rows)
        if self.kept is not None:
            known |= set(self.kept.column("row_id").to_pylist())
        return [row_id for row_id in self.lease.slice.row_ids if row_id not in known]

    def inputs(self) -> tuple[list[Mapping[str, Any]], list[str | TextProblem] | None]:
        """For each row the columns that its prompt names, and its text cell. A cell that is not a text, or not a path, fails its row."""
        column = self.job.column
        named = {name: texts(self.table.column(name)) for name in text_columns(self.table.schema) if name in self.job.task.images}
        asked = columns_needed(self.job.model_copy(update={"keep": ()}))
        others = rows(self.table.select([name for name in asked if name not in named and name != column]))
        found: list[Mapping[str, Any]] = [{**row, **{name: cells[at] for name, cells in named.items()}} for at, row in enumerate(others)]
        return found, None if column is None else _cells(self.table.column(column))

    def publish(self) -> PartStats:
        """Write the part, durable and whole. Returns what it holds.

        Where a slow holder's slice was finished and retried by others meanwhile, their newer part stays; the ledger rejects the commit.
        """
        finished = [self.spool.rows[row_id] for row_id in sorted(self.spool.rows)]
        part = self._part(finished)
        stats = part_stats(part, self.lease.generation, self.spool.recomputed)
        if self.job.endpoint is None:  # requests of a batch differ too much to tell the length of others
            stats = stats.model_copy(update={"lengths": answer_lengths(finished)})
        there = part_stats_of(self.sink, self.lease)
        if there is None or there.generation <= self.lease.generation:
            told = {STATS_KEY: stats.model_dump_json()}
            if self.replaced != NONE_USED:
                told[REPLACED_KEY] = self.replaced.model_dump_json()
            self.sink.write(part_name(self.lease.slice.slice_id), part, told)
        return stats.model_copy(update={"replaced": self.replaced})

    def publish_some(self) -> PartStats | None:
        """Write an incomplete part with the rows done so far, for a slice that is given back; the next holder replaces it.

        None where the slice has a complete part already, or one from before this retry: that stays, and the spool has the new rows.
        """
        if self.kept is not None or part_stats_of(self.sink, self.lease) is not None:
            return None
        part = self._part([self.spool.rows[row_id] for row_id in sorted(self.spool.rows)])
        self.sink.write(part_name(self.lease.slice.slice_id), part, {GENERATION_KEY: str(self.lease.generation)})
        return part_stats(part, self.lease.generation, 0)

    def _part(self, finished: list[Row]) -> pa.Table:
        schema = result_schema(self.source.schema, self.job.keep, self.job.task)
        start = self.lease.slice.row_start
        inputs = self.table.select(list(self.job.keep)).take([row.row_id - start for row in finished])
        part = part_table(schema, finished, inputs)
        if self.kept is None:
            return part
        is_again = pc.is_in(self.kept.column("row_id"), part.column("row_id"))  # where a late holder published rows of this spool
        return pa.concat_tables([self.kept.filter(pc.invert(is_again)).cast(part.schema), part]).sort_by("row_id")


def _cells(column: pa.ChunkedArray) -> list[str | TextProblem]:
    """The cells as text; values of a column of another type are written out."""
    if is_text(column.type):
        return texts(column)
    cells = [row["cell"] for row in rows(pa.table({"cell": column}))]
    return [NULL_TEXT if cell is None else cell if isinstance(cell, TextProblem) else plain_text(cell) for cell in cells]


def part_stats_of(sink: Sink, lease: Lease) -> PartStats | None:
    """Counts of the slice's complete part, of any generation; None where there is none, or an incomplete one."""
    metadata = sink.metadata(part_name(lease.slice.slice_id))
    if not metadata or STATS_KEY not in metadata:
        return None
    stats = PartStats.model_validate_json(metadata[STATS_KEY])
    replaced = Usage.model_validate_json(metadata[REPLACED_KEY]) if REPLACED_KEY in metadata else NONE_USED
    return stats.model_copy(update={"replaced": replaced})


def published(sink: Sink, lease: Lease) -> PartStats | None:
    """Counts of the part of this slice and generation, if an earlier holder published it and died before it told the ledger.

    A part that is damaged, or has other rows than the slice, is put aside: the slice's rows are computed again.
    """
    name = part_name(lease.slice.slice_id)
    try:
        stats = part_stats_of(sink, lease)
        part = sink.read(name) if stats is not None or (lease.generation and sink.metadata(name) is not None) else None
    except DamageError as error:
        log.warning("part_damaged job=%s slice=%d %s", lease.job.id, lease.slice.slice_id, error.message)
        sink.put_aside(name)
        return None
    if stats is None or part is None:
        return None
    if not holds_exactly(part, lease.slice.row_ids):  # of a split that the ledger does not know
        log.warning("part_other job=%s slice=%d rows=%d", lease.job.id, lease.slice.slice_id, part.num_rows)
        sink.put_aside(name)
        return None
    return stats if stats.generation == lease.generation else None


def taken_slice(lease: Lease, sources: SourceCache, spools: Spools) -> SliceFiles | PartStats:
    """`open_slice`, or what an earlier holder `published`. Call it from a thread: it takes as long as the source does."""
    source, sink = sources.take(lease.job)
    try:
        return published(sink, lease) or open_slice(lease, source, sink, spools)
    finally:
        sources.keep(lease.job.id, source, sink)


def open_slice(lease: Lease, source: Source, sink: Sink, spools: Spools) -> SliceFiles:
    """Read the slice's rows and what is known of them. Raises `TaskError` where their answers could not be checked."""
    check_answerable(lease.job.task)
    cut = lease.slice
    group = source.row_groups()[cut.group_index]
    columns = list(dict.fromkeys([*columns_needed(lease.job), *lease.job.keep]))
    table = source.read(group, cut.offset, cut.row_count, columns)
    kept, replaced = None, NONE_USED
    told = sink.metadata(part_name(cut.slice_id)) if lease.generation else None
    if told is not None:
        part = sink.read(part_name(cut.slice_id))
        is_ok = pc.equal(part.column("status"), "ok")
        kept, failed = part.filter(is_ok), part.filter(pc.invert(is_ok))
        is_of_this_retry = STATS_KEY not in told and told.get(GENERATION_KEY) == str(lease.generation)
        if not is_of_this_retry:  # else its failed rows are in the spool
            replaced = Usage(**{name: pc.sum(failed.column(name)).as_py() or 0 for name in ("prompt_tokens", "output_tokens")})
    answered = set() if kept is None else set(kept.column("row_id").to_pylist())
    return SliceFiles(lease, source, sink, spools.open(lease, answered), table, kept, replaced)


class SliceReading:
    """Reads slices in `READERS` threads, one for each job. Used from one event loop. ``changed``: a slice is late, or is no more."""

    def __init__(
        self, folder: StateFolder, open_sink: Callable[[StateFolder, str], Sink], spools: Spools, changed: Callable[[], None]
    ) -> None:
        self.sources = SourceCache(folder, open_sink)
        self._spools = spools
        self._changed = changed
        self._threads = FairThreads("read", READERS, 1)

    async def read(self, active: ActiveSlice) -> SliceFiles | PartStats:
        """See `taken_slice`. The slice is late from `LATE_S` on until it is read."""
        lease = active.lease
        timer = asyncio.get_running_loop().call_later(LATE_S, self._is_late, active)
        try:
            return await self._threads.run(lease.job.id, lambda: taken_slice(lease, self.sources, self._spools), self._let_go)
        finally:
            timer.cancel()
            active.is_late = False
            self._changed()

    def _is_late(self, active: ActiveSlice) -> None:
        active.late()
        self._changed()

    def shutdown(self) -> None:
        """Wait until nothing is read any more. Call it from a thread."""
        self._threads.shutdown()

    def _let_go(self, opened: SliceFiles | PartStats) -> None:
        if isinstance(opened, SliceFiles):
            self._spools.close_unsent(opened.spool)
