"""Bisection for the largest count that fits. Any smaller count must fit too."""

from __future__ import annotations

from collections.abc import Callable


def largest(most: int, fits: Callable[[int], bool]) -> int:
    """Largest count in 0 .. ``most`` that fits; 0 where not even one does. One call of ``fits`` where ``most`` fits."""
    if most <= 0:
        return 0
    return most if fits(most) else _between(0, most, fits)


def largest_from_below(most: int, fits: Callable[[int], bool]) -> int:
    """As `largest`, but doubling from 1: few calls of ``fits`` where the result is small."""
    reach = 1
    while reach <= most and fits(reach):
        reach *= 2
    return _between(reach // 2, min(reach, most + 1), fits)


def _between(fit: int, beyond: int, fits: Callable[[int], bool]) -> int:
    """Bisect between ``fit``, which fits, and ``beyond``, which does not."""
    while beyond - fit > 1:
        middle = (fit + beyond) // 2
        if fits(middle):
            fit = middle
        else:
            beyond = middle
    return fit
