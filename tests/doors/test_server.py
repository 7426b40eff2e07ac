"""The doors of a real server with keys: Ray Serve, HAProxy, vLLM on CPU, and every application behind one wall."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.harness.servers.server import READY_S
from harvester.core import Role
from harvester.serve.access.keys import KeyFile
from harvester.serve.access.routes import CHAT_ROUTES, JOBS_ROUTES, OPEN, OPENAI_ROUTES, SHUT
from jobs.access.limits import Limits
from jobs.storage.folder import StateFolder
from tests.real_server import RealServer

pytestmark = pytest.mark.serve
CONFIG = Path(__file__).parent / "with_keys.yaml"
BOSS = "boss-key"
ALL = {
    **{route: (route, needed) for route, needed in (CHAT_ROUTES.routes | OPENAI_ROUTES.routes).items()},
    **{route.replace(" /", " /api/", 1): (route, needed) for route, needed in JOBS_ROUTES.routes.items()},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with RealServer(tmp_path_factory.mktemp("doors") / "state", CONFIG) as running:
        end_s = time.monotonic() + READY_S
        while httpx.get(f"{running.url}/health", timeout=60).status_code == 503:  # HAProxy does not know the replica yet
            assert time.monotonic() < end_s
            time.sleep(0.1)
        yield running


@pytest.fixture(scope="module")
def keys(server: RealServer) -> dict[str, str]:
    """A key of each role, made while the server runs."""
    file = KeyFile(StateFolder(server.state).keys)
    made = {str(role): file.add(str(role), [role]) for role in Role}
    return made | {"slow": file.add("slow", [Role.CHAT], limits=Limits(requests_per_minute=2, tokens_per_minute=50))}


def ask(server: RealServer, method: str, path: str, key: str | None = None, **given: Any) -> httpx.Response:
    headers = {**given.pop("headers", {}), **({} if key is None else {"authorization": f"Bearer {key}"})}
    return httpx.request(method, f"{server.url}{re.sub('{.*?}', 'x', path)}", headers=headers, timeout=120, **given)


def chat(server: RealServer, key: str | None, **body: Any) -> httpx.Response:
    asked = {"model": "", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    listed = ask(server, "GET", "/v1/models", BOSS).json()["data"][0]["id"]
    return ask(server, "POST", "/v1/chat/completions", key, json=asked | {"model": listed} | body)


def test_without_a_key_only_health_and_the_pages_files_answer(server: RealServer) -> None:
    opened, failed = set(), set()
    asleep = "GET /api/asleep/{path:path}"  # answers the first three below for a model that sleeps; none does here, so it is 503
    for route, (_, needed) in ALL.items():
        method, _, path = route.partition(" ")
        if method == "WEBSOCKET":
            continue
        answer = ask(server, method, path, json={} if method == "POST" else None)
        if answer.status_code >= 500 and route != asleep:
            failed.add(f"{route}: {answer.status_code} {answer.text[:100]}")
        if answer.status_code not in (401, 404) or (needed is OPEN and answer.status_code == 404):
            opened.add(route)
        elif answer.status_code == 404:
            assert needed == SHUT, route
    assert failed == set()
    assert opened == {"GET /", "GET /health", "GET /ping", "GET /api/page/{name}", asleep}


def test_every_route_that_the_documents_name_is_listed(server: RealServer) -> None:
    """The documents are those of the running applications; vLLM's has its development routes too."""
    unlisted = []
    listed = {route.replace(":path}", "}") for route in ALL}  # a document names a parameter, and not how it is matched
    for prefix, document in (
        ("", "/openapi.json"),
        ("/api", "/api/openapi.json"),
        ("", "/v1/files/openapi.json"),
        ("", "/v1/batches/openapi.json"),
    ):
        described = ask(server, "GET", document, BOSS).json()["paths"]
        assert described
        routes = [f"{method.upper()} {prefix}{path}" for path, methods in described.items() for method in methods]
        unlisted += [route for route in routes if route not in listed]
    assert unlisted == []


@pytest.mark.parametrize("path", ["/scale_elastic_ep", "/invocations", "/collective_rpc", "/sleep", "/v1/chat/completions/render"])
def test_the_engines_controls_are_shut_to_the_administrator_too(server: RealServer, path: str) -> None:
    answer = ask(server, "POST", path, BOSS, json={"priority": -100})
    assert answer.status_code == 404
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("path", ["/", "/v1/models", "/metrics", "/api/server", "/v1/files", "/v1/batches", "/health"])
def test_a_foreign_name_for_the_server_is_refused(server: RealServer, path: str) -> None:
    answer = ask(server, "GET", path, BOSS, headers={"host": "evil.example"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "cross_site")


def test_a_role_opens_what_is_its_own(server: RealServer, keys: dict[str, str]) -> None:
    reads = {"chat": "/v1/models", "batch": "/api/jobs", "metrics": "/metrics"}
    for role in reads:
        statuses = {name: ask(server, "GET", path, keys[role]).status_code for name, path in reads.items()}
        assert statuses[role] == 200
        refused = {name for name, status in statuses.items() if status == 403}
        assert refused == set(reads) - {role} - ({"chat"} if role == "batch" else set())
    assert chat(server, keys["chat"]).status_code == 200
    assert chat(server, keys["batch"]).status_code == 403


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"priority": -100}, 400, "priority"),
        ({"vllm_xargs": {"share": 0.9}}, 400, "vllm_xargs"),
        ({"n": 2000}, 413, "n"),
        ({"structured_outputs": {"choice": [f"choice-{number}" for number in range(100_000)]}}, 413, "structured_outputs"),
    ],
    ids=["priority", "share", "choices", "grammar"],
)
def test_one_request_does_not_stop_the_others(server: RealServer, body: dict[str, Any], status: int, param: str) -> None:
    answer = chat(server, BOSS, **body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


def test_a_key_that_asks_too_much_is_told_when_to_come_again(server: RealServer, keys: dict[str, str]) -> None:
    answers = [chat(server, keys["slow"]) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[-1].json()["error"]["code"] == "rate_limit_exceeded"
    assert int(answers[-1].headers["retry-after"]) >= 1


def test_an_answer_ends_at_the_limit_of_its_key_where_the_request_gives_none(server: RealServer) -> None:
    key = KeyFile(StateFolder(server.state).keys).add("short", [Role.CHAT], limits=Limits(max_tokens=4))
    asked = {"ignore_eos": True, "max_tokens": None}
    answers = [
        chat(server, key, **asked),
        chat(server, key, **asked, n=2),
        ask(server, "POST", "/v1/completions", key, json={"prompt": "Hello", **asked}),
    ]
    choices = [choice for answer in answers for choice in answer.json()["choices"]]
    assert [choice["finish_reason"] for choice in choices] == ["length"] * 4
    assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [4, 8, 4]
    said = ask(server, "POST", "/v1/responses", key, json={"input": "Hello", "ignore_eos": True}).json()
    assert (said["status"], said["usage"]["output_tokens"], said["max_output_tokens"]) == ("incomplete", 4, 4)
    streamed = chat(server, key, **asked, stream=True, stream_options={"include_usage": True}).text
    assert '"completion_tokens":4' in streamed


def test_what_a_key_used_is_in_sql_and_on_metrics(server: RealServer, keys: dict[str, str]) -> None:
    file = KeyFile(StateFolder(server.state).keys)
    spender = file.add("spender", [Role.CHAT])
    streamed = chat(server, spender, stream=True)
    whole = chat(server, spender)
    assert (streamed.status_code, whole.status_code) == (200, 200)
    tokens = 2 * whole.json()["usage"]["prompt_tokens"], 2 * whole.json()["usage"]["completion_tokens"]
    query = "select requests, prompt_tokens, output_tokens from usage where owner = 'spender' and kind = 'chat'"
    end_s = time.monotonic() + 120
    while (rows := ask(server, "POST", "/api/sql", BOSS, json={"query": query}).json()["rows"]) != [[2, *tokens]]:
        assert time.monotonic() < end_s, rows
        time.sleep(0.5)
    metrics = ask(server, "GET", "/metrics", keys["metrics"]).text
    assert f'harvester_key_tokens_total{{key="spender",kind="output"}} {float(tokens[1])}' in metrics
    assert ask(server, "POST", "/api/sql", keys["batch"], json={"query": query}).json()["rows"] == []


def test_a_revoked_key_is_refused_at_once(server: RealServer, keys: dict[str, str]) -> None:
    file = KeyFile(StateFolder(server.state).keys)
    key = file.add("brief", [Role.CHAT])
    assert ask(server, "GET", "/v1/models", key).status_code == 200
    file.revoke("brief")
    assert ask(server, "GET", "/v1/models", key).status_code == 401
