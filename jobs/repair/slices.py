"""Slices of one job whose state in the ledger differs from the parts on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from connectors.errors import DamageError
from connectors.parquet.parts import ASIDE, PartsSink
from jobs.result import holds_exactly
from jobs.run.slice import STATS_KEY
from jobs.spec import COUNTS, PartStats
from jobs.states import SliceState
from jobs.storage.folder import StateFolder, part_name
from jobs.storage.parts import results_of

_NO_ROWS = (0,) * len(COUNTS)


@dataclass(frozen=True, slots=True)
class SliceChange:
    """``counts``: in the order of `COUNTS`."""

    slice_id: int
    state: SliceState
    generation: int
    counts: tuple[int, ...]


@dataclass(slots=True)
class SliceChanges:
    """New states of the slices that are wrong in the ledger. ``generation``: of the job."""

    generation: int = 0
    slices: list[SliceChange] = field(default_factory=list)
    found: int = 0  # done, but not in the ledger
    reopened: int = 0  # done in the ledger, but not in fact
    aside: list[Path] = field(default_factory=list)  # parts that are damaged or fit no slice, where they lie now


def repaired_slices(rows: Sequence[Mapping[str, Any]], folder: StateFolder, job_id: str, *, restored: bool) -> SliceChanges:
    """Compare the job's slices with its parts. Reads every part, and puts aside those that are damaged or fit no slice.

    A part of a slice that ``rows`` lack belongs to a split that the ledger has lost: its rows are those of another slice.

    ``rows``: the slices in the ledger; ``restored``: the ledger has them from the job's file, which does not record a retry.
    """
    sink = results_of(folder, job_id)
    changes = SliceChanges()
    known = {part_name(int(row["slice_id"])) for row in rows}
    for name in sink.names():
        if name not in known:
            _put_aside(sink, name, changes)
    parts = {int(row["slice_id"]): _part(sink, int(row["slice_id"]), _row_ids(row), changes) for row in rows}
    generations = [int(row["generation"]) for row in rows] + [part.generation for part in parts.values() if part is not None]
    changes.generation = max(generations, default=0)
    damaged = {path.name.split(".")[0] for path in changes.aside}
    for row in rows:
        told, part = _told(row), parts[int(row["slice_id"])]
        now = _now(told, part, changes.generation if restored else told.generation, lost=part_name(told.slice_id) in damaged)
        if now != told:
            changes.slices.append(now)
            changes.found += now.state is SliceState.DONE and told.state is not SliceState.DONE
            changes.reopened += told.state is SliceState.DONE and now.state is not SliceState.DONE
    return changes


def _now(told: SliceChange, part: PartStats | None, generation: int, *, lost: bool) -> SliceChange:
    """The slice's new state. ``generation``: the one that it must be done in, unless its part has no failed rows."""
    if part is None:
        if lost or told.state is SliceState.DONE:
            return SliceChange(told.slice_id, SliceState.PENDING, generation, _NO_ROWS)
        return told
    counts = tuple(_count(name, part, told) for name in COUNTS)
    if part.generation < generation and part.rows_error:
        return SliceChange(told.slice_id, told.state if told.state is SliceState.LEASED else SliceState.PENDING, generation, counts)
    return SliceChange(told.slice_id, SliceState.DONE, part.generation, counts)


def _count(name: str, part: PartStats, told: SliceChange) -> int:
    """A count of the slice. ``rows_recomputed`` adds up over all holders of the slice, and its part knows only the last one's."""
    now = int(getattr(part, name))
    return max(now, told.counts[COUNTS.index(name)]) if name == "rows_recomputed" else now


def _told(row: Mapping[str, Any]) -> SliceChange:
    counts = tuple(int(row[name]) for name in COUNTS)
    return SliceChange(int(row["slice_id"]), SliceState(row["state"]), int(row["generation"]), counts)


def _row_ids(row: Mapping[str, Any]) -> range:
    return range(int(row["row_start"]), int(row["row_start"]) + int(row["row_count"]))


def _part(sink: PartsSink, slice_id: int, row_ids: range, changes: SliceChanges) -> PartStats | None:
    """Counts of the slice's complete part; None where there is none, or one with only some of the rows.

    A part with other rows than the slice, which was split meanwhile, is put aside: with it the results would have some rows twice, or
    lack some.
    """
    name = part_name(slice_id)
    try:
        metadata = sink.metadata(name)
        if metadata is None:
            return None
        part = sink.read(name)  # for its checksums too
        stats = PartStats.model_validate_json(metadata[STATS_KEY]) if STATS_KEY in metadata else None
        if stats is None or holds_exactly(part, row_ids):
            return stats
    except DamageError:
        pass
    _put_aside(sink, name, changes)
    return None


def _put_aside(sink: PartsSink, name: str, changes: SliceChanges) -> None:
    sink.put_aside(name)
    changes.aside.append(sink.path(name).with_name(sink.path(name).name + ASIDE))
