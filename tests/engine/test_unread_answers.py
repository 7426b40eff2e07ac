"""What vLLM had made of an answer in one piece when its client hung up is counted for the key, with vLLM's own front end."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.hang_up import charged

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("choices", [1, 2], ids=["one choice", "two"])
async def test_the_tokens_made_before_a_hang_up_are_told(monkeypatch: pytest.MonkeyPatch, choices: int) -> None:
    from vllm.sampling_params import RequestOutputKind, SamplingParams
    from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector
    from vllm.v1.engine.parallel_sampling import ParentRequest

    from harvester.engine.vllm.frontend.client import HarvestLLM

    processor, aborted, began = OutputProcessor(None, log_stats=False), list[str](), asyncio.Event()

    async def stock(self: Any, request_id: str, prompt: Any, params: Any, *given: Any, **named: Any) -> RequestOutputCollector:
        """As vLLM's, with an engine core that has made 5 tokens of each choice."""
        collector = RequestOutputCollector(params.output_kind, request_id)
        empty: dict[str, Any] = dict.fromkeys(EngineCoreRequest.__struct_fields__)
        known = {"external_req_id": request_id, "prompt_token_ids": [1, 2, 3], "sampling_params": params, "arrival_time": 0.0}
        request = EngineCoreRequest(**empty | known | {"request_id": request_id})
        parent = ParentRequest(request) if choices > 1 else None
        names = [request_id]
        if parent is not None:
            names = []
            for number in range(choices):
                name, own = parent.get_child_info(number)
                child = EngineCoreRequest(**empty | known | {"request_id": name, "sampling_params": own})
                processor.add_request(child, None, parent, number, collector)
                names.append(name)
        else:
            processor.add_request(request, None, None, 0, collector)
        processor.process_outputs([EngineCoreOutput(name, [7] * 5) for name in names])
        began.set()
        return collector

    async def abort(ids: list[str]) -> None:
        aborted.extend(ids)

    monkeypatch.setattr(AsyncLLM, "add_request", stock)
    monkeypatch.setattr(HarvestLLM, "_is_traced", False)
    llm: Any = object.__new__(HarvestLLM)
    llm.output_processor, llm.log_requests = processor, False
    llm.engine_core = SimpleNamespace(abort_requests_async=abort, shutdown=lambda timeout: None)

    params = SamplingParams(n=choices, output_kind=RequestOutputKind.FINAL_ONLY, detokenize=False)
    heard = await charged(lambda: llm.generate({"prompt_token_ids": [1, 2, 3]}, params, "chat-1"), began)
    assert (heard, len(aborted)) == ([(3, 5 * choices)], choices)
