"""Feeds the rows of one slice to the engine: rows begin in order, and unbegun ones can be given back from the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence


class Feed:
    """Used from one event loop. ``may_give``: the slice is in its first lease, and none of its rows is done."""

    def __init__(self, row_ids: Sequence[int] = (), *, may_give: bool = False) -> None:
        self._row_ids = row_ids
        self._next, self._stop = 0, len(row_ids)
        self._may_give = may_give
        self._asked: int | None = None  # end of the rows before a `give_back` that the ledger has not answered
        self._known = asyncio.Event()
        self._known.set()

    @property
    def rows_unbegun(self) -> int:
        """Rows that could be given back."""
        return self._stop - self._next if self._may_give and self._asked is None else 0

    @property
    def is_asking(self) -> bool:
        """Whether the ledger has not answered a `give_back`, so that the owner of those rows is unknown; the next call asks again."""
        return self._asked is not None

    @property
    def is_last(self) -> bool:
        """Whether the slice has a single row, not begun: to give that back is to release the lease."""
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

    async def give_back(self, tell: Callable[[int], Awaitable[bool]]) -> int:
        """Give half of the unbegun rows back, at least one, but never all of a slice. Returns how many. One call at a time.

        ``tell`` gets the number of rows that the slice keeps; by then none of the others can begin. If it gives False, they stay. If it
        raises, the ledger may have taken them nevertheless: none begins until a later call, which asks for the same rows, is answered.
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
