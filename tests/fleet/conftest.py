"""Three machines for the whole suite, and this process in the network of the first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.harness.fleet.machines import Fleet, why_not

MACHINES = 3


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all machines see."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def fleet(disk: Path) -> Iterator[Fleet]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with Fleet(MACHINES, shared=[disk]) as running, running.head.inside():
        yield running
