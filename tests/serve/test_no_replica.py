"""The jobs application while no replica answers; Serve's handle is the test's own, so that no server is needed."""

from __future__ import annotations

import asyncio
import warnings
from pathlib import Path
from typing import Any

import httpx
import pytest

from harvester.config import ServeConfig
from harvester.engine.launch.models import ModelChoice
from harvester.errors import NoReplicaError, from_json

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # Ray's own
    from ray import serve
    from ray.exceptions import ActorDiedError
    from ray.serve.exceptions import RayServeException

    from harvester.serve.deployments import jobs_app
    from harvester.serve.deployments.actor import LedgerActor
    from harvester.serve.deployments.jobs_app import JobsApp
    from harvester.serve.deployments.scale import replicas
    from harvester.serve.deployments.scale.replicas import Replicas

pytestmark = pytest.mark.serve
SILENCE = object()
CHOICE = ModelChoice(path="/model", name="tiny", embedded=True, note=None)
DIGESTS = {"tiny": "digest"}


class Handle:
    """A handle whose calls all raise ``fault``; None: they are never answered."""

    def __init__(self, fault: Exception | None) -> None:
        self._fault = fault

    def __getattr__(self, name: str) -> Handle:
        return self

    async def remote(self, *given: Any) -> Any:
        if self._fault is not None:
            raise self._fault
        await asyncio.Event().wait()


FAULTS = [
    pytest.param(None, "no replica answered within 0.05 s", id="silent"),
    pytest.param(ActorDiedError(), "no replica answers", id="dead"),
    pytest.param(RayServeException("Deployment is unavailable"), "no replica answers", id="unavailable"),
]


@pytest.fixture
def fault(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "get_app_handle", lambda name: Handle(request.param))
    monkeypatch.setattr(replicas, "ANSWER_WAIT_S", 0.05)
    monkeypatch.setattr(jobs_app, "lower_priority", lambda: None)
    monkeypatch.setattr(jobs_app, "EXPIRE_S", 3600.0)  # there is no ledger to be asked: Ray would start here to look for it


@pytest.mark.parametrize(("fault", "why"), FAULTS, indirect=["fault"])
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/server", None),
        ("POST", "/profile", {"seconds": 1}),
        ("POST", "/jobs", {"source": {"uri": "/docs.parquet"}}),
    ],
)
@pytest.mark.usefixtures("fault")
async def test_what_needs_a_replica_is_answered_with_503_while_there_is_none(
    tmp_path: Path, why: str, method: str, path: str, body: object
) -> None:
    app = JobsApp(ServeConfig(), CHOICE, str(tmp_path), "ledger", "http://127.0.0.1:8000", True, DIGESTS, 1)
    built = await app.__serve_build_asgi_app__()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(built), base_url="http://127.0.0.1") as http:
        answer = await http.request(method, path, json=body)
    assert answer.status_code == 503, answer.text
    error = from_json(answer.json(), 503)
    assert isinstance(error, NoReplicaError)
    assert error.message.startswith(why)
    assert error.message.endswith("try again in a moment")


@pytest.mark.parametrize("fault", [pytest.param(None, id="silent")], indirect=True)
@pytest.mark.usefixtures("fault")
async def test_a_joined_cluster_s_ingress_is_told_of_a_model_that_never_sleeps_that_no_replica_answers(tmp_path: Path) -> None:
    """The ingress sends it there for every model, see `harvester.serve.environment.joined_variables`."""
    app = await JobsApp(
        ServeConfig(), CHOICE, str(tmp_path), "ledger", "http://127.0.0.1:8000", True, DIGESTS, 1
    ).__serve_build_asgi_app__()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http:
        answers = [await http.get("/asleep/health"), await http.post("/asleep/v1/chat/completions", json={})]
    for answer in answers:
        assert answer.status_code == 503
        assert answer.json()["error"]["message"].startswith("no replica answers")


@pytest.mark.parametrize("fault", [pytest.param(None, id="silent")], indirect=True)
@pytest.mark.usefixtures("fault")
async def test_the_application_lets_jobs_end_at_their_deadline_while_no_replica_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, again = 0, asyncio.Event()

    async def expire(self: LedgerActor) -> None:
        nonlocal asked
        asked += 1
        if asked == 2:
            again.set()

    monkeypatch.setattr(LedgerActor, "expire", expire)
    monkeypatch.setattr(jobs_app, "EXPIRE_S", 0.01)
    app = JobsApp(ServeConfig(), CHOICE, str(tmp_path), "ledger", "http://127.0.0.1:8000", True, DIGESTS, 1)
    await app.__serve_build_asgi_app__()
    try:
        async with asyncio.timeout(20.0):
            await again.wait()
    finally:
        for task in app._tasks:
            task.cancel()
    assert asked >= 2, "it asks for as long as it runs"


async def test_a_time_out_of_the_replicas_own_is_told_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Handle):
        async def remote(self, *given: Any) -> Any:
            if given:  # `profile` has an argument, `info` has none
                raise TimeoutError("the engine did not answer a probe")
            return {}

    monkeypatch.setattr(serve, "get_app_handle", lambda name: Slow(None))
    with pytest.raises(TimeoutError, match="did not answer a probe"):
        await Replicas().profile(1.0)


@pytest.mark.parametrize(("fault", "why"), FAULTS, indirect=["fault"])
@pytest.mark.usefixtures("fault")
async def test_whoever_else_asks_a_replica_is_told_the_same(why: str) -> None:
    with pytest.raises(NoReplicaError, match=why):
        await Replicas().info()


class Answer:
    def __init__(self, told: Any) -> None:
        self._told = told

    async def get_async(self) -> Any:
        if self._told is SILENCE:
            await asyncio.Event().wait()
        if isinstance(self._told, BaseException):
            raise self._told
        return self._told


class Told(Handle):
    """A handle whose broadcast to all replicas gets these answers."""

    def __init__(self, told: list[Any]) -> None:
        super().__init__(None)
        self._told = told

    def broadcast(self, method: str) -> Told:
        return self

    async def _fetch_replica_results_async(self) -> list[Answer]:
        return [Answer(one) for one in self._told]


async def test_a_replica_that_dies_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "get_app_handle", lambda name: Told([ActorDiedError(), {"id": "b"}]))
    assert await Replicas().now() == [{"id": "b"}]


async def test_a_machine_that_is_silent_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "EACH_WAIT_S", 0.1)
    monkeypatch.setattr(serve, "get_app_handle", lambda name: Told([SILENCE, {"id": "b"}]))
    assert await Replicas().now() == [{"id": "b"}]
    monkeypatch.setattr(serve, "get_app_handle", lambda name: Told([SILENCE]))
    with pytest.raises(NoReplicaError):
        await Replicas().now()


@pytest.mark.parametrize("told", [[], [ActorDiedError()]], ids=["none there", "all dying"])
async def test_without_any_replica_the_page_is_told_so(monkeypatch: pytest.MonkeyPatch, told: list[Any]) -> None:
    monkeypatch.setattr(serve, "get_app_handle", lambda name: Told(told))
    with pytest.raises(NoReplicaError):
        await Replicas().now()
