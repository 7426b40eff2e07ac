"""Who is told that a server is ready may use it at once, also where HAProxy is slow to hear of its applications."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from shlex import quote

import httpx
import pytest

from harvester.serve.ingress.front import haproxy_binary
from tests.real_server import RealServer

pytestmark = [pytest.mark.serve, pytest.mark.timeout(900)]
CONFIG = Path(__file__).parents[1] / "small.yaml"
SLOW_S = 5.0  # that each reload takes, as on a busy machine
HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, httpx.Response]]:
    """Answers by path of a server that has just become ready."""
    folder = tmp_path_factory.mktemp("ready")
    slow = folder / "slow-haproxy"
    slow.write_text(f'#!/bin/sh\nsleep {SLOW_S}\nexec {quote(str(haproxy_binary()))} "$@"\n')
    slow.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_SERVE_HAPROXY_BINARY_PATH", str(slow))
        with RealServer(folder / "state", CONFIG) as server, httpx.Client(base_url=server.url, timeout=60) as client:
            found = {path: client.get(path) for path in ("/v1/models", "/api/jobs", "/v1/files", "/v1/batches", "/health")}
            models = found["/v1/models"].json()
            asked = HELLO | {"model": models["data"][0]["id"]} if "data" in models else HELLO
            yield found | {"/v1/chat/completions": client.post("/v1/chat/completions", json=asked)}


PATHS = ["/v1/models", "/v1/chat/completions", "/health", "/api/jobs", "/v1/files", "/v1/batches"]


@pytest.mark.parametrize("path", PATHS)
def test_a_server_that_says_it_is_ready_answers_at(answers: dict[str, httpx.Response], path: str) -> None:
    assert answers[path].status_code == 200, answers[path].text
