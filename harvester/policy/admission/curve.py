"""The KV that requests will hold together, projected to the moments at which each is expected to end.

A request holds its tokens until it ends. Sorted by tokens left, most first, those that are still there when request k ends are 1 .. k, each
longer by what k had left:

    U_k = sum of tokens_i over i <= k, + k * (left_k + half a block)

Half a block is what the last block of a request has free on average. The largest U_k is the most KV that they need at any one time.

A running row makes one token a step and has one less left, so that the sum of both stays. Counted from one step common to all, neither
changes, and the curve is kept from plan to plan: rows that ended leave it, new rows join it. In each plan a sixteenth of the others is
computed anew: this corrects rows that were left out of steps or outgrew their expected length. Rows that end within a few tokens of each
other form a class that ends at their mean, so that the peak is found among some dozens of classes.

A plan may be dropped and made again for the same step, without the requests that ended since. The update of the dropped plan is undone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice

ANEW = 16
WIDTH = 16  # tokens

Row = tuple[float, float]
"""Tokens left and tokens known."""

_Class = list[float]
"""Number of rows, and the sums of both values of `Row`."""


class Curve:
    """The KV curve of the running rows. ``width``: tokens left that a class spans; ``anew``: steps in which each row is computed once."""

    def __init__(self, width: float = WIDTH, anew: int = ANEW) -> None:
        self._width, self._anew = width, anew
        self._step = 0
        self._rows: dict[str, Row] = {}  # tokens left and known, as of step 0; the row computed longest ago first
        self._classes: dict[int, _Class] = {}
        self._before: tuple[dict[str, Row], dict[int, _Class]] | None = None  # state before this step's `follow`; None: there was none

    def passed(self) -> None:
        """Each running row has made a token."""
        self._step += 1

    def keep(self) -> None:
        """The planned step has run: its `follow` stays."""
        self._before = None

    def take_back(self) -> None:
        """The step is planned again: undo its `follow`."""
        if self._before is not None:
            (self._rows, self._classes), self._before = self._before, None

    def follow(self, running: Mapping[str, object], now: Callable[[str], Row]) -> None:
        """Update to the rows that run. ``now``: current values of one, asked for new rows and a sixteenth of the others. O(running)."""
        self.take_back()
        self._before = dict(self._rows), _copied(self._classes)
        known = self._rows
        for name in [name for name in known if name not in running] if not known.keys() <= running.keys() else ():
            self._leave(name)
        new = [name for name in running if name not in known] if len(known) < len(running) else []
        for name in list(islice(known, -(-len(known) // self._anew))):
            self._leave(name)
            self._join(name, now(name))
        for name in new:
            self._join(name, now(name))

    def peak_tokens(self, more: Sequence[Row], spare: float) -> float:
        """The largest U_k of the running rows and ``more``, at least 0. More requests never lower it.

        ``spare``: tokens that each holds beyond those it knows: half a block, less what it shares with others.
        """
        classes, joined = self._classes, dict[int, _Class]()
        for left, known in more:
            place = int((left + self._step) // self._width)
            if place not in joined:
                joined[place] = list(classes.get(place, (0, 0.0, 0.0)))
            self._add(joined, (left + self._step, known - self._step), 1)
        rows = tokens = peak = 0.0
        for place in sorted(classes.keys() | joined.keys(), reverse=True):
            count, ends, here = joined.get(place) or classes[place]
            rows += count
            tokens += here
            peak = max(peak, tokens + rows * (ends / count + spare))
        return peak

    def _join(self, name: str, row: Row) -> None:
        self._rows[name] = kept = row[0] + self._step, row[1] - self._step
        self._add(self._classes, kept, 1)

    def _leave(self, name: str) -> None:
        self._add(self._classes, self._rows.pop(name), -1)

    def _add(self, classes: dict[int, _Class], row: Row, count: int) -> None:
        ends, tokens = row
        held = classes.setdefault(int(ends // self._width), [0, 0.0, 0.0])
        held[0] += count
        held[1] += count * ends
        held[2] += count * tokens
        if not held[0]:
            del classes[int(ends // self._width)]


def _copied(classes: dict[int, _Class]) -> dict[int, _Class]:
    return {place: list(held) for place, held in classes.items()}
