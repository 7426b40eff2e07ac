"""The rows of one slice on their way into the engine: begun in order, and given back from the end while they are not begun."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence


class Feed:
    """Used from one event loop. ``may_give``: the slice is in its first lease, and none of its rows is done."""

    def __init__(self, row_ids: Sequence[int] = (), *, may_give: bool = False) -> None:
        self._row_ids = row_ids
        self._next, self._stop = 0, len(row_ids)
        self._may_give = may_give
        self._giving = asyncio.Lock()

    @property
    def rows_unbegun(self) -> int:
        """That could be given back."""
        return self._stop - self._next if self._may_give else 0

    @property
    def is_last(self) -> bool:
        """One row, not begun: who gives that back gives the lease back."""
        return self._may_give and self._next == 0 and self._stop == 1

    def has_more(self) -> bool:
        """Whether `take` may have a row: one that is being given back may stay."""
        return self._next < self._stop or self._giving.locked()

    async def take(self) -> int | None:
        """The next row, begun from now on; None where the others were given back."""
        if self._next >= self._stop:
            async with self._giving:
                pass
        if self._next >= self._stop:
            return None
        self._next += 1
        return self._row_ids[self._next - 1]

    async def give(self, tell: Callable[[int], Awaitable[bool]]) -> int:
        """Give half of the unbegun rows back, at least one, but never all of a slice. Returns how many.

        ``tell`` is told how many rows the slice keeps, once none of the others can begin any more; False, or an exception: they stay.
        """
        count = min((self.rows_unbegun + 1) // 2, self._stop - 1)
        if count <= 0:
            return 0
        async with self._giving:
            self._stop -= count
            given = False
            try:
                given = await tell(self._stop)
            finally:
                if not given:
                    self._stop += count
        return count if given else 0
