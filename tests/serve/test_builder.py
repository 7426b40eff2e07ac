"""Builders of a `RayService`: they start without an API key, and then nobody may do anything until there is one."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from fastapi import FastAPI

from harvester.config import ServeConfig
from harvester.core import Role
from harvester.errors import ConfigError
from harvester.serve.access.gate import gate_of
from harvester.serve.access.keys import KeyFile
from harvester.serve.access.routes import CHAT_ROUTES, JOBS_ROUTES, OPEN, OPENAI_ROUTES, SHUT, RouteTable
from harvester.serve.access.wall import guard
from jobs.storage.folder import StateFolder

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own
    from harvester.serve.deployments import builder

TABLES = {"chat": CHAT_ROUTES, "jobs": JOBS_ROUTES, "files and batches": OPENAI_ROUTES}


@pytest.fixture(autouse=True)
def _without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cluster, and no key of the environment."""
    monkeypatch.setattr(builder, "start_ledger", lambda *given: lambda: None)
    monkeypatch.setattr(builder, "ledger_options", lambda config: {})
    for name in ("VLLM_API_KEY", "RAY_SERVE_ENABLE_HA_PROXY"):
        monkeypatch.delenv(name, raising=False)


def prepared(tmp_path: Path, **values: Any) -> tuple[ServeConfig, StateFolder]:
    path = tmp_path / "harvester.yaml"
    path.write_text(yaml.safe_dump(values))
    config, _, root, _ = builder._prepared(builder.Arguments(config=str(path), state=str(tmp_path / "state")))
    return config, StateFolder(root)


async def statuses(config: ServeConfig, folder: StateFolder, table: RouteTable, key: str = "") -> dict[str, tuple[int, str]]:
    """Status and body of every route of ``table`` that anybody may call."""
    app = FastAPI(openapi_url=None)
    methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
    app.add_api_route("/{path:path}", lambda path: "let in", methods=methods)
    guard(app, table, gate_of(config, folder.keys))
    headers = {"authorization": f"Bearer {key}"} if key else {}
    found = {}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8000", headers=headers) as http:
        for name, needed in table.routes.items():
            if needed != SHUT:
                method, _, path = name.partition(" ")
                answer = await http.request(method, path.replace("{", "").replace("}", "").replace(":path", ""))
                found[name] = answer.status_code, answer.text
    return found


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
async def test_without_a_key_it_starts_and_every_door_but_the_open_ones_says_how_to_make_one(
    tmp_path: Path, table: RouteTable, host: str
) -> None:
    """Serve listens where ``serveConfigV2`` says: a loopback ``host`` of ours keeps nobody out."""
    config, folder = prepared(tmp_path, host=host)
    for name, (status, text) in (await statuses(config, folder, table)).items():
        if table.routes[name] is OPEN:
            assert status == 200, name
        else:
            assert status == 401, name
            assert "there is none; make one" in text
            assert "harvester key add NAME" in text


async def test_the_first_key_opens_it_without_another_start(tmp_path: Path) -> None:
    config, folder = prepared(tmp_path, host="0.0.0.0")
    key = KeyFile(folder.keys).add("ann", [Role.ADMIN])
    assert (await statuses(config, folder, JOBS_ROUTES, key))["GET /jobs"][0] == 200
    status, text = (await statuses(config, folder, JOBS_ROUTES, "another"))["GET /jobs"]
    assert status == 401
    assert "unknown or expired" in text


async def test_the_configuration_may_say_that_none_is_needed(tmp_path: Path) -> None:
    config, folder = prepared(tmp_path, host="0.0.0.0", access={"no_keys": True})
    assert (await statuses(config, folder, JOBS_ROUTES))["GET /jobs"][0] == 200


def test_a_key_changes_no_deployment(tmp_path: Path) -> None:
    """The version of a deployment is made of its configuration: a builder that runs again must not replace replicas."""
    before, folder = prepared(tmp_path, host="0.0.0.0")
    KeyFile(folder.keys).add("ann", [Role.ADMIN])
    assert prepared(tmp_path, host="0.0.0.0")[0] == before


def test_a_loopback_host_is_refused_where_haproxy_lets_the_replicas_listen_to_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", "1")
    with pytest.raises(ConfigError, match="listen on the network"):
        prepared(tmp_path)


@pytest.mark.parametrize("haproxy", ["0", "1"])
def test_no_model_sleeps_under_a_service_of_kuberay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, haproxy: str) -> None:
    """Its Serve starts without our rules of HAProxy, which answer while there is no replica."""
    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", haproxy)
    with pytest.raises(ConfigError, match=r"replicas\.min=0 .*: set replicas\.min to 1 or more"):
        prepared(tmp_path, host="0.0.0.0", replicas={"min": 0, "max": 2})


def test_a_configuration_of_several_models_is_refused_before_a_ledger_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "start_ledger", lambda *given: pytest.fail("a ledger was started"))
    with pytest.raises(ConfigError, match="one model for each application here"):
        prepared(tmp_path, host="0.0.0.0", models={"small": {"model": "org/small"}})
    assert not (tmp_path / "state").exists()
