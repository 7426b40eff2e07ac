"""A real PostgreSQL, one a run of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tools.postgres import NoPostgres, Postgres, postgres


@pytest.fixture(scope="session")
def database() -> Iterator[Postgres]:
    try:
        with postgres() as server:
            yield server
    except NoPostgres as error:
        pytest.skip(str(error))
