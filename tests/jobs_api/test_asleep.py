"""What the jobs application answers in the place of a model that has no replica, behind its wall."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from harvester.errors import HarvesterError
from harvester.serve.access.gate import Gate
from harvester.serve.access.keys import KeyRing
from harvester.serve.access.routes import JOBS_ROUTES
from harvester.serve.access.wall import guard
from harvester.serve.http.asleep import add_asleep
from harvester.serve.refusals import answer_of


class Asked:
    """``sleeping``: the models that may have no replica; None: the first."""

    def __init__(self, keys: tuple[str, ...] = (), sleeping: tuple[str | None, ...] = (None, "small")) -> None:
        self._sleeping = sleeping
        self.woken: list[str | None] = []
        app = FastAPI()

        @app.exception_handler(HarvesterError)
        async def refuse(request: Any, error: HarvesterError) -> Any:
            return answer_of(error)

        add_asleep(app, self)
        guard(app, JOBS_ROUTES, Gate(keys=KeyRing(keys)))
        self.client = TestClient(app, base_url="http://127.0.0.1")

    def may_sleep(self, model: str | None) -> bool:
        return model in self._sleeping

    def wake(self, model: str | None) -> float:
        self.woken.append(model)
        return 12.3


@pytest.mark.parametrize(
    ("path", "model"),
    [("v1/chat/completions", None), ("v1/embeddings", None), ("models/small/v1/chat/completions", "small")],
)
def test_what_is_asked_of_the_model_wakes_it_and_says_when_to_come_again(path: str, model: str | None) -> None:
    asked = Asked()
    answer = asked.client.post(f"/asleep/{path}", json={"model": "m"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "13")
    assert answer.json()["error"]["code"] == "no_replica"
    assert answer.json()["error"]["message"].endswith("try again in 13 s")
    assert asked.woken == [model]


@pytest.mark.parametrize("path", ["v1/nothing", "invocations", "", "models/small", "models/small/scale_elastic_ep"])
def test_what_the_model_would_not_answer_wakes_nobody(path: str) -> None:
    asked = Asked()
    assert asked.client.post(f"/asleep/{path}", json={}).status_code == 404
    assert asked.woken == []


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("", 200),
        ("health", 200),
        ("ping", 200),
        ("v1/models", 503),
        ("metrics", 503),
        ("models/small/health", 200),
        ("models/small/v1/models", 503),
    ],
)
def test_who_only_looks_wakes_nobody(path: str, status: int) -> None:
    asked = Asked()
    assert asked.client.get(f"/asleep/{path}").status_code == status
    assert asked.woken == []


@pytest.mark.parametrize(
    ("sleeping", "path"),
    [
        pytest.param("small", "health", id="the first beside one that sleeps"),
        pytest.param("small", "", id="its page"),
        pytest.param("small", "models/large/ping", id="a further one"),
        pytest.param("small", "models/unknown/health", id="one that there is not"),
        pytest.param(None, "models/small/health", id="a further one beside a first that sleeps"),
    ],
)
def test_a_model_that_never_sleeps_is_unavailable_without_a_replica(sleeping: str | None, path: str) -> None:
    answer = Asked(sleeping=(sleeping,)).client.get(f"/asleep/{path}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_replica")


def test_a_chat_for_a_model_that_never_sleeps_is_not_told_that_it_is_being_loaded() -> None:
    asked = Asked(sleeping=("small",))
    answer = asked.client.post("/asleep/v1/chat/completions", json={"model": "m"})
    assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
    assert answer.json()["error"]["message"].startswith("no replica answers")
    assert asked.woken == []


def test_a_server_that_waits_for_its_port_takes_no_lost_replica_for_one_that_answers() -> None:
    """`Reach` asks with OPTIONS, and takes all but 404 and 5xx for an answer."""
    client = Asked(sleeping=("small",)).client
    assert client.options("/asleep/").status_code == 503
    assert client.options("/asleep/models/small/").status_code == 204


def test_a_stranger_wakes_nobody() -> None:
    asked = Asked(keys=("secret",))
    assert asked.client.post("/asleep/v1/chat/completions", json={}).status_code == 401
    assert asked.client.get("/asleep/health").status_code == 200
    assert asked.woken == []
    answer = asked.client.post("/asleep/v1/chat/completions", json={}, headers={"authorization": "Bearer secret"})
    assert (answer.status_code, asked.woken) == (503, [None])
