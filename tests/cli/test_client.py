"""The client: what it does when a connection closes under a request, and how it signs a submission."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest

from connectors.databases.stall import MAX_UNSEEN_S
from harvester.api.flow import TRIES
from harvester.api.wire import SUBMIT_S
from harvester.cli.client import Client
from harvester.errors import QuotaError, UnreachableError
from jobs.access.handle import HEADER, is_signed, make_key
from jobs.spec import JobRequest, SourceSpec
from jobs.storage.folder import StateFolder
from tests.fakes.http_server import job_view


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
        assert client.newest(1) == ([], 0)
    assert server.asked == ["GET", "GET"]


def test_a_server_that_closes_every_connection_is_out_of_reach() -> None:
    server = Closing(2)
    with client_of(server) as client, pytest.raises(UnreachableError, match="check that the server runs"):
        client.newest(1)
    assert server.asked == ["GET", "GET"]


def test_an_order_is_not_given_twice() -> None:
    server = Closing(1)
    with client_of(server) as client, pytest.raises(UnreachableError):
        client.count_tokens("m", [])
    assert server.asked == ["POST"]


class Limited:
    """Refuses the first ``times`` requests as too many."""

    def __init__(self, times: int, retry_after: str) -> None:
        self.left = times
        self.retry_after = retry_after
        self.asked: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.method)
        if self.left == 0:
            return httpx.Response(200, json={"count": 7})
        self.left -= 1
        told = {"error": {"code": "rate_limit_exceeded", "message": "this key has used its 60 requests a minute"}}
        return httpx.Response(429, headers={"retry-after": self.retry_after}, json=told)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waits: list[float] = []
    monkeypatch.setattr("harvester.cli.client.time.sleep", waits.append)
    return waits


def test_a_request_above_a_limit_is_sent_again_when_the_server_says(waits: list[float]) -> None:
    server = Limited(2, "7")
    with Client("http://127.0.0.1:8000", httpx.MockTransport(server)) as client:
        assert client.count_tokens("m", []) == 7
    assert (server.asked, waits) == (["POST"] * 3, [7.0, 7.0])


@pytest.mark.parametrize(("retry_after", "times"), [("60", 1), ("7", TRIES)], ids=["for long", "each time"])
def test_a_limit_that_does_not_end_soon_is_told(waits: list[float], retry_after: str, times: int) -> None:
    server = Limited(TRIES, retry_after)
    with Client("http://127.0.0.1:8000", httpx.MockTransport(server)) as client, pytest.raises(QuotaError, match="60 requests a minute"):
        client.count_tokens("m", [])
    assert (len(server.asked), waits) == (times, [7.0] * (times - 1))


def test_an_answer_that_came_damaged_is_told_in_one_line() -> None:
    """It is said to be gzip, and is not."""

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-encoding": "gzip"}, stream=httpx.ByteStream(b"[]"))

    with Client("http://127.0.0.1:8000", httpx.MockTransport(answer)) as client, pytest.raises(UnreachableError, match="came damaged"):
        client.newest(1)


def test_a_submission_is_signed_with_the_key_of_the_servers_state_folder(tmp_path: Path) -> None:
    key, sent = make_key(StateFolder(tmp_path)), list[httpx.Request]()

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        info = {"version": "0.1.0", "model": "tiny", "state": str(tmp_path), "url": "http://127.0.0.1:8000"}
        found = info if request.method == "GET" else {"job": job_view().model_dump(mode="json"), "created": True}
        return httpx.Response(200, json=found)

    with Client("http://127.0.0.1:8000", httpx.MockTransport(answer)) as client:
        client.submit(JobRequest(source=SourceSpec(uri="/docs.parquet")))
    *_, last = sent
    assert is_signed(key, last.headers[HEADER], "POST", "/api/jobs", last.content, time.time())
    assert key not in str(last.headers)


def test_a_submit_waits_longer_than_a_database_may_read_before_it_gives_a_row():
    assert SUBMIT_S > 1.5 * MAX_UNSEEN_S
