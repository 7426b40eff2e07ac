"""One real server for the whole suite: Ray Serve, HAProxy, vLLM on CPU, the embedded model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real_server import RealServer

CONFIG = Path(__file__).parents[1] / "small.yaml"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with RealServer(tmp_path_factory.mktemp("serve") / "state", CONFIG) as running:
        yield running


@pytest.fixture(scope="session")
def model(server: RealServer) -> str:
    return str(server.get("/api/server")["model"])
