"""A span for each slice of a replica."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from jobs.run.spans import Spans
from jobs.spec import Lease, PartStats

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer


class SliceSpans:
    """A span for each slice, from its lease to its part."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    @contextmanager
    def slice(self, lease: Lease) -> Iterator[_Note]:
        about: dict[str, str | int] = {
            "harvester.job": lease.job.id,
            "harvester.slice": lease.slice.slice_id,
            "harvester.rows": lease.slice.row_count,
        }
        with self._tracer.start_as_current_span("slice", attributes=about) as span:
            yield _Note(span)


class _Note:
    def __init__(self, span: Span) -> None:
        self._span = span

    def __call__(self, stats: PartStats) -> None:
        """Record what the slice's part holds."""
        told: Mapping[str, int] = {
            "harvester.rows_ok": stats.rows_ok,
            "harvester.rows_error": stats.rows_error,
            "harvester.output_tokens": stats.output_tokens,
        }
        self._span.set_attributes(told)


def spans_of(tracer: Tracer | None) -> Spans | None:
    """For the harvest loop."""
    return None if tracer is None else SliceSpans(tracer)
