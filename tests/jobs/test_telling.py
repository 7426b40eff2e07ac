"""What a replica tells the ledger, which can do without it."""

from __future__ import annotations

import logging

import pytest

from harvester.errors import StorageError
from jobs.run.telling import tell


async def test_what_the_ledger_can_do_without_is_logged_where_it_cannot_be_told(caplog: pytest.LogCaptureFixture) -> None:
    async def refused() -> None:
        raise StorageError("no space left")

    with caplog.at_level(logging.WARNING):
        await tell(refused())
    assert [record.getMessage() for record in caplog.records] == ["ledger_storage no space left"]
