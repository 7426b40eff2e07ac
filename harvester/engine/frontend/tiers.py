"""`service_tier` of chat requests: the tier decides the priority in the engine, and the answer states it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Protocol

from fastapi import Request

from harvester.access_config import TierConfig
from harvester.core import ServiceTier, WorkClass, work_class
from harvester.errors import ParameterError
from jobs.hint import without_hint

_DATA = "data: {"
_CALLS, _NAME = '"tool_calls":[{', '"name":"'  # in the text of an answer their quotes would be escaped


class TieredRequest(Protocol):
    """The fields of a request for a chat or a plain completion that `settle` reads or sets."""

    priority: int
    vllm_xargs: dict[str, Any] | None

    @property
    def use_beam_search(self) -> bool: ...


def asked_tier(config: TierConfig, asked: object, key: str | None, name: str | None = None) -> ServiceTier | None:
    """The tier of a request with the API key ``key``, named ``name``; None if neither the request, its key nor the config chooses one.

    Raises `ParameterError` for an unknown one.
    """
    if asked in (None, "auto"):
        own = next((config.keys[one] for one in (key, name) if one in config.keys), config.default)
        return None if own is ServiceTier.DEFAULT and asked is None else own
    try:
        return ServiceTier(str(asked))
    except ValueError as error:
        known = ", ".join(["auto", *ServiceTier])
        raise ParameterError(f"unknown service_tier {str(asked)[:40]!r}; use one of: {known}", "service_tier") from error


def settle(request: TieredRequest, priority: int) -> str | None:
    """Set the request's priority; if that is offline, remove the hints that only jobs may give. Returns why it cannot be offline, if so."""
    request.priority = priority
    if work_class(priority) is WorkClass.ONLINE:
        return None
    if request.use_beam_search:
        return "use_beam_search is not for offline work: vLLM runs its beams without a priority; leave it out"
    if request.vllm_xargs:
        request.vllm_xargs = without_hint(request.vllm_xargs) or None
    return None


async def marked(stream: AsyncGenerator[str, None], tier: ServiceTier) -> AsyncGenerator[str, None]:
    """The events, with ``service_tier`` inserted at the front of each JSON object, errors excepted.

    Only the first event of a call of a tool is parsed: vLLM leaves its arguments out, to which clients add the later ones.
    """
    start = f'{_DATA}"service_tier":"{tier.value}",'
    async with aclosing(stream):  # a client that hangs up ends the request
        async for event in stream:
            if _CALLS in event and _NAME in event:
                event = _with_arguments(event)
            plain = not event.startswith(_DATA) or event.startswith((_DATA + '"error"', _DATA + "}"))
            yield event if plain else start + event[len(_DATA) :]


def _with_arguments(event: str) -> str:
    """An event that begins a call of a tool, with the empty string for arguments that it leaves out."""
    told = json.loads(event.removeprefix("data: "))
    for choice in told.get("choices", ()):
        for call in choice.get("delta", {}).get("tool_calls") or ():
            function = call.get("function") or {}
            if function.get("name") is not None and function.get("arguments") is None:
                function["arguments"] = ""
    return f"data: {json.dumps(told, separators=(',', ':'))}\n\n"


def bearer_key(request: Request | None) -> str | None:
    """The API key that the request came with."""
    if request is None:
        return None
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else None


def given_priority(request: Request | None, header: str, otherwise: int) -> int:
    """The priority in ``header``, as vLLM reads it; ``otherwise`` if it is missing or no number."""
    try:
        return otherwise if request is None else int(request.headers.get(header, otherwise))
    except ValueError:
        return otherwise


def without_header(request: Request | None, header: str) -> Request | None:
    """The request without that header."""
    if request is None or header not in request.headers:
        return request
    _ = request.state  # the first access creates it in the scope, which the copy shares
    name = header.lower().encode("latin-1")
    headers = [(key, value) for key, value in request.scope["headers"] if key.lower() != name]
    return Request({**request.scope, "headers": headers}, request.receive)
