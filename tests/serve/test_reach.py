"""Which answers on a port count as those of an application."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from harvester.errors import EngineError
from harvester.ports import free_port
from harvester.serve import reach
from harvester.serve.reach import SURE, Reach, unreached

pytestmark = pytest.mark.serve
HERE, PATHS = "127.0.0.1", ("/", "/api/jobs")


@contextmanager
def ingress(statuses: dict[str, int]) -> Iterator[int]:
    """The port of a server that answers each path with its status."""

    class Handler(BaseHTTPRequestHandler):
        def do_OPTIONS(self) -> None:
            self.send_response(statuses[self.path])
            self.end_headers()

        def log_message(self, *given: object) -> None: ...

    server = ThreadingHTTPServer((HERE, 0), Handler)
    threading.Thread(target=server.serve_forever).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("status", [404, 502, 503])
def test_a_port_is_reached_once_every_application_answers_in_two_looks(status: int) -> None:
    statuses = {"/": 405, "/api/jobs": status}
    with ingress(statuses) as port:
        found = Reach(HERE, port, PATHS)
        assert not any(found.is_whole() for _ in range(SURE + 1))
        statuses["/api/jobs"] = 401
        assert [found.is_whole() for _ in range(SURE)] == [False] * (SURE - 1) + [True]


def test_a_port_that_leads_nowhere_is_named_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "PATIENCE_S", -1.0)
    port = free_port()
    with pytest.raises(EngineError, match=rf"port {port} on {HERE} has not led to /"):
        Reach(HERE, port, PATHS).is_whole()


def test_other_machines_are_waited_for_until_their_ports_lead_to_every_application(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "LOOK_S", 0.0)
    late = {"/": 200, "/api/jobs": 503}

    def come(seconds: float) -> None:
        late["/api/jobs"] = 401

    monkeypatch.setattr("time.sleep", come)
    with ingress({"/": 200, "/api/jobs": 401}) as one, ingress(late) as other:
        ports = {"n1": Reach(HERE, one, PATHS), "n2": Reach(HERE, other, PATHS)}
        assert unreached(ports, lambda: False) == []
    assert late["/api/jobs"] == 401


@pytest.mark.parametrize("is_over", [True, False], ids=["told to stop", "the time is over"])
def test_a_machine_whose_port_stays_shut_is_named_and_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch, *, is_over: bool) -> None:
    monkeypatch.setattr(reach, "ELSEWHERE_S", 3600.0 if is_over else 0.0)
    assert unreached({"n1": Reach(HERE, free_port(), PATHS)}, lambda: is_over) == ["n1"]


@pytest.mark.parametrize("is_stopped", [True, False], ids=["told to stop", "the time is over"])
def test_many_machines_are_not_each_looked_at_once_the_wait_is_over(monkeypatch: pytest.MonkeyPatch, *, is_stopped: bool) -> None:
    """A look at a machine that does not answer may take 5 s for each path."""
    looks: list[int] = []
    monkeypatch.setattr(reach, "ELSEWHERE_S", 3600.0 if is_stopped else 2.0)
    monkeypatch.setattr(reach, "time", SimpleNamespace(monotonic=lambda: float(len(looks))))

    def shut(number: int) -> Any:
        return SimpleNamespace(is_whole=lambda: bool(looks.append(number)))

    names = [f"n{number}" for number in range(50)]
    ports = {name: shut(number) for number, name in enumerate(names)}
    assert unreached(ports, lambda: is_stopped and len(looks) == 2) == names
    assert looks == [0, 1]
