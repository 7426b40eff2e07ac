"""Ask an engine within this process."""

from __future__ import annotations

from typing import Any

from harvester.core import PRIORITY_OFFLINE, PRIORITY_ONLINE


async def likeliest(
    llm: Any, name: str, ids: list[int], *, online: bool, tokens: int, outputs: Any = None, ignore_eos: bool = False
) -> Any:
    """vLLM's answer to one prompt once it is whole, greedy, held to structured ``outputs``."""
    from vllm.inputs import TokensPrompt
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    params = SamplingParams(
        temperature=0, max_tokens=tokens, ignore_eos=ignore_eos, output_kind=RequestOutputKind.FINAL_ONLY, structured_outputs=outputs
    )
    priority = PRIORITY_ONLINE if online else PRIORITY_OFFLINE
    found = None
    async for output in llm.generate(TokensPrompt(prompt_token_ids=ids), params, name, priority=priority):
        found = output.outputs[0]
    assert found is not None
    return found
