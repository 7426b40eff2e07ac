"""Servers that ask for an API key: the jobs application, and where the keys come from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from harvester.config import ServeConfig
from harvester.serve.access.gate import Gate
from harvester.serve.access.keys import KeyRing
from harvester.serve.http.jobs.jobs_api import jobs_api
from harvester.serve.http.live.broadcast import Broadcaster
from jobs.testing import DirectLedger
from tests.fakes.office import INFO, Office, refused


def guarded(office: Office) -> FastAPI:
    async def info() -> dict[str, Any]:
        return INFO

    async def look() -> dict[str, str]:
        return {}

    planner = office.planner
    return jobs_api(
        DirectLedger(office.ledger, office.clock), planner, info, broadcaster=Broadcaster(look), gate=Gate(KeyRing(["one", "two"]))
    )


@pytest.fixture
async def http(office: Office) -> AsyncIterator[httpx.AsyncClient]:
    """Of a server with two keys, below its prefix."""
    root = FastAPI()
    root.mount("/api", guarded(office))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(root), base_url="http://jobs") as client:
        yield client


def operations(app: FastAPI) -> Iterator[tuple[str, str]]:
    for path, methods in app.openapi()["paths"].items():
        yield from ((method.upper(), path) for method in methods)
    yield from (("GET", "/events"), ("GET", "/openapi.json"))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (None, "none was sent"),
        ("one", "none was sent"),
        ("Basic one", "none was sent"),
        ("Bearer three", "is unknown"),
        ("Bearer ", "is unknown"),
        ("Bearer one two", "is unknown"),
    ],
)
async def test_every_operation_asks_for_a_key(office: Office, http: httpx.AsyncClient, given: str | None, why: str) -> None:
    job = await office.submitted()
    for method, path in operations(guarded(office)):
        answer = await http.request(method, f"/api{path}", headers={} if given is None else {"authorization": given})
        message = refused(answer, 401)
        assert why in message
        assert "HARVESTER_API_KEY" in message
    assert (await office.http.get(f"/jobs/{job.id}")).json()["state"] == "queued"


@pytest.mark.parametrize("given", ["Bearer one", "bearer two", "Bearer  two"])
async def test_any_of_the_servers_keys_opens_it(office: Office, http: httpx.AsyncClient, given: str) -> None:
    job = await office.submitted()
    headers = {"authorization": given}
    assert (await http.get("/api/jobs", headers=headers)).json()["jobs"][0]["id"] == job.id
    assert (await http.post(f"/api/jobs/{job.id}/pause", headers=headers)).json()["state"] == "paused"


async def test_what_the_page_loads_is_open_and_nothing_beside_it(http: httpx.AsyncClient) -> None:
    assert (await http.get("/api/page/page.js")).status_code == 200
    for path in ("/api/page/../jobs", "/api/page/%2e%2e/jobs", "/api//page/page.js", "/api/pages"):
        assert (await http.get(path)).status_code in (401, 404)


def test_the_document_says_that_a_key_is_asked_for(office: Office) -> None:
    with_keys, without = guarded(office).openapi(), office.app.openapi()
    assert with_keys["security"] == [{"ApiKey": []}]
    assert "401" in with_keys["paths"]["/jobs"]["get"]["responses"]
    assert "security" not in without


@pytest.mark.parametrize(
    ("values", "environment", "keys"),
    [
        ({}, None, ()),
        ({}, "", ()),
        ({}, "around", ("around",)),
        ({"env": {"VLLM_API_KEY": "inner"}}, "around", ("inner",)),
        ({"engine": {"api_key": "plain"}}, "around", ("plain",)),
        ({"engine": {"api_key": ["a", "", "b"]}}, None, ("a", "b")),
        ({"engine": {"api_key": 123}}, None, ("123",)),
    ],
)
def test_keys_come_from_where_vllm_takes_them(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], environment: str | None, keys: tuple[str, ...]
) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    if environment is not None:
        monkeypatch.setenv("VLLM_API_KEY", environment)
    assert ServeConfig.model_validate(values).api_keys == keys
