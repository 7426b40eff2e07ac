"""Which of two replicas a chat request is sent to: the one whose first token is expected sooner (power of two choices)."""

from __future__ import annotations

from collections.abc import Sequence

ALIKE_S = 0.02  # predictions that differ by less are of the same load
ALIKE_SHARE = 0.2  # or by less than this share of the longer one: they are some tenths of a second old


def ranked(expected_s: Sequence[float | None]) -> list[list[int]]:
    """Places of ``expected_s`` in groups, best first. ``expected_s``: of each replica, until a first token; None: it has not said yet.

    Those of one group are alike as far as predictions go; who chooses among them goes by the requests that are open on each. A replica that
    has said nothing stands with the best: it is new, and idle.
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
