"""Admission control in front of the chat application: refuses a request whose first token would be late, before any work on it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from harvester.access_config import TierConfig
from harvester.core import ServiceTier
from harvester.engine.frontend.hangups import App, Message, Receive, Send
from harvester.engine.frontend.overload import Overload
from harvester.engine.frontend.tiers import asked_tier
from harvester.engine.shared.settings import Slo
from harvester.errors import OverloadError, ParameterError
from jobs.access.limits import Limits, check_size

IDENTITY = "harvester.identity"  # in the ASGI scope: the caller, with `name` and `counted_as`; absent where there are no keys
CHARS_PER_TOKEN = 4  # about
DATA_URL_CHARS = 200  # a data URL says within so many that it is one
UNLIMITED = Limits(max_choices=None, max_inputs=None, max_grammar_cost=None)
GENERATING = frozenset(
    {
        "/v1/chat/completions",
        "/v1/chat/completions/batch",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/cohere/v2/chat",
        "/inference/v1/generate",
        "/invocations",
    }
)

TIERED = frozenset({"/v1/chat/completions", "/v1/completions"})  # routes with service tiers; requests to the others are online


class Door:
    """ASGI middleware before ``app``. Comes after the middleware that bounds the request body. Offline tiers always pass: the plan of each
    step puts chat first.

    ``slo_of``: the SLO of a request with the given `vllm_xargs`.
    """

    def __init__(self, app: App, overload: Overload, tiers: TierConfig, slo_of: Callable[[Any], Slo]) -> None:
        self._app, self._overload, self._tiers, self._slo_of = app, overload, tiers, slo_of

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        path = scope["path"].removeprefix(scope.get("root_path", "")) if scope["type"] == "http" and scope["method"] == "POST" else None
        if path not in GENERATING:
            await self._app(scope, receive, send)
            return
        body = await _read(receive)
        if body is None:
            return
        receive = _again(body, receive)
        asked = _parsed(body)
        if path in TIERED and self._is_offline(scope, asked):
            await self._app(scope, receive, send)
            return
        key = getattr(scope.get(IDENTITY), "counted_as", None)
        ttft_slo_s = self._slo_of(asked.get("vllm_xargs") if isinstance(asked.get("vllm_xargs"), dict) else None).ttft_s
        try:
            with self._overload.admitted(key, check_size(asked, UNLIMITED), prompt_tokens(asked), ttft_slo_s):
                await self._app(scope, receive, send)
        except OverloadError as error:
            await _refuse(error, send)

    def _is_offline(self, scope: Any, asked: dict[str, Any]) -> bool:
        key = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"), "")
        scheme, _, key = key.partition(" ")
        own = key.strip() if scheme.lower() == "bearer" else None
        name = getattr(scope.get(IDENTITY), "name", None)
        try:
            return asked_tier(self._tiers, asked.get("service_tier"), own, name) is ServiceTier.FLEX
        except ParameterError:
            return False  # the application reports the error


async def _read(receive: Receive) -> bytes | None:
    """The whole request body; None: the client hung up."""
    chunks = list[bytes]()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(chunks)


def _again(body: bytes, receive: Receive) -> Receive:
    """A `Receive` that replays the ``body`` already read, then passes on what comes after it."""
    left = [body]

    async def replay() -> Message:
        return {"type": "http.request", "body": left.pop(), "more_body": False} if left else await receive()

    return replay


def _parsed(body: bytes) -> dict[str, Any]:
    """The body's JSON object; empty if it is none: the application refuses it."""
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return asked if isinstance(asked, dict) else {}


def prompt_tokens(asked: dict[str, Any]) -> int:
    """Estimated tokens of the prompt, without its images; exact for token ids or a list of such prompts, judged by the first."""
    prompt = asked.get("prompt")
    parts: list[Any] = prompt if isinstance(prompt, list) else []
    first = parts[0] if parts else None
    if isinstance(first, int):
        return len(parts)
    if isinstance(first, list) and first and isinstance(first[0], int):
        return sum(len(part) for part in parts if isinstance(part, list))
    return _characters(asked) // CHARS_PER_TOKEN


def _characters(asked: object) -> int:
    """Characters of all names and texts in it. A file in base64 is no text."""
    found, left = 0, [asked]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            found += sum(map(len, one))
            is_file = ("media_type" in one or "format" in one) and isinstance(one.get("data"), str)
            left += (value for name, value in one.items() if not (is_file and name == "data"))
        elif isinstance(one, list):
            left += one
        elif isinstance(one, str) and not (one.startswith("data:") and ";base64," in one[:DATA_URL_CHARS]):
            found += len(one)
    return found


async def _refuse(error: OverloadError, send: Send) -> None:
    what = {"message": error.message, "type": "requests", "param": None, "code": error.code}
    content = json.dumps({"error": what}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
        (b"retry-after", str(error.retry_after_s).encode()),
    ]
    await send({"type": "http.response.start", "status": error.http_status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
