"""Commands run as a user would run them, against no server or a fake one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import harvester.client_environment
from harvester.cli.job import progress
from harvester.cli.main import app
from tests.fakes.http_server import FakeServer, handler_of


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, state: Path) -> None:
    """No server by default: nothing listens on port 9 of this machine. Polls come at once."""
    monkeypatch.setattr(harvester.client_environment, "DEFAULT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("HARVESTER_STATE", str(state))
    monkeypatch.delenv("HARVESTER_URL", raising=False)
    monkeypatch.delenv("HARVESTER_API_KEY", raising=False)
    monkeypatch.setattr(progress, "POLL_S", 0.001)


@pytest.fixture
def silent_server(state: Path) -> Iterator[FakeServer]:
    """A server that runs, and that no command has been told of."""
    fake = FakeServer(state=str(state))
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(fake))
    http.daemon_threads = True
    fake.url = f"http://127.0.0.1:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield fake
    http.shutdown()
    thread.join()
    http.server_close()


@pytest.fixture
def server(silent_server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    monkeypatch.setattr(harvester.client_environment, "DEFAULT_URL", silent_server.url)
    return silent_server


@pytest.fixture
def cli() -> Callable[..., Result]:
    return lambda *words, **options: CliRunner().invoke(app, [str(word) for word in words], prog_name="harvester", **options)
