"""The wall before an application: what is not listed, who may, from where, how much, and how a refusal looks."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from starlette.responses import JSONResponse

from harvester.config import ServeConfig
from harvester.core import Role
from harvester.errors import ConfigError
from harvester.serve.access.gate import Gate, check_listening, gate_of, requiring_keys_if_any
from harvester.serve.access.identity import Identity
from harvester.serve.access.keys import KeyFile, KeyRing
from harvester.serve.access.origin import OriginCheck
from harvester.serve.access.routes import ANY, CHAT, CHAT_ROUTES, JOBS_ROUTES, OPEN, OPENAI_ROUTES, SHUT, RouteTable
from harvester.serve.access.wall import guard
from harvester.serve.access.who import identity_of
from harvester.serve.http.jobs.jobs_api import jobs_api
from harvester.serve.openai.api import openai_api
from jobs.access.limits import Limits
from jobs.config import HarvestConfig
from jobs.plan.planner import JobPlanner
from jobs.storage.folder import StateFolder
from tests.doors.stock import routes_of

TABLE = RouteTable(
    {
        "GET /": OPEN,
        "GET /any": ANY,
        "POST /say": CHAT,
        "GET /shut": SHUT,
        "GET /jobs/{job_id}": ANY,
        "POST /busy": ANY,
        "POST /hear": CHAT,
        "PUT /keep": ANY,
    },
    model_requests=("POST /say",),
    streamed=("POST /hear",),
    uploads=("PUT /keep",),
)
PREFIXED = ((CHAT_ROUTES, ""), (JOBS_ROUTES, "/api"), (OPENAI_ROUTES, ""))
KEYS = ("chatter", "batcher", "watcher", "boss")


class Directory:
    """Knows a key of each role, named like it."""

    roles = dict(zip(KEYS, Role, strict=False)) | {"boss": Role.ADMIN, "watcher": Role.METRICS}

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()

    def asks_for_key(self) -> bool:
        return True

    def identify(self, bearer: str) -> Identity | None:
        return Identity(bearer, frozenset({self.roles[bearer]}), self.limits) if bearer in self.roles else None


def application() -> FastAPI:
    app = FastAPI()

    @app.api_route("/{path:path}", methods=["GET", "POST", "PUT", "DELETE"])
    async def echo(request: Request, path: str) -> JSONResponse:
        body = await request.body()
        heard = {
            "name": identity_of(request).name,
            "may": sorted(identity_of(request).roles),
            "body": body.decode(),
            "priority": request.headers.get("x-vllm-priority"),
        }
        return JSONResponse(heard, 503 if path == "busy" else 200)

    return app


def client(gate: Gate, table: RouteTable = TABLE) -> httpx.AsyncClient:
    app = application()
    guard(app, table, gate)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)  # of an application that was told that its client has gone
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000")


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with client(Gate(Directory(Limits(max_body_bytes=2000)), OriginCheck(()))) as made:
        yield made


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def refusal(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"}
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert "\n" not in answer.json()["error"]["message"]
    return dict(answer.json()["error"])


# -- routes -------------------------------------------------------------------------------------------------------------------------


def test_every_route_of_our_applications_is_listed(tmp_path: Any) -> None:
    class Nothing:
        pass

    nothing: Any = Nothing()
    jobs = jobs_api(nothing, JobPlanner(StateFolder(tmp_path), HarvestConfig(), "tiny"), nothing, None, nothing)
    openai = openai_api(nothing, nothing)
    both = openai_api(None, nothing)
    assert [route for route in routes_of(jobs) if route not in JOBS_ROUTES.routes] == []
    assert [route for app in (openai, both) for route in routes_of(app) if route not in OPENAI_ROUTES.routes] == []


@pytest.mark.parametrize("page", ["SECURITY.md", "docs/guide.md"])
def test_the_tables_of_roles_name_what_every_key_may_ask(page: str) -> None:
    text = (Path(__file__).parents[2] / page).read_text()
    (row,) = [line for line in text.splitlines() if re.match(r"\| (a key of )?any role \|", line)]
    paths = [f"{prefix}{name.partition(' ')[2]}" for table, prefix in PREFIXED for name, needed in table.routes.items() if needed == ANY]
    wanted = {path for path in paths if not path.endswith((".json", "/docs", "/oauth2-redirect", "/redoc"))}
    assert {f"`{path}`" for path in (*wanted, "/docs", "/openapi.json")} <= set(re.findall("`[^`]+`", row))


@pytest.mark.parametrize("key", [None, "boss"])
@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/unlisted"), ("GET", "/shut"), ("DELETE", "/any"), ("GET", "//any"), ("GET", "/jobs/a/b"), ("GET", "/ANY")],
)
async def test_what_nobody_listed_is_not_there_for_anybody(http: httpx.AsyncClient, method: str, path: str, key: str | None) -> None:
    error = refusal(await http.request(method, f"http://127.0.0.1:8000{path}", headers=bearer(key) if key else {}), 404)
    assert error["code"] == "not_found"


async def test_without_keys_everybody_may_what_is_listed_and_nothing_else() -> None:
    async with client(Gate()) as http:
        assert (await http.get("/any", headers=bearer("whatever"))).json()["name"] is None
        refusal(await http.get("/unlisted"), 404)
        refusal(await http.get("/shut"), 404)


async def test_a_configuration_gives_a_route_to_a_role() -> None:
    async with client(Gate(Directory()), TABLE.with_routes({"POST /invocations": Role.CHAT})) as http:
        assert (await http.post("/invocations", json={}, headers=bearer("chatter"))).status_code == 200
        refusal(await http.post("/invocations", json={"n": 1000}, headers=bearer("chatter")), 413)
        refusal(await http.post("/invocations", json={}, headers=bearer("batcher")), 403)


async def test_a_web_socket_is_refused() -> None:
    app, sent = application(), []
    guard(app, TABLE, Gate())

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    await app({"type": "websocket", "path": "/any", "headers": []}, receive, send)
    assert [message["type"] for message in sent] == ["websocket.close"]


# -- keys and roles -----------------------------------------------------------------------------------------------------------------


async def test_health_and_the_page_need_no_key_and_all_else_does(http: httpx.AsyncClient) -> None:
    assert (await http.get("/", headers=bearer("boss"))).json()["may"] == []
    assert (await http.head("/")).status_code != 401
    answer = await http.get("/any")
    assert "none was sent" in refusal(answer, 401)["message"]
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "unknown" in refusal(await http.get("/any", headers=bearer("stranger")), 401)["message"]


@pytest.mark.parametrize(("key", "status"), [("chatter", 200), ("boss", 200), ("batcher", 403), ("watcher", 403)])
async def test_a_role_opens_its_own_routes(http: httpx.AsyncClient, key: str, status: int) -> None:
    answer = await http.post("/say", json={}, headers=bearer(key))
    assert answer.status_code == status
    if status == 403:
        assert refusal(answer, 403)["code"] == "insufficient_role"


@pytest.mark.parametrize(
    ("route", "roles"),
    [
        ("POST /v1/chat/completions", {"chat"}),
        ("POST /tokenize", {"chat", "batch"}),
        ("GET /metrics", {"metrics"}),
        ("GET /version", {"chat", "batch", "metrics", "admin"}),
        ("POST /v1/load_lora_adapter", {"admin"}),
    ],
)
def test_who_may_what(route: str, roles: set[str]) -> None:
    assert CHAT_ROUTES.routes[route] == roles


# -- host and origin ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "[", ""])
@pytest.mark.parametrize("path", ["/", "/any"])
async def test_a_foreign_name_for_this_server_is_refused_everywhere(http: httpx.AsyncClient, path: str, host: str) -> None:
    error = refusal(await http.get(path, headers={**bearer("boss"), "host": host}), 403)
    assert error["code"] == "cross_site"


@pytest.mark.parametrize(
    ("method", "headers", "passes"),
    [
        ("GET", {"origin": "http://evil.example"}, False),
        ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}, False),
        ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, False),
        ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, True),
        ("POST", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, False),
        ("GET", {"sec-fetch-site": "same-origin", "origin": "http://127.0.0.1:8000"}, True),
        ("OPTIONS", {"origin": "http://evil.example"}, False),
    ],
    ids=["a script elsewhere", "fetched", "embedded", "a link", "a form", "own page", "asks first"],
)
async def test_a_page_of_another_site_reads_and_changes_nothing(
    http: httpx.AsyncClient, method: str, headers: dict[str, str], passes: bool
) -> None:
    path = "/any" if method != "POST" else "/say"
    answer = await http.request(method, path, headers={**bearer("boss"), **headers}, content="{}" if method == "POST" else None)
    assert (answer.status_code == 403) is not passes


async def test_a_page_that_the_configuration_names_may_call() -> None:
    async with client(Gate(Directory(), OriginCheck((), ["https://app.example"]))) as http:
        page = {"origin": "https://app.example", "sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}
        asked = await http.options("/any", headers={**page, "access-control-request-method": "GET"})
        assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (200, "https://app.example")
        assert (await http.get("/any", headers={**page, **bearer("boss")})).status_code == 200


@pytest.mark.parametrize(
    ("path", "key", "status"),
    [("/any", "boss", 200), ("/any", "stranger", 401), ("/say", "batcher", 403), ("/unlisted", "boss", 404), ("/say", "boss", 413)],
)
async def test_a_page_that_the_configuration_names_may_read_every_answer(path: str, key: str, status: int) -> None:
    gate = Gate(Directory(Limits(max_body_bytes=1024)), OriginCheck((), ["https://app.example"]))
    async with client(gate) as http:
        page = {"origin": "https://app.example", "sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}
        method, body = ("GET", b"") if path != "/say" else ("POST", b" " * 2000)
        answer = await http.request(method, path, content=body, headers={**page, **bearer(key)})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, "https://app.example")
        shown = {name.strip() for name in answer.headers["access-control-expose-headers"].split(",")}
        assert shown == {"x-request-id", "retry-after"}
        other = await http.request(method, path, content=body, headers={**page, **bearer(key), "origin": "https://evil.example"})
        assert (other.status_code, other.headers.get("access-control-allow-origin")) == (403, None)
        asked = {**page, "access-control-request-method": method}
        refused = [
            await http.options("/unlisted", headers=asked),
            await http.options(path, headers={**asked, "origin": "https://evil.example"}),
        ]
        assert [one.status_code for one in refused] == [404, 403]


# -- bodies -------------------------------------------------------------------------------------------------------------------------


async def test_the_application_reads_the_body_that_was_sent(http: httpx.AsyncClient) -> None:
    body = '{"messages": [ ],"n":2}'
    answer = await http.post("/say", content=body, headers={**bearer("boss"), "x-vllm-priority": "-100"})
    assert answer.json() == {"name": "boss", "may": ["admin"], "body": body, "priority": None}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"priority": -100}, "priority"),
        ({"priority": "-100"}, "priority"),
        ({"priority": [1]}, "priority"),
        ({"vllm_xargs": {"share": 0.9, "slo_class": "voice"}}, "vllm_xargs"),
        ({"kv_transfer_params": {"do_remote_prefill": True}}, "kv_transfer_params"),
        ({"vllm_xargs": {"kv_transfer_params": "x"}}, "kv_transfer_params"),
        ([], None),
    ],
    ids=str,
)
@pytest.mark.parametrize("key", ["chatter", "boss"])
async def test_what_only_the_server_says_to_its_engine_is_refused(
    http: httpx.AsyncClient, body: object, param: str | None, key: str
) -> None:
    assert refusal(await http.post("/say", json=body, headers=bearer(key)), 400)["param"] == param


@pytest.mark.parametrize(
    "body", ["", "{", "[" * 900, '{"a": "\udcff"}'.encode("utf-8", "surrogateescape")], ids=["none", "cut", "deep", "bytes"]
)
async def test_a_body_that_is_no_json_is_refused(http: httpx.AsyncClient, body: Any) -> None:
    assert "JSON" in refusal(await http.post("/say", content=body, headers=bearer("boss")), 400)["message"]


async def test_every_spelling_of_json_is_checked(http: httpx.AsyncClient) -> None:
    body = json.dumps({"priority": -100}).encode("utf-16")
    assert refusal(await http.post("/say", content=body, headers=bearer("boss")), 400)["param"] == "priority"


@pytest.mark.parametrize("path", ["/busy", "/hear"], ids=["read here", "read by the route"])
@pytest.mark.parametrize("is_told", [True, False], ids=["with its length", "in chunks"])
async def test_a_body_above_the_limit_is_refused_before_it_is_held(http: httpx.AsyncClient, is_told: bool, path: str) -> None:
    sent = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(100):
            sent += 1
            yield b" " * 1000

    headers = {**bearer("boss"), **({"content-length": "100000"} if is_told else {})}
    error = refusal(await http.post(path, content=chunks(), headers=headers), 413)
    assert error["code"] == "too_large"
    assert sent < 10


async def test_the_bytes_of_an_upload_are_bounded_by_its_route(http: httpx.AsyncClient) -> None:
    assert (await http.put("/keep", content=b"1" * 3000, headers=bearer("boss"))).json()["body"] == "1" * 3000
    routes = [(CHAT_ROUTES, "POST", "/v1/audio/transcriptions"), (OPENAI_ROUTES, "POST", "/v1/files"), (JOBS_ROUTES, "PUT", "/uploads/a/b")]
    found = [table.find(method, path) for table, method, path in routes]
    assert [(route.is_streamed, route.is_upload) for route in found if route] == [(True, False), (True, True), (True, True)]


async def test_a_busy_answer_says_when_to_come_again(http: httpx.AsyncClient) -> None:
    answer = await http.post("/busy", headers=bearer("boss"))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


# -- quotas -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [lambda count: {"n": count}, lambda count: {"input": ["a"] * count}], ids=["choices", "inputs"])
async def test_a_request_for_many_answers_counts_as_many(asked: Callable[[int], dict[str, Any]]) -> None:
    async with client(Gate(Directory(Limits(requests_per_minute=10)))) as http:
        assert (await http.post("/say", json=asked(9), headers=bearer("boss"))).status_code == 200
        answer = await http.post("/say", json=asked(5), headers=bearer("boss"))
        assert refusal(answer, 429)["code"] == "rate_limit_exceeded"
        assert 25 < int(answer.headers["retry-after"]) <= 30  # five at ten a minute: what was left went to reading this one
        assert (await http.post("/say", json=asked(9), headers=bearer("chatter"))).status_code == 200


async def test_an_upload_counts_when_it_begins_and_not_with_each_piece() -> None:
    async with client(Gate(Directory(Limits(requests_per_minute=2)))) as http:
        asked = ["", "?offset=3", "?offset=00", "?offset=4", "?offset=0", "?offset=+0", "?offset=5&offset=0", "?offset=6"]
        got = [(await http.put(f"/keep{query}", content=b"1", headers=bearer("boss"))).status_code for query in asked]
    assert got == [200, 200, 200, 200, 429, 429, 429, 200]


async def test_an_upload_is_a_request_in_work_until_its_piece_has_come() -> None:
    async with client(Gate(Directory(Limits(open_requests=1)))) as http:

        async def put(content: bytes | AsyncIterator[bytes]) -> int:
            return (await http.put("/keep", content=content, headers=bearer("boss"))).status_code

        async def body() -> AsyncIterator[bytes]:
            yield b"1"
            meanwhile.append(await put(b"1"))

        meanwhile: list[int] = []
        assert (await put(body()), meanwhile, await put(b"1")) == (200, [429], 200)


LOOKS = {
    "jobs": (JOBS_ROUTES, "/jobs", ("/sources/seen", "/plan", "/sql", "/sql/answers", "/jobs/a/pause", "/jobs/a/cancel")),
    "batches": (OPENAI_ROUTES, "/v1/batches", ("/v1/batches/a/cancel",)),
}


@pytest.mark.parametrize(("table", "work", "looks"), LOOKS.values(), ids=LOOKS)
async def test_what_only_looks_or_stops_uses_up_no_request_and_passes_where_none_is_left(
    table: RouteTable, work: str, looks: tuple[str, ...]
) -> None:
    async with client(Gate(Directory(Limits(requests_per_minute=1))), table) as http:
        got = [(await http.post(path, headers=bearer("batcher"))).status_code for path in (*looks, work, *looks, work)]
    assert got == [*[200] * len(looks), 200, *[200] * len(looks), 429]


@pytest.mark.parametrize("verb", ["retry", "resume"])
async def test_what_sets_a_job_to_work_counts_as_a_request(verb: str) -> None:
    async with client(Gate(Directory(Limits(requests_per_minute=1))), JOBS_ROUTES) as http:
        got = [(await http.post(f"/jobs/a/{verb}", headers=bearer("batcher"))).status_code for _ in range(2)]
    assert got == [200, 429]


# -- listening ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_key", [True, False], ids=["with a key", "without"])
def test_a_loopback_host_never_stands_before_replicas_that_listen_to_the_network(tmp_path: Any, has_key: bool) -> None:
    keys = tmp_path / "keys.json"
    if has_key:
        KeyFile(keys).add("ann", [Role.CHAT])
    config = ServeConfig(address="10.0.0.1:6379", ingress="haproxy")
    with pytest.raises(ConfigError, match=r"host 127\.0\.0\.1 with ingress haproxy: the replicas .* listen on the network"):
        check_listening(config, keys)


@pytest.mark.parametrize(
    ("host", "passes"), [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("10.0.0.7", False)]
)
def test_a_server_without_keys_listens_to_its_own_machine(tmp_path: Any, host: str, passes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    config = ServeConfig(host=host)
    keys = tmp_path / "keys.json"
    if passes:
        assert check_listening(config, keys) == "this machine"
        return
    with pytest.raises(ConfigError, match="harvester key add NAME, or say --no-keys"):
        check_listening(config, keys)
    assert check_listening(ServeConfig.model_validate({"host": host, "access": {"no_keys": True}}), keys) == "the network"
    assert check_listening(ServeConfig.model_validate({"host": host, "engine": {"api_key": "one"}}), keys) is None
    KeyFile(keys).add("ann", [Role.CHAT])
    assert check_listening(config, keys) is None


@pytest.mark.parametrize(
    ("values", "asks"),
    [
        ({}, False),
        ({"host": "0.0.0.0"}, True),
        ({"host": "0.0.0.0", "access": {"no_keys": True}}, False),
        ({"access": {"no_keys": False}}, True),
    ],
    ids=["on loopback", "on the network", "that needs none", "that always asks"],
)
def test_a_process_that_finds_no_key_asks_for_one_unless_its_server_needs_none(
    tmp_path: Any, values: dict[str, Any], asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    config, keys = ServeConfig.model_validate(values), tmp_path / "keys.json"
    assert requiring_keys_if_any(config, keys) == config
    assert gate_of(config, keys).keys.asks_for_key() is asks
    KeyFile(keys).add("ann", [Role.CHAT])
    begun = requiring_keys_if_any(config, keys)
    keys.unlink()
    assert gate_of(begun, keys).keys.asks_for_key(), "there was a key when the server began"


def test_a_server_on_loopback_that_always_asks_is_open_to_nobody(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    assert check_listening(ServeConfig.model_validate({"access": {"no_keys": False}}), tmp_path / "keys.json") is None


def test_a_gate_is_made_of_the_configuration(tmp_path: Any) -> None:
    config = ServeConfig.model_validate({"engine": {"api_key": "one"}, "access": {"limits": {"max_choices": 3}}})
    gate = gate_of(config, tmp_path / "keys.json", replicas=2)
    found = gate.keys.identify("one")
    assert found is not None
    assert (found.is_admin, found.limits.max_choices, gate.keyless.limits.max_choices) == (True, 3, 3)
    assert isinstance(gate.keys, KeyRing)


# -- names of requests --------------------------------------------------------------------------------------------------------------


async def test_every_answer_names_its_request_by_the_clients_own_name_or_one_of_ours(http: httpx.AsyncClient) -> None:
    named = await http.get("/any", headers=bearer("boss") | {"x-request-id": "mine:1"})
    refused = await http.get("/unlisted")
    others = {(await http.get("/any", headers=bearer("boss"))).headers["x-request-id"] for _ in range(2)}
    assert named.headers["x-request-id"] == "mine:1"
    assert len(others | {refused.headers["x-request-id"]}) == 3


@pytest.mark.parametrize("name", ["two words", "a" * 129, 'quote"', ""], ids=["two words", "long", "a quote", "empty"])
async def test_a_name_that_could_be_mistaken_is_replaced_for_the_application_too(name: str) -> None:
    app, heard = FastAPI(), list[str | None]()

    @app.get("/any")
    async def hears(request: Request) -> JSONResponse:
        heard.append(request.headers.get("x-request-id"))
        return JSONResponse({})

    guard(app, TABLE, Gate())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8000") as http:
        told = (await http.get("/any", headers={"x-request-id": name})).headers["x-request-id"]
    assert heard == [told]
    assert len(told) == 32
