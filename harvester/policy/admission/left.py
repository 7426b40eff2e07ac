"""How many tokens a row is expected to have left, by the median answer of its job and what it has made."""

from __future__ import annotations

from typing import NamedTuple

LEAST_LEFT = 16.0  # minimum tokens that a row is expected to have left
LEFT_SHARE = 0.3  # the same, as a share of what it has made


class RowLength(NamedTuple):
    """Lengths of one row, in tokens. All floats: a list of numbers of one kind is sorted in half the time."""

    prompt: float
    expected: float  # of its answer
    most: float


def tokens_left(length: RowLength, tokens: int) -> float:
    """Expected tokens left of a row that has ``tokens`` so far.

    At least `LEAST_LEFT`, and `LEFT_SHARE` of its answer so far; at most what its limit leaves.
    """
    prompt, expected, most = length
    emitted = tokens - prompt
    left, least = expected - emitted, LEFT_SHARE * emitted
    if least < LEAST_LEFT:
        least = LEAST_LEFT
    if left < least:
        left = least
    return left if left < most - emitted else most - emitted
