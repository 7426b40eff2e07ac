"""`service_tier` of chat requests: what is asked for becomes the priority in the engine, and stands in the answer.

vLLM's serving objects answer; here each request's priority is settled before, and the tier used is put into what comes back.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from fastapi import Request
from vllm.entrypoints.serve.engine.protocol import ErrorResponse

from harvester.config import TierConfig
from harvester.core import TIER_PRIORITY, ServiceTier, WorkClass, tier_of_priority, work_class
from harvester.errors import ParameterError
from jobs.hint import ARGS

Create = Callable[..., Awaitable[Any]]  # create_chat_completion or create_completion: (request, raw_request) -> answer
_DATA = "data: {"


def install(serving: Any, method: str, config: TierConfig) -> Create:
    """Put tiers before ``serving.method``, a serving object of vLLM's. Returns vLLM's own, for requests whose priority is settled."""
    create: Create = getattr(serving, method)
    priority_of = serving._get_priority

    async def create_in_tier(request: Any, raw_request: Request | None = None) -> Any:
        try:
            tier = config.resolve((request.model_extra or {}).get("service_tier"), _key(raw_request))
        except ParameterError as error:
            return serving.create_error_response(error.message, param=error.param)
        # Without a tier the request's own priority stands, as a header or in its body.
        priority = priority_of(request, raw_request) if tier is None else TIER_PRIORITY[tier]
        refusal = settle(request, priority)
        if refusal is not None:
            return serving.create_error_response(refusal)
        return mark(await create(request, raw_request), tier_of_priority(priority))

    setattr(serving, method, create_in_tier)
    serving._get_priority = lambda request, raw_request: request.priority  # settled above, whatever the header says
    return create


def settle(request: Any, priority: int) -> str | None:
    """Give the request its priority; offline, take from it what only jobs may say. Returns why it cannot be offline, if so."""
    request.priority = priority
    if work_class(priority) is WorkClass.ONLINE:
        return None
    if request.use_beam_search:
        return "use_beam_search is not for offline work: vLLM runs its beams without a priority; leave it out"
    if request.vllm_xargs:
        request.vllm_xargs = {name: value for name, value in request.vllm_xargs.items() if name not in ARGS} or None
    return None


def mark(answer: Any, tier: ServiceTier) -> Any:
    """The answer, with the tier that was used."""
    if isinstance(answer, AsyncGenerator):
        return _marked(answer, tier)
    if not isinstance(answer, ErrorResponse):
        answer.service_tier = tier.value
    return answer


async def _marked(stream: AsyncGenerator[str, None], tier: ServiceTier) -> AsyncGenerator[str, None]:
    """Each event's object with ``service_tier`` in front: nothing is parsed on the way of a token."""
    start = f'{_DATA}"service_tier":"{tier.value}",'
    async with aclosing(stream):  # a client that hangs up ends the request
        async for event in stream:
            plain = not event.startswith(_DATA) or event.startswith((_DATA + '"error"', _DATA + "}"))
            yield event if plain else start + event[len(_DATA) :]


def _key(raw_request: Request | None) -> str | None:
    if raw_request is None:
        return None
    scheme, _, key = raw_request.headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else None
