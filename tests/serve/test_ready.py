"""Who is told that a server is ready may use it at once, also where HAProxy is slow to hear of its applications."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

import httpx
import pytest

from harvester.serve.ingress.front import haproxy_binary
from tests.scripted_server import ScriptedServer

pytestmark = [pytest.mark.serve, pytest.mark.timeout(900)]
SLOW_S = 5.0  # that each reload takes, as on a busy machine
HELLO = {"model": "scripted", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, httpx.Response]]:
    """Answers by path of a server that has just become ready. Its replica is scripted: what is slow here is HAProxy."""
    folder = tmp_path_factory.mktemp("ready")
    slow = folder / "slow-haproxy"
    slow.write_text(f'#!/bin/sh\nsleep {SLOW_S}\nexec {quote(str(haproxy_binary()))} "$@"\n')
    slow.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_SERVE_HAPROXY_BINARY_PATH", str(slow))
        with ScriptedServer(folder / "state") as server, httpx.Client(base_url=server.url, timeout=60) as client:
            found = {"/v1/chat/completions": client.post("/v1/chat/completions", json=HELLO)}
            yield found | {path: client.get(path) for path in PATHS if path not in found}


PATHS = ["/v1/chat/completions", "/", "/api/jobs", "/v1/files", "/v1/batches"]


@pytest.mark.parametrize("path", PATHS)
def test_a_server_that_says_it_is_ready_answers_at(answers: dict[str, httpx.Response], path: str) -> None:
    assert answers[path].status_code == 200, answers[path].text
