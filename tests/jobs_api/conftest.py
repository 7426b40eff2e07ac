"""The jobs application, and that of files and batches with a replica behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from jobs.config import BatchConfig
from jobs.engine import ApiCall
from jobs.testing import last_content
from tests.fakes.bureau import Bureau, going
from tests.fakes.office import Office


@pytest.fixture
async def office(tmp_path: Path) -> AsyncIterator[Office]:
    office = Office(tmp_path)
    async with office.http:
        yield office
    office.ledger.check()
    office.ledger.close()


@pytest.fixture
def limits() -> BatchConfig:
    return BatchConfig()


@pytest.fixture
def reply() -> Callable[[ApiCall], str]:
    return last_content


@pytest.fixture
async def idle_bureau(tmp_path: Path, limits: BatchConfig, reply: Callable[[ApiCall], str]) -> AsyncIterator[Bureau]:
    """With a controller at work and no replica."""
    bureau = Bureau(tmp_path, limits, reply)
    async with bureau.http, going(bureau.controller.run()):
        yield bureau
    bureau.ledger.check()
    bureau.ledger.close()


@pytest.fixture
async def bureau(idle_bureau: Bureau) -> AsyncIterator[Bureau]:
    """With a replica too."""
    async with going(idle_bureau.runner().run()):
        yield idle_bureau
