"""Routing of chat: of two replicas, the one whose first token is expected sooner; none that does not respond."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence

ALIKE_S = 0.02  # predictions that differ by less count as equal
SILENT_S = 1.0  # a replica acknowledges a request at once; one that does not is gone, or too busy to be preferred
ALIKE_SHARE = 0.2  # so do those within this share of the longer one: they are some tenths of a second old


def ranked(expected_s: Sequence[float | None]) -> list[list[int]]:
    """Indices of ``expected_s`` in groups, best first. ``expected_s``: predicted TTFT of each replica; None: not reported yet.

    Predictions of one group count as equal: within it the caller chooses by open requests. A replica that has reported nothing is in the
    best group: it is new, and idle.
    """
    known = [0.0 if wait_s is None else max(0.0, wait_s) for wait_s in expected_s]
    groups: list[list[int]] = []
    for place in sorted(range(len(known)), key=lambda place: known[place]):
        if groups and _alike(known[groups[-1][0]], known[place]):
            groups[-1].append(place)
        else:
            groups.append([place])
    return groups


def _alike(sooner_s: float, later_s: float) -> bool:
    return later_s - sooner_s <= max(ALIKE_S, ALIKE_SHARE * later_s)


class Silences:
    """Replicas that have not even acknowledged a request since it was sent: their machines may be without power."""

    def __init__(self, patience_s: float = SILENT_S) -> None:
        self._patience_s = patience_s
        self._since_s: dict[Hashable, float] = {}  # by replica, when the first request was sent after it was last heard

    def sent(self, replica: Hashable, now_s: float) -> None:
        self._since_s.setdefault(replica, now_s)

    def heard(self, replica: Hashable) -> None:
        self._since_s.pop(replica, None)

    def keep(self, replicas: Collection[Hashable]) -> None:
        """Forget all others."""
        self._since_s = {replica: at_s for replica, at_s in self._since_s.items() if replica in replicas}

    def silent(self, now_s: float) -> set[Hashable]:
        return {replica for replica, at_s in self._since_s.items() if now_s - at_s >= self._patience_s}
