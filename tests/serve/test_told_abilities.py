"""What the jobs application remembers of the abilities of models, as their replicas tell them. Serve's handles are the test's own."""

from __future__ import annotations

import asyncio
import warnings
from pathlib import Path
from typing import Any

import httpx
import pytest

from harvester.config import parse_config
from harvester.engine.launch.models import ModelChoice

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # Ray's own
    from ray import serve

    from harvester.serve.deployments import jobs_app
    from harvester.serve.deployments.jobs_app import JobsApp

pytestmark = pytest.mark.serve
CHOICE = ModelChoice(path="/model", name="big", embedded=True, note=None)
CONFIG = {"models": {"small": {"replicas": {"min": 0, "max": 1}}}}
OLD = {"adapters": [], "digest": "old"}
NEW = {"adapters": ["a"], "digest": "new"}


class Replicas:
    """A handle of one model's application. ``told``: what each replica tells; a call of one goes to the first, or loads the model."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self.is_loading = False

    @property
    def info(self) -> Replicas:
        return self

    async def remote(self) -> dict[str, Any]:
        if not self.told:
            self.is_loading = True
            await asyncio.Event().wait()
        return self.told[0]

    def broadcast(self, method: str) -> Replicas:
        return self

    async def _fetch_replica_results_async(self) -> list[Answer]:
        return [Answer(one) for one in self.told]


class Answer:
    def __init__(self, told: dict[str, Any]) -> None:
        self._told = told

    async def get_async(self) -> dict[str, Any]:
        return self._told


class Server:
    """The jobs application of two models, and what their handles lead to."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.big, self.small = Replicas(), Replicas()
        monkeypatch.setattr(serve, "get_app_handle", {"chat": self.big, "model-small": self.small}.__getitem__)
        monkeypatch.setattr(jobs_app, "lower_priority", lambda: None)
        monkeypatch.setattr(jobs_app, "REMEMBER_S", 0.0)
        digests = {"big": "new", "small": "new"}
        self.app = JobsApp(parse_config(CONFIG, "test"), CHOICE, str(folder), "ledger", "http://127.0.0.1:8000", True, digests, 1)

    async def ask(self, method: str, path: str, body: object = None) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app._app), base_url="http://127.0.0.1") as http:
            return await http.request(method, path, json=body)

    async def adapters(self) -> tuple[Any, Any]:
        """Of both models, as clients are told them."""
        told = (await self.ask("GET", "/server")).raise_for_status().json()
        return told["adapters"], told["models"]["small"] and told["models"]["small"]["adapters"]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(tmp_path, monkeypatch)


async def test_what_a_replica_of_an_earlier_deployment_tells_is_not_remembered(server: Server) -> None:
    server.big.told, server.small.told = [OLD], [OLD]
    assert await server.adapters() == ([], [])
    server.big.told, server.small.told = [OLD], [NEW, OLD]
    assert await server.adapters() == ([], ["a"])
    server.big.told, server.small.told = [NEW], [OLD]
    assert await server.adapters() == (["a"], ["a"])
    server.big.told, server.small.told = [OLD], [OLD]
    assert await server.adapters() == (["a"], ["a"]), "what the new ones told is"


async def test_a_job_loads_a_model_that_has_never_run_and_a_look_does_not(server: Server) -> None:
    server.big.told = [NEW]
    assert await server.adapters() == (["a"], None)
    assert not server.small.is_loading
    refused = await server.ask("POST", "/jobs", {"source": {"uri": "/docs.parquet"}, "model": "small"})
    assert refused.status_code == 503
    assert "no replica of small answers; it may be starting" in refused.text
    await asyncio.sleep(0)
    assert server.small.is_loading


async def test_models_are_asked_while_they_are_loaded(server: Server) -> None:
    server.big.told = [NEW]
    asking = asyncio.create_task(server.app._remember())
    for _ in range(100):
        await asyncio.sleep(0)
    assert not asking.done()
    server.small.told = [NEW]
    async with asyncio.timeout(20.0):
        await asking
    server.big.told, server.small.told = [], []
    assert await server.adapters() == (["a"], ["a"])
    assert (server.big.is_loading, server.small.is_loading) == (False, False)
