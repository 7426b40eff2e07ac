"""What is shipped to operate a server with: the message to systemd, the unit, the health check of a container."""

from __future__ import annotations

import configparser
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest

from harvester.config import ServeConfig
from harvester.engine.launch.models import ModelChoice, choose_model, on_this_machine
from harvester.errors import ConfigError, EngineError
from harvester.serve.notify import notify
from harvester.serve.supervisor import STOP_MARGIN_S

OPERATE = Path(__file__).parents[2] / "docs" / "operate"


@pytest.mark.parametrize("abstract", [False, True], ids=["a path", "an abstract address"])
def test_systemd_is_told_that_the_server_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool) -> None:
    name = f"harvester-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0{name}" if abstract else name)
        systemd.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}" if abstract else name)
        notify("READY=1")
        assert systemd.recv(100) == b"READY=1"


def test_without_systemd_nobody_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    notify("READY=1")  # a manager that has gone is no error of ours
    assert list(tmp_path.iterdir()) == []


def unit() -> configparser.SectionProxy:
    """Section ``Service`` of the shipped unit, in which each key stands once."""
    found = configparser.ConfigParser(strict=True, interpolation=None)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read(OPERATE / "harvester.service")
    return found["Service"]


def test_the_unit_gives_open_chats_their_time() -> None:
    service = unit()
    assert service["Type"] == "notify"
    assert service["Restart"] == "always"
    assert float(service["TimeoutStopSec"]) >= ServeConfig().drain_s + STOP_MARGIN_S


def test_an_engine_that_the_kernel_kills_for_memory_does_not_end_the_unit() -> None:
    assert unit()["OOMPolicy"] == "continue"  # the default is to stop all of it


def test_the_unit_sees_the_sockets_of_a_cluster_that_it_joins() -> None:
    assert "PrivateTmp" not in unit()  # Ray of that machine has them in /tmp/ray


def test_the_user_of_the_unit_has_a_home_for_models() -> None:
    service = unit()
    home = dict(one.split("=", 1) for one in service["Environment"].split())["HOME"]
    assert home == f"/var/cache/{service['CacheDirectory']}"
    made = re.search(r"^# .*useradd .*--home-dir (\S+) .*?(\S+)$", (OPERATE / "harvester.service").read_text(), re.MULTILINE)
    assert made is not None
    assert made.groups() == (home, service["User"])


def test_a_wrong_config_is_not_tried_again_and_a_hub_that_is_away_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*given: object, **named: object) -> None:
        raise httpx.ConnectError("no route to host")

    monkeypatch.setattr("httpx.head", away)
    assert unit()["RestartPreventExitStatus"] == str(ConfigError.exit_code)
    choice = ModelChoice("harvester-tests/on-no-hub", "m", None, embedded=False)
    for look in (lambda: choose_model(choice.path, None), lambda: on_this_machine(choice)):
        with pytest.raises(EngineError, match="hub cannot be reached") as caught:
            look()
        assert caught.value.exit_code not in (0, ConfigError.exit_code)


@contextmanager
def answering(status: int) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *given: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def health(url: str) -> int:
    command = [str(OPERATE / "healthcheck")]
    return subprocess.run(command, env={**os.environ, "HARVESTER_URL": url, "PYTHON": sys.executable}, capture_output=True).returncode


def test_the_health_check_tells_a_server_that_answers_from_one_that_does_not() -> None:
    with answering(200) as url:
        assert health(url) == 0
    assert health(url) == 1
    with answering(503) as url:
        assert health(url) == 1


def test_the_health_check_asks_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with answering(200) as url:
        assert health(url) == 0
