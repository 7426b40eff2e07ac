"""Storages to test with: a folder that machines share, and a bucket on a server that speaks S3."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.s3_server import S3, s3_server
from tools.postgres import NoPostgres, Postgres, postgres

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    with s3_server() as server:
        yield server


@pytest.fixture(params=["folder", "s3"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty storage."""
    if request.param == "folder":
        return str(tmp_path / "shared")
    s3: S3 = request.getfixturevalue("s3")
    return f"{s3.bucket(f'bucket{next(_NUMBERS)}')}/harvester{s3.options}"


@pytest.fixture
def machine(tmp_path: Path) -> Callable[[str], Path]:
    """The disk of a machine, by name: a folder of its own."""

    def made(name: str) -> Path:
        (tmp_path / name).mkdir(exist_ok=True)
        return tmp_path / name

    return made


@pytest.fixture(scope="session")
def database() -> Iterator[Postgres]:
    try:
        with postgres() as server:
            yield server
    except NoPostgres as error:
        pytest.skip(str(error))
