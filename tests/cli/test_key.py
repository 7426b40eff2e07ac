"""`HARVESTER_API_KEY`: sent with every request, and named where a server refuses."""

from __future__ import annotations

import json

import httpx
import pytest

from harvester.cli.client import Client
from harvester.errors import KeyRefusedError, UsageError

REFUSED = (401, KeyRefusedError("this server asks for an API key, and none came; HARVESTER_API_KEY").to_json())


@pytest.mark.parametrize(("key", "sent"), [("secret", "Bearer secret"), ("", None), (None, None)])
def test_the_key_of_the_environment_goes_with_every_request(monkeypatch: pytest.MonkeyPatch, key: str | None, sent: str | None) -> None:
    if key is not None:
        monkeypatch.setenv("HARVESTER_API_KEY", key)
    asked: list[tuple[str, str | None]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append((request.url.path, request.headers.get("authorization")))
        return httpx.Response(200, json={"jobs": [], "count": 1})

    with Client("http://127.0.0.1:8000", httpx.MockTransport(answer)) as client:
        client.newest(1)
        client.count_tokens("m", [])
        with client.stream("/v1/chat/completions", {}) as lines:
            list(lines)
    assert asked == [(path, sent) for path in ("/api/jobs", "/tokenize", "/v1/chat/completions")]


def test_a_key_that_cannot_be_sent_is_wrong_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARVESTER_API_KEY", "schlüssel\n")
    with pytest.raises(UsageError, match="HARVESTER_API_KEY contains characters"):
        Client("http://127.0.0.1:8000")


@pytest.mark.parametrize("words", [("jobs",), ("show",), ("pause", "docs-7f3a"), ("chat", "hello")], ids=" ".join)
def test_a_server_that_refuses_the_key_is_not_taken_for_none(server, cli, words) -> None:
    server.answers["/api/server"] = REFUSED
    result = cli(*words)
    assert result.exit_code == 2
    assert result.stderr == f"error: {REFUSED[1]['error']['message']}\n"
    assert [path for _, path, _ in server.asked] == ["/api/server"]


def test_doctor_names_the_refusal(server, cli) -> None:
    server.answers["/api/server"] = REFUSED
    result = cli("doctor", "--json")
    assert result.exit_code == 1
    found = {check["name"]: check for check in json.loads(result.stdout)["checks"]}["server"]
    assert (found["verdict"], found["found"]) == ("broken", REFUSED[1]["error"]["message"])
