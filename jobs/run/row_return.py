"""Rows that a replica has leased and not begun go back where an idle one could do them sooner (`jobs.ledger.steal`)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial

from connectors.errors import StorageError
from jobs.run.active import ActiveSlice
from jobs.run.client import LedgerClient

log = logging.getLogger("harvester.runner")


class RowReturn:
    """``active``: the runner's slices in work, by lease."""

    def __init__(self, holder: str, ledger: LedgerClient, active: Mapping[str, ActiveSlice]) -> None:
        self._holder = holder
        self._ledger = ledger
        self._active = active
        self.gave = False  # rows were given back, and the runner has finished none since

    async def give_back(self) -> None:
        """Give rows back where the ledger wants some."""
        asking = [lease_id for lease_id, active in self._active.items() if active.feed.is_asking]
        if not asking and not any(active.feed.rows_unbegun for active in self._active.values()):
            return
        try:
            for lease_id in asking or await self._ledger.wanted(self._holder):
                active = self._active.get(lease_id)
                if active is not None and not active.is_ending:
                    await self._give_of(active)
        except StorageError as error:
            log.warning("split_storage %s", error.message)

    async def _give_of(self, active: ActiveSlice) -> None:
        self.gave = True
        if active.feed.is_last:
            active.drop()
        else:
            given = await active.feed.give_back(partial(self._split, active))
            active.rows_waiting -= given  # rows have begun meanwhile

    async def _split(self, active: ActiveSlice, keep_rows: int) -> bool:
        """Ask the ledger to take the rows after the first ``keep_rows``. False: they are still ours, or the lease is lost.

        The call is repeated until it is answered. By then the lease may have been split and lost. A part must not hold the rows of both
        slices, so the slice is dropped before one of the split rows can begin.
        """
        is_split = await self._ledger.split(active.lease.lease_id, keep_rows)
        if not is_split and not await self._ledger.is_leased(active.lease.lease_id):
            active.drop()
        return is_split
