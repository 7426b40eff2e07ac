"""What becomes of the choices of one chat request on their way to the engine core."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harvester.core import PRIORITY_OFFLINE, PRIORITY_ONLINE

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("priority", [PRIORITY_ONLINE, PRIORITY_OFFLINE], ids=["chat", "flex"])
@pytest.mark.parametrize("is_chat", [True, False], ids=["one of the first", "one more"])
async def test_one_choice_too_many_is_offline_work_of_no_job_and_the_others_are_as_they_were(is_chat: bool, priority: int) -> None:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine import EngineCoreRequest

    from harvester.engine.vllm.frontend.client import HarvestLLM

    sent = list[Any]()

    async def send(request: Any) -> None:
        sent.append(request)

    extra = {"slo_class": "gold", "job": "j-1", "weight": 9.0}
    params = SamplingParams(extra_args=dict(extra))
    given: dict[str, Any] = dict.fromkeys(EngineCoreRequest.__struct_fields__)
    request = EngineCoreRequest(**given | {"sampling_params": params, "priority": priority, "external_req_id": "a"})
    llm: Any = object.__new__(HarvestLLM)
    llm.vllm_config = SimpleNamespace(use_v2_model_runner=False)
    llm.overload, llm._send = SimpleNamespace(sends=lambda name: is_chat and name == "a"), send
    await llm._add_choice(request)
    assert sent == [request]
    assert params.extra_args == extra, "the choices of a prompt share their parameters"
    moved = priority == PRIORITY_ONLINE and not is_chat
    assert request.priority == (PRIORITY_OFFLINE if moved else priority)
    assert request.sampling_params is not None
    assert request.sampling_params.extra_args == ({"slo_class": "gold"} if moved else extra)


async def test_a_chat_has_waited_since_it_reached_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM notes the arrival in the rendered prompt: an image takes long to render, and the first token is promised from the arrival."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

    from harvester.engine.vllm.frontend import client

    async def stock(self: Any, *given: Any, **named: Any) -> None:
        pass

    waits = list[float]()
    monkeypatch.setattr(AsyncLLM, "add_request", stock)
    monkeypatch.setattr(client.HarvestLLM, "_is_traced", False)
    monkeypatch.setattr(client, "time", SimpleNamespace(time=lambda: 1000.5))
    llm: Any = object.__new__(client.HarvestLLM)
    llm.overload, llm._promise = None, lambda params: SimpleNamespace(ttft_s=1.0)
    llm._signal = SimpleNamespace(arrived=lambda tokens, ttft_s, waited_s: waits.append(waited_s))
    prompt = {"type": "token", "prompt_token_ids": [1, 2], "arrival_time": 1000.0}
    await llm.add_request("a", prompt, SamplingParams())
    await llm.add_request("b", prompt, SamplingParams(), 1000.25)
    await llm.add_request("c", [1, 2], SamplingParams())
    assert waits == [0.5, 0.25, 0.0]


BOUNDS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"allowed_token_ids": [5] * 1024}, {"allowed_token_ids": [5] * 1025}, "allowed_token_ids holds 1,025"),
    ({"logit_bias": dict.fromkeys(range(1024), 1.0)}, {"logit_bias": dict.fromkeys(range(1025), 1.0)}, "logit_bias holds 1,025"),
    (
        {"min_tokens": 1, "stop_token_ids": [*range(128)]},
        {"min_tokens": 1, "stop_token_ids": [*range(129)]},
        "stop_token_ids holds 129",
    ),
    ({"min_tokens": 0, "stop_token_ids": [*range(129)]}, {"bad_words": ["a"]}, "bad_words holds 1,025"),
]


@pytest.mark.parametrize(("held", "more", "message"), BOUNDS, ids=["allowed tokens", "biases", "stop tokens", "bad words"])
async def test_what_the_workers_have_no_room_for_is_refused_and_ends_no_engine(
    held: dict[str, Any], more: dict[str, Any], message: str
) -> None:
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import SamplingParams

    from harvester.engine.vllm.frontend.sending import send_checked

    sent, aborted = list[Any](), list[Any]()

    async def send(request: Any) -> None:
        sent.append(request)

    async def abort(name: str, *, internal: bool) -> None:
        aborted.append((name, internal))

    def asked(given: dict[str, Any]) -> Any:
        params = SamplingParams(**given)
        if "bad_words" in given:
            params._bad_words_token_ids = [[1] * 1025]
        return SimpleNamespace(request_id="a-1", sampling_params=params)

    llm: Any = SimpleNamespace(vllm_config=SimpleNamespace(use_v2_model_runner=True), abort=abort)
    await send_checked(llm, send, asked(held))
    assert (len(sent), aborted) == (1, [])
    with pytest.raises(VLLMValidationError, match=message):
        await send_checked(llm, send, asked(more))
    assert (len(sent), aborted) == (1, [("a-1", True)])


def test_the_bounds_are_those_of_the_workers() -> None:
    """Read in the source: the module needs a GPU."""
    from importlib.util import find_spec

    from harvester.engine.vllm import platform

    spec = find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    text = (Path(spec.origin).parent / "v1/worker/gpu/sample/logit_bias.py").read_text()
    ours = (platform.MAX_ALLOWED_TOKEN_IDS, platform.MAX_LOGIT_BIASES, platform.MAX_STOP_TOKEN_IDS)
    names = ("MAX_NUM_ALLOWED_TOKEN_IDS", "MAX_NUM_LOGIT_BIAS_TOKENS", "MAX_NUM_STOP_TOKEN_IDS")
    assert all(f"{name} = {number}\n" in text for name, number in zip(names, ours, strict=True))


@pytest.mark.parametrize("value", [10**30, "\ud800"], ids=["a number of 100 bits", "half a surrogate pair"])
async def test_a_request_that_cannot_be_sent_is_refused_and_forgotten(value: object) -> None:
    import msgspec
    from vllm.exceptions import VLLMValidationError

    from harvester.engine.vllm.frontend.sending import send_checked

    aborted = list[str]()

    async def send(request: Any) -> None:
        msgspec.msgpack.encode(value)

    async def abort(name: str, *, internal: bool) -> None:
        aborted.append(name)

    llm: Any = SimpleNamespace(vllm_config=SimpleNamespace(use_v2_model_runner=False), abort=abort)
    request: Any = SimpleNamespace(request_id="a-1", sampling_params=None)
    with pytest.raises(VLLMValidationError, match="cannot be sent to the engine"):
        await send_checked(llm, send, request)
    assert aborted == ["a-1"]
