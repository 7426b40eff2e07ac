"""The client, where the connection under a request is closed."""

from __future__ import annotations

import httpx
import pytest

from harvester.cli.client import Client
from harvester.errors import UnreachableError


class Closing:
    """Closes the first ``times`` connections without an answer."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.asked: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.method)
        if self.left:
            self.left -= 1
            raise httpx.RemoteProtocolError("Server disconnected without sending a response.")
        return httpx.Response(200, json={"jobs": [], "count": 7})


def client_of(server: Closing) -> Client:
    return Client("http://127.0.0.1:8000", httpx.MockTransport(server))


def test_a_question_is_asked_again_when_its_connection_was_closed_under_it() -> None:
    server = Closing(1)
    with client_of(server) as client:
        assert client.jobs() == []
    assert server.asked == ["GET", "GET"]


def test_a_server_that_closes_every_connection_is_out_of_reach() -> None:
    server = Closing(2)
    with client_of(server) as client, pytest.raises(UnreachableError, match="check that the server runs"):
        client.jobs()
    assert server.asked == ["GET", "GET"]


def test_an_order_is_not_given_twice() -> None:
    server = Closing(1)
    with client_of(server) as client, pytest.raises(UnreachableError):
        client.count_tokens("m", [])
    assert server.asked == ["POST"]
