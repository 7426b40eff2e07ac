"""Every route that vLLM's application has stands in the table of routes, and what vLLM offers beside chat is shut."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from harvester.serve.access.gate import Gate
from harvester.serve.access.keys import KeyRing
from harvester.serve.access.routes import CHAT_ROUTES, SHUT
from harvester.serve.access.wall import PRIORITY_HEADER, guard
from harvester.serve.http.page import add_page
from tests.doors.stock import routes_of, stock_app

pytestmark = pytest.mark.engine
VERBS = ("get", "post", "put", "patch", "delete", "websocket")
ELSEWHERE = ("launchers/render", "grpc", "cli/", "rl/", "scale_out/", "launchers/")  # servers of their own, which are not mounted here


@pytest.fixture(scope="module")
def app() -> FastAPI:
    with warnings.catch_warnings():  # what vLLM and torch warn of on import is not ours to mend
        warnings.simplefilter("ignore")
        made = stock_app()
    add_page(made)
    guard(made, CHAT_ROUTES, Gate(KeyRing(["key"])))
    return made


def written_routes() -> Iterator[tuple[str, str]]:
    """Every route that stands in vLLM's source, by its file: also those of models that are not at hand."""
    spec = find_spec("vllm")
    assert spec is not None
    assert spec.submodule_search_locations
    root = Path(spec.submodule_search_locations[0]) / "entrypoints"
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in VERBS and node.args:
                owner, first = node.func.value, node.args[0]
                is_router = isinstance(owner, ast.Name) and owner.id in ("router", "app")
                if is_router and isinstance(first, ast.Constant) and isinstance(first.value, str) and first.value.startswith("/"):
                    yield str(path.relative_to(root)), f"{node.func.attr.upper()} {first.value}"


def test_every_route_of_the_application_is_listed(app: FastAPI) -> None:
    unlisted = [route for route in routes_of(app) if route not in CHAT_ROUTES.routes]
    assert unlisted == []


def test_every_route_in_vllms_source_is_listed() -> None:
    found = list(written_routes())
    assert len(found) > 50
    unlisted = sorted({route for path, route in found if route not in CHAT_ROUTES.routes and not path.startswith(ELSEWHERE)})
    assert unlisted == []


def test_a_route_that_nobody_listed_is_not_served(app: FastAPI) -> None:
    assert "GET /a-new-one" not in CHAT_ROUTES.routes
    assert CHAT_ROUTES.find("GET", "/a-new-one") is None
    assert CHAT_ROUTES.find("POST", "/v1/models") is None


async def test_without_a_key_no_route_answers_but_health_and_the_page(app: FastAPI) -> None:
    answered = set()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url="http://127.0.0.1") as http:
        for route in routes_of(app):
            method, _, path = route.partition(" ")
            if method == "WEBSOCKET":
                continue
            answer = await http.request(method, path.replace("{response_id}", "resp_1"))
            if answer.status_code not in (401, 404):
                answered.add(route)
            elif answer.status_code == 404:
                assert CHAT_ROUTES.routes[route] == SHUT, route
            assert answer.status_code < 400 or set(answer.json().get("error", ())) <= {"message", "type", "param", "code"}
    assert answered == {"GET /", "GET /health", "GET /ping"}


async def test_with_a_key_the_engines_controls_stay_shut(app: FastAPI) -> None:
    shut = [route for route, needed in CHAT_ROUTES.routes.items() if needed == SHUT and not route.startswith("WEBSOCKET ")]
    assert len(shut) > 10
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://127.0.0.1", headers={"authorization": "Bearer key"}
    ) as http:
        for route in shut:
            method, _, path = route.partition(" ")
            assert (await http.request(method, path.replace("{response_id}", "resp_1"), json={})).status_code == 404, route


def test_the_priority_header_is_vllms(app: FastAPI) -> None:
    from vllm.entrypoints.generate.base.serving import PRIORITY_HEADER as OF_VLLM

    assert OF_VLLM.lower().encode() == PRIORITY_HEADER
