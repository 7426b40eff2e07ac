"""Storages to test with: a folder that machines share, and buckets on two servers that speak S3."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyarrow import fs

from tests.s3_server import credentials, s3_server
from tools.rclone import NoRclone, s3_over
from tools.s3 import S3

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    with s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """A server of another kind."""
    try:
        with s3_over(tmp_path_factory.mktemp("rclone")) as place, credentials():
            yield S3(*place)
    except NoRclone as error:
        pytest.skip(str(error))


@pytest.fixture(params=["folder", "s3"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URI of an empty storage."""
    return _empty(request, tmp_path)


@pytest.fixture(params=["folder", "s3", "rclone"])
def any_uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The same. On rclone's server a removal hides the folder's other files: Arrow then makes an empty object for the folder."""
    return _empty(request, tmp_path)


def _empty(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return str(tmp_path / "shared")
    server: S3 = request.getfixturevalue(request.param)
    name = f"bucket{next(_NUMBERS)}"
    files, _ = fs.FileSystem.from_uri(f"s3://{name}{server.options}&allow_bucket_creation=true")
    files.create_dir(name)
    return f"s3://{name}/harvester{server.options}"


@pytest.fixture
def machine(tmp_path: Path) -> Callable[[str], Path]:
    """The disk of a machine, by name: a folder of its own."""

    def made(name: str) -> Path:
        (tmp_path / name).mkdir(exist_ok=True)
        return tmp_path / name

    return made
