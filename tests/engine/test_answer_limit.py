"""The limit of a key on one answer, where the request gives none: at the wall, and for requests of a batch."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI

from harvester.access_config import TierConfig
from harvester.core import Role
from harvester.engine.frontend.spending import at_most
from harvester.serve.access.gate import Gate
from harvester.serve.access.identity import Identity
from harvester.serve.access.routes import CHAT, RouteTable
from harvester.serve.access.wall import guard
from jobs.access.limits import Limits
from jobs.engine import ApiCall
from jobs.hint import EVEN

pytestmark = pytest.mark.engine


async def asked_for(llm: Any, max_tokens: int | None) -> int | None:
    from vllm.sampling_params import SamplingParams

    params = SamplingParams(max_tokens=max_tokens)
    assert [output async for output in llm.generate("a prompt", params, "chat-1")]
    return params.max_tokens


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`HarvestLLM` without an engine."""
    from vllm.v1.engine.async_llm import AsyncLLM

    from harvester.engine.vllm.frontend.client import HarvestLLM

    async def generate(*given: Any, **named: Any) -> AsyncGenerator[Any, None]:
        yield SimpleNamespace(outputs=[], metrics=None)

    monkeypatch.setattr(AsyncLLM, "generate", generate)
    return object.__new__(HarvestLLM)


@pytest.mark.parametrize(("limit", "given", "used"), [(4, None, 4), (4, 9, 4), (4, 3, 3), (None, None, None), (None, 9, 9)], ids=str)
async def test_an_answer_to_a_key_ends_at_its_limit_whether_or_not_the_request_says_so(
    llm: Any, limit: int | None, given: int | None, used: int | None
) -> None:
    """``given`` is what vLLM made of the request; without a number in it that is all that the context holds."""
    app = FastAPI()

    @app.post("/say")
    async def say() -> int | None:
        return await asked_for(llm, given)

    nobody = Identity(None, frozenset({Role.ADMIN}), Limits(max_tokens=limit))
    guard(app, RouteTable({"POST /say": CHAT}, model_requests=("POST /say",)), Gate(keyless=nobody))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8000") as http:
        assert (await http.post("/say", json={})).json() == used
    assert await asked_for(llm, given) == given, "what a job's row asks is not the key's"


async def test_a_request_of_a_batch_ends_at_the_limit_of_the_key_that_made_the_batch(llm: Any) -> None:
    from harvester.engine.vllm.frontend.serving import OfflineApi

    class Serving:
        async def create_chat_completion(self, request: Any) -> Any:
            used = await asked_for(llm, request.max_completion_tokens)
            usage = SimpleNamespace(prompt_tokens=1, prompt_tokens_details=None, completion_tokens=1)
            choices = [SimpleNamespace(finish_reason="stop")]
            return SimpleNamespace(choices=choices, usage=usage, model_dump_json=lambda: json.dumps(used))

    app: Any = SimpleNamespace(state=SimpleNamespace(openai_serving_chat=Serving()))
    api = OfflineApi(app, cast(Any, SimpleNamespace(errored=False)), TierConfig())
    body = {"model": "tiny", "messages": []}
    for limit, used in ((4, "4"), (None, "null")):
        assert (await api.respond("row", ApiCall("/v1/chat/completions", body, limit), EVEN)).text == used


class Engine:
    """For a beam search in vLLM. Each step has two further tokens, and none is the last."""

    input_processor = SimpleNamespace(resolve_watermarking=lambda params: None)

    async def generate(self, *given: Any, **named: Any) -> AsyncGenerator[Any, None]:
        likely = {7: SimpleNamespace(logprob=-0.1), 8: SimpleNamespace(logprob=-0.2)}
        yield SimpleNamespace(outputs=[SimpleNamespace(finish_reason="length", logprobs=[likely])])


@pytest.mark.parametrize(("limit", "used"), [(4, 4), (20, 9), (None, 9)], ids=str)
async def test_a_beam_search_ends_at_the_limit_too(monkeypatch: pytest.MonkeyPatch, limit: int | None, used: int) -> None:
    """vLLM's search asks the engine for one token at a time, so that its requests say nothing of its length."""
    from vllm.entrypoints.generate.base.serving import GenerateBaseServing
    from vllm.entrypoints.speech_to_text.base.serving import SpeechToTextBaseServing
    from vllm.sampling_params import BeamSearchParams

    from harvester.engine.vllm.frontend.serving import bound_beams

    monkeypatch.setattr(GenerateBaseServing, "beam_search", GenerateBaseServing.beam_search)  # as it is, once this test has ended
    bound_beams()
    for kind in (SpeechToTextBaseServing, GenerateBaseServing):
        serving: Any = object.__new__(kind)
        serving.engine_client = Engine()
        tokenizer = SimpleNamespace(eos_token_id=0, decode=lambda tokens, **named: "")
        serving.renderer = SimpleNamespace(get_tokenizer=lambda tokenizer=tokenizer: tokenizer)
        prompt = {"type": "token", "prompt_token_ids": [1, 2, 3]}
        with at_most(limit):
            answers = serving.beam_search(prompt=prompt, request_id="one", params=BeamSearchParams(beam_width=2, max_tokens=9))
        (answer,) = [one async for one in answers]
        assert [len(beam.token_ids) for beam in answer.outputs] == [used, used]


async def test_the_application_of_a_server_bounds_beam_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.entrypoints.generate.base.serving import GenerateBaseServing

    from harvester.engine.vllm.frontend import serving

    async def told(*given: Any) -> tuple[str, ...]:
        return ()

    app, stock = SimpleNamespace(state=SimpleNamespace(openai_serving_models=None)), GenerateBaseServing.beam_search
    monkeypatch.setattr(GenerateBaseServing, "beam_search", stock)  # as it is, once this test has ended
    for name in ("fetch_checked", "build_app", "complete", "stop_at_first_error", "hide_paths"):
        monkeypatch.setattr(serving, name, lambda *given, **named: app)
    monkeypatch.setattr(serving, "init_app_state", told)
    llm: Any = SimpleNamespace(get_supported_tasks=told, model_config=None)
    made: Any = await serving.chat_app(llm, Namespace(allowed_media_domains=None))
    assert made is app
    assert GenerateBaseServing.beam_search is not stock
