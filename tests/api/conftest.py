"""A small real server over HTTP, in a state folder of its own, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import harvester
from bench.harness.servers.jobs_server import JobsServer, serving
from harvester.api.client import Harvester


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HARVESTER_URL", "HARVESTER_API_KEY", "HARVESTER_STATE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobsServer]:
    with serving(tmp_path_factory.mktemp("server") / "state") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: JobsServer) -> Iterator[Harvester]:
    with harvester.connect(server.url) as connected:
        yield connected
