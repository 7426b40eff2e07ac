"""What becomes of the choices of one chat request on their way to the engine core."""

from __future__ import annotations

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
