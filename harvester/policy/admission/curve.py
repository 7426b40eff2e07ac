"""The KV that requests will hold together, projected to the moments at which each is expected to end.

A request holds its tokens until it ends. Sorted by tokens left, most first, those that are still there when request k ends are 1 .. k, each
longer by what k had left:

    U_k = sum of tokens_i over i <= k, + k * (left_k + half a block)

Half a block is what the last block of a request has free on average. The largest U_k is the most KV that they need at any one time.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

Row = tuple[float, float]
"""Tokens left, negative so that the most comes first, and tokens known."""


class Curve:
    """``rows``: those that run; ``block_tokens``: of a KV block."""

    def __init__(self, rows: Sequence[Row], block_tokens: int) -> None:
        self._half = block_tokens / 2
        self._rows = sorted(rows)

    def peak_tokens(self, more: Sequence[Row] = ()) -> float:
        """The largest U_k of those that run and ``more``; 0 of none. More requests never lower it."""
        rows = sorted((*self._rows, *more)) if more else self._rows
        if not rows:
            return 0.0
        half = self._half
        held = accumulate([tokens for _, tokens in rows])
        return max([here + count * (half - row[0]) for count, (row, here) in enumerate(zip(rows, held, strict=True), 1)])
