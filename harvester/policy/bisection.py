"""The largest count that fits, where fewer always fit if more do."""

from __future__ import annotations

from collections.abc import Callable


def largest(most: int, fits: Callable[[int], bool]) -> int:
    """In 0 .. ``most``; 0 where not even one fits. One try where all fit."""
    if most <= 0:
        return 0
    return most if fits(most) else _between(0, most, fits)


def largest_from_below(most: int, fits: Callable[[int], bool]) -> int:
    """In 0 .. ``most``; few tries where it is small."""
    reach = 1
    while reach <= most and fits(reach):
        reach *= 2
    return _between(reach // 2, min(reach, most + 1), fits)


def _between(fit: int, beyond: int, fits: Callable[[int], bool]) -> int:
    """``fit`` fits and ``beyond`` does not."""
    while beyond - fit > 1:
        middle = (fit + beyond) // 2
        if fits(middle):
            fit = middle
        else:
            beyond = middle
    return fit
