"""Sending a request to the engine core. What the core's message cannot carry, or its workers' buffers cannot hold, is refused here.

The workers would find it within a step, which ends the engine and every stream.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from vllm import envs
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.async_llm import AsyncLLM

from harvester.engine.vllm.platform import keeps_slots

# Sizes of buffers of Model Runner V2 (`vllm.v1.worker.gpu.sample.logit_bias`), whose module needs a GPU.
MAX_ALLOWED_TOKEN_IDS = 1024
MAX_LOGIT_BIASES = 1024
MAX_STOP_TOKEN_IDS = 128

Send = Callable[[EngineCoreRequest], Awaitable[None]]


async def send_checked(llm: AsyncLLM, send: Send, request: EngineCoreRequest) -> None:
    """Send it, or forget it. Raises vLLM's `VLLMValidationError`, which is answered with 400, for what cannot be sent.

    vLLM forgets a request that could not be sent only where it has several choices.
    """
    try:
        if keeps_slots(llm.vllm_config) and request.sampling_params is not None:
            check_buffers(request.sampling_params)
        await send(request)
    except (OverflowError, UnicodeEncodeError) as error:
        await llm.abort(request.request_id, internal=True)
        raise VLLMValidationError(f"a value of the request cannot be sent to the engine: {error}; send text and 64-bit numbers") from error
    except BaseException:
        await llm.abort(request.request_id, internal=True)
        raise


def check_buffers(params: SamplingParams) -> None:
    """Raises `VLLMValidationError` for more of a parameter than the workers have room for."""
    held = {
        "allowed_token_ids": (len(params.allowed_token_ids or ()), MAX_ALLOWED_TOKEN_IDS),
        "logit_bias": (len(params.logit_bias or ()), MAX_LOGIT_BIASES),
        "stop_token_ids": (len(params.all_stop_token_ids) if params.min_tokens > 0 else 0, MAX_STOP_TOKEN_IDS),
        "bad_words": (sum(map(len, params.bad_words_token_ids or ())), envs.VLLM_MAX_BAD_WORDS_TOTAL_TOKENS),
    }
    for name, (count, most) in held.items():
        if count > most:
            raise VLLMValidationError(f"{name} holds {count:,} tokens; the limit is {most:,}: give fewer", parameter=name, value=count)
