"""LoRA adapters: an engine computes a bounded number of them in one step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence

from harvester.policy.admission.rule import MAX_PASSED, MAX_PASSED_OF_JOB, Rows
from harvester.policy.order.offline import OfflineRow
from harvester.policy.view import AdapterPlaces, EngineView

TURN = 8  # an adapter keeps its place until this many times the tokens of the KV in use were computed, though others wait for it


def rows_in_the_way(wanted: int, running: Sequence[tuple[int, bool]], places: int) -> list[int]:
    """Rows to preempt so that a chat on adapter ``wanted`` can run, as indices in ``running``.

    They are all rows of one adapter: the one with the fewest rows, of those that no chat uses. ``running``: adapter (0: none) of each
    request, and whether it is offline. ``places``: adapters that one step can hold. Empty where there is room, or chats use all of them.
    """
    held = {adapter for adapter, _ in running if adapter}
    if not wanted or wanted in held or len(held) < places:
        return []
    of_chats = {adapter for adapter, offline in running if not offline}
    rows = Counter(adapter for adapter, _ in running if adapter and adapter not in of_chats)
    if not rows:
        return []
    fewest = min(rows, key=lambda adapter: (rows[adapter], adapter))
    return [place for place, (adapter, _) in enumerate(running) if adapter == fewest]


class AdapterTurns:
    """Which waiting rows find a place for their adapter, and which adapter has to give up its place.

    A row that finds none is passed over, and those behind it are admitted. So that it does not wait for ever, the adapter that has had its
    place for longest gives it up after `TURN`. Its rows behind such a row are then passed over too, until its last running row has ended.
    Rows that come before it in the order were served less: they are still admitted. An adapter that chats use keeps its place.
    """

    def __init__(self) -> None:
        self._computed = 0  # offline tokens
        self._since: dict[int, int] = {}  # tokens computed before it got its place, by adapter

    def ran(self, computed: int) -> None:
        """A step computed ``computed`` offline tokens."""
        self._computed += computed

    def placed(self, rows: Rows, view: EngineView) -> Rows:
        """``rows`` without those that are passed over in this step.

        Where a place is free, rows of several adapters may be among them: the engine admits those of the first.
        """
        places = view.adapters
        if places is None:
            return rows
        self._since = {adapter: self._since.get(adapter, self._computed) for adapter in places.held}
        leaving = self._leaving(places, view.used_tokens)

        def entering(passed: Container[str]) -> Iterator[OfflineRow]:
            is_full, left_out = len(places.held) >= places.most, False
            skipped, dropped = Counter[str](), set[str]()
            for row in rows(_Both(passed, dropped)):
                fits = not is_full or not row.adapter or row.adapter in places.held
                if fits and not (left_out and row.adapter == leaving):
                    yield row
                    continue
                left_out = left_out or not fits
                skipped[row.job] += 1
                if skipped[row.job] == (MAX_PASSED_OF_JOB if row.job else MAX_PASSED):
                    dropped.add(row.job)

        return entering

    def _leaving(self, places: AdapterPlaces, used_tokens: int) -> int | None:
        """The adapter that gives up its place if a row waits for one."""
        first = min(places.held - places.of_chats, key=lambda adapter: (self._since[adapter], adapter), default=None)
        return first if first is not None and self._computed - self._since[first] >= TURN * used_tokens else None


class _Both:
    """The jobs in either of two containers."""

    def __init__(self, one: Container[str], other: Container[str]) -> None:
        self._one, self._other = one, other

    def __contains__(self, job: object) -> bool:
        return job in self._one or job in self._other
