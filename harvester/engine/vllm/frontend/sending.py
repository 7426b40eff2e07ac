"""Sending a request to the engine core. What the core's message cannot carry, or its workers' buffers cannot hold, is refused here.

A value too large for the workers' buffers would end the engine, and every stream, within a step. One that cannot be encoded would leave
the request registered for ever.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from harvester.engine.vllm.platform import UnsendableError, check_buffers, keeps_slots

Send = Callable[[Any], Awaitable[None]]


async def send_checked(llm: Any, send: Send, request: Any) -> None:
    """Send a request of vLLM's `AsyncLLM`, or forget it. Raises `UnsendableError` for what cannot be sent.

    vLLM forgets a request that could not be sent only where it has several choices.
    """
    try:
        if keeps_slots(llm.vllm_config) and request.sampling_params is not None:
            check_buffers(request.sampling_params)
        await send(request)
    except BaseException as error:
        await llm.abort(request.request_id, internal=True)
        if isinstance(error, OverflowError | UnicodeEncodeError):
            raise UnsendableError(f"a value of the request cannot be sent to the engine: {error}; send text and 64-bit numbers") from error
        raise
