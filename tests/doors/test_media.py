"""Images, audio and video by an address: what is refused at the wall, and what vLLM's own fetching may still reach."""

from __future__ import annotations

import json
import socket
import warnings
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from harvester.config import parse_config
from harvester.engine.launch.arguments import NO_HOST, engine_arguments
from harvester.serve.access.gate import Gate, gate_of
from harvester.serve.access.routes import CHAT_ROUTES
from harvester.serve.access.wall import guard
from jobs.access.media import check_media
from jobs.batches.line import BadLine, LineRules
from jobs.errors import ParameterError

WEB = "https://images.example/cat.png"


def chat(part: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "look"}, part]}]}


FORMS = {
    "chat image": chat({"type": "image_url", "image_url": {"url": WEB}}),
    "chat image as text": chat({"image_url": WEB}),
    "chat audio": chat({"type": "audio_url", "audio_url": {"url": WEB}}),
    "chat video": chat({"type": "video_url", "video_url": {"url": WEB}, "uuid": "1"}),
    "responses": {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": WEB}]}]},
    "messages": {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": WEB}}]}]},
    "a tool's answer": {
        "messages": [
            {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "image", "source": {"type": "url", "url": WEB}}]}]}
        ]
    },
    "embeddings": {"inputs": [{"content": [{"type": "image_url", "image_url": {"url": WEB}}]}]},
    "embeddings by list": {"images": [WEB]},
    "score": {"data_1": {"content": [{"type": "image_url", "image_url": {"url": WEB}}]}},
}


@pytest.mark.parametrize("body", FORMS.values(), ids=FORMS.keys())
def test_an_address_is_refused_in_whatever_form_vllm_reads_it(body: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=r"engine\.allowed_media_domains") as refused:
        check_media(body, ())
    assert refused.value.http_status == 400
    check_media(body, {"images.example"})


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1:8265/api",
        "http://169.254.169.254/latest/meta-data",
        "file:///etc/passwd",
        "ftp://images.example/a",
        "http://images.example@evil.example/a",
        "http://images.example:80@evil.example/a",
        "http://evil.example\\@images.example/a",
        "http://evil.example\t.images.example/",
        "http://images.example.evil.example/",
        "http://[::1",
        "http:images.example/a",
        "//images.example/a",
        "gs://images.example/a",
    ],
)
def test_a_listed_host_lets_no_other_address_in(address: str) -> None:
    with pytest.raises(ParameterError):
        check_media(chat({"type": "image_url", "image_url": {"url": address}}), {"images.example"})


@pytest.mark.parametrize(
    "body",
    [
        chat({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}),
        chat({"type": "image_url", "image_url": {"url": "HTTPS://IMAGES.example/a@2x.png?b"}}),
        chat({"type": "text", "text": WEB}),
        {"tools": [{"function": {"parameters": {"properties": {"image_url": {"url": WEB}}}}}]},
        {"documents": [{"title": "a", "url": WEB}]},
        {"messages": "no list", "images": 3},
    ],
    ids=str,
)
def test_what_is_not_fetched_or_is_listed_passes(body: dict[str, Any]) -> None:
    check_media(body, {"images.example"})


async def test_the_wall_answers_with_openais_body_before_vllm_sees_the_request() -> None:
    app = FastAPI()

    @app.post("/v1/chat/completions")
    async def seen(body: dict[str, Any]) -> dict[str, bool]:
        return {"seen": True}

    guard(app, CHAT_ROUTES, Gate(media_hosts=frozenset({"listed.example"})))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http:
        answer = await http.post("/v1/chat/completions", json=FORMS["chat image"])
        listed = json.loads(json.dumps(FORMS["chat image"]).replace("images.example", "listed.example"))
        assert (await http.post("/v1/chat/completions", json=listed)).json() == {"seen": True}
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages"
    assert WEB in answer.json()["error"]["message"]


def test_a_line_of_a_batch_is_checked_as_a_request_is() -> None:
    line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": FORMS["chat image"]}
    with pytest.raises(BadLine, match="allowed_media_domains"):
        LineRules("/v1/chat/completions", ["m"]).read(1, json.dumps(line).encode(), None)
    LineRules("/v1/chat/completions", ["m"], media_hosts=["images.example"]).read(1, json.dumps(line).encode(), None)


@pytest.mark.parametrize(("given", "told"), [({}, [NO_HOST]), ({"allowed_media_domains": ["A.example"]}, ["a.example"])], ids=str)
def test_vllm_is_told_the_hosts_and_never_none_which_means_all(tmp_path: Path, given: dict[str, Any], told: list[str]) -> None:
    config = parse_config({"engine": given}, "test")
    assert engine_arguments(config, "/model", "tiny", cpu=True, embedded=True)["allowed_media_domains"] == told
    assert gate_of(config, tmp_path / "keys.json").media_hosts == set(told) - {NO_HOST}


# -- vLLM's own connector -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def site() -> Iterator[tuple[str, list[str]]]:
    """A web server on loopback, and the paths that it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(302 if self.path == "/moved" else 200)
            self.send_header("location", "/inside")
            self.end_headers()
            self.wfile.write(b"secret")

        def log_message(self, *words: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f":{server.server_port}", asked
    server.shutdown()
    server.server_close()


async def fetched(hosts: tuple[str, ...], url: str) -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch, on import
        from vllm.multimodal.media.connector import MEDIA_CONNECTOR_REGISTRY, MediaConnector

        from harvester.engine.vllm.frontend.media import fetch_checked

    fetch_checked(hosts)
    try:
        connection = MEDIA_CONNECTOR_REGISTRY.load("http", allowed_media_domains=list(hosts)).connection
        try:
            return bytes(await connection.async_get_bytes(url, timeout=5))
        finally:
            await (await connection.get_async_client()).close()
    finally:
        MEDIA_CONNECTOR_REGISTRY.register("http")(MediaConnector)


async def test_an_address_that_is_listed_itself_is_fetched(site: tuple[str, list[str]]) -> None:
    port, asked = site
    assert await fetched(("127.0.0.1",), f"http://127.0.0.1{port}/a") == b"secret"
    assert asked == ["/a"]


async def test_a_listed_name_that_leads_to_loopback_is_not_connected_to(
    site: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.exceptions import VLLMValidationError

    port, asked = site
    real = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **more: real("127.0.0.1", *rest, **more))
    monkeypatch.setenv("VLLM_MEDIA_FETCH_MAX_RETRIES", "1")
    with pytest.raises(VLLMValidationError, match=r"images\.example"):
        await fetched(("images.example",), f"http://images.example{port}/a")
    assert asked == []


async def test_a_redirect_is_not_followed(site: tuple[str, list[str]]) -> None:
    from vllm.exceptions import VLLMValidationError

    port, asked = site
    with pytest.raises(VLLMValidationError, match="redirects are not followed"):
        await fetched(("127.0.0.1",), f"http://127.0.0.1{port}/moved")
    assert asked == ["/moved"]
