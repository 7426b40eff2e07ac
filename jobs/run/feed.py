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
        self._asked: int | None = None  # where the rows ended, while nobody knows whether the ledger took the last of them
        self._known = asyncio.Event()
        self._known.set()

    @property
    def rows_unbegun(self) -> int:
        """That could be given back."""
        return self._stop - self._next if self._may_give and self._asked is None else 0

    @property
    def is_asking(self) -> bool:
        """Whether some rows are the ledger's or not, and it has not told: `give` asks again."""
        return self._asked is not None

    @property
    def is_last(self) -> bool:
        """One row, not begun: who gives that back gives the lease back."""
        return self._may_give and self._next == 0 and self._stop == 1

    def has_more(self) -> bool:
        """Whether `take` may have a row: one that is being given back may stay."""
        return self._next < self._stop or self.is_asking

    async def take(self) -> int | None:
        """The next row, begun from now on; None where the others were given back."""
        while self._next >= self._stop and self.is_asking:
            await self._known.wait()
        if self._next >= self._stop:
            return None
        self._next += 1
        return self._row_ids[self._next - 1]

    async def give(self, tell: Callable[[int], Awaitable[bool]]) -> int:
        """Give half of the unbegun rows back, at least one, but never all of a slice. Returns how many. One call at a time.

        ``tell`` is told how many rows the slice keeps, once none of the others can begin any more; False: they stay. Where it raises, the
        ledger may have them all the same: none begins until a later call was answered, which asks for the same rows.
        """
        if self._asked is None:
            count = min((self.rows_unbegun + 1) // 2, self._stop - 1)
            if count <= 0:
                return 0
            self._asked, self._stop = self._stop, self._stop - count
            self._known.clear()
        given = await tell(self._stop)
        count = self._asked - self._stop
        if not given:
            self._stop = self._asked
        self._asked = None
        self._known.set()
        return count if given else 0
