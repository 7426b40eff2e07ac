"""The interface by which slices in work are traced."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from jobs.spec import Lease, PartStats

Note = Callable[[PartStats], None]


class Spans(Protocol):
    def slice(self, lease: Lease) -> AbstractContextManager[Note]:
        """Entered when a slice begins, left when it is done or given back. The `Note` that it yields is called with the part's counts."""


class NoSpans:
    """Nobody traces."""

    def slice(self, lease: Lease) -> AbstractContextManager[Note]:
        return nullcontext(_nothing)


def _nothing(stats: PartStats) -> None:
    """Nobody is told."""
