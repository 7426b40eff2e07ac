"""KV blocks that a request holds and asks for, by its tokens, where a model has several KV cache groups.

Each group has its own blocks for the same tokens, and all groups take them from one pool. Layers with a sliding window or a recurrent state
free the blocks that they no longer read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

MAX_KNOWN = 1 << 16  # counts of tokens whose blocks are remembered


class Group(NamedTuple):
    """Layers that share their blocks' layout."""

    block_tokens: int
    kept_tokens: int | None = None  # of the last computed tokens, those whose KV stays; None: all
    most: int | None = None  # blocks of one request; None: no bound
    extra: int = 0  # blocks of one request beside those of its tokens, for drafts

    @property
    def grows(self) -> bool:
        """Whether a longer request takes new blocks, even where it frees old ones."""
        return self.most is None or self.kept_tokens is not None


class KvGroups:
    """Blocks of one request in all ``groups`` together. Running requests are counted in each step, so sums are remembered."""

    def __init__(self, groups: Iterable[Group]) -> None:
        self._groups = tuple(Counter(groups).items())  # many groups are alike
        (first, count), *others = self._groups
        self.block_tokens = first.block_tokens  # of the first group
        self.count = sum(count for _, count in self._groups)
        self.per_decode = sum(count for group, count in self._groups if group.grows)  # most blocks that one token more takes
        self.is_one = not others and count == 1 and first.kept_tokens is None and first.most is None
        self.held = lru_cache(MAX_KNOWN)(self._held)
        self._written = lru_cache(MAX_KNOWN)(self._blocks)

    @classmethod
    def one(cls, block_tokens: int) -> KvGroups:
        """A single group that keeps all KV."""
        return cls([Group(block_tokens)])

    def _held(self, tokens: int) -> int:
        """Blocks held once ``tokens`` are computed; none before the first."""
        blocks = 0
        for (size, kept, most, extra), count in self._groups if tokens else ():
            each = -(-tokens // size) + extra - (0 if kept is None else max(0, tokens - kept) // size)
            blocks += count * (each if most is None else min(each, most))
        return blocks

    def _blocks(self, tokens: int) -> int:
        if not tokens:
            return 0
        return sum(count * (-(-tokens // group.block_tokens) + group.extra) for group, count in self._groups if group.grows)

    def step(self, before: int, after: int) -> int:
        """Blocks that a running request takes from the pool to go from ``before`` to ``after`` computed tokens, whatever it frees."""
        return self._written(after) - self._written(before)

    def admitted(self, tokens: int, shared_tokens: int = 0) -> int:
        """Blocks that must be free for a request with so many tokens to be admitted, none of them cached.

        ``shared_tokens``: at its beginning, fewer than ``tokens``, whose blocks other requests hold.
        """
        blocks = 0
        for (size, _, most, extra), count in self._groups:
            each = -(-tokens // size) - shared_tokens // size + extra
            blocks += count * (each if most is None else min(each, most))
        return blocks
