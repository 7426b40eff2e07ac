"""One real server for the whole suite: Ray Serve, HAProxy, vLLM on CPU, the embedded model."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real_server import RealServer

PROFILE_WAIT_S = 300.0
CONFIG = Path(__file__).parents[1] / "small.yaml"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    state = tmp_path_factory.mktemp("serve") / "state"
    with RealServer(state, CONFIG) as running:
        end_s = time.monotonic() + PROFILE_WAIT_S
        while not list(state.glob("profiles/*.json")):  # a new server measures its engine first, with requests of its own
            assert time.monotonic() < end_s, "the engine was not profiled"
            time.sleep(0.2)
        yield running


@pytest.fixture(scope="session")
def model(server: RealServer) -> str:
    return str(server.get("/api/server")["model"])
