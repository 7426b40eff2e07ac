"""LoRA on a CPU: a token without an adapter gets none, also beside tokens that have one."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore")]

TOKENS, WIDTH, RANK, OUT, PLACES = 4, 6, 2, 5, 2
ADAPTERS = [1, -1, 0, -1]  # place of the adapter of each token; -1: it has none


def added(kind: str) -> list[float]:
    """How much the adapters of a step change the line of each token, one request a token."""
    import torch
    from vllm.lora.layers import LoRAMapping

    from harvester.engine.vllm.worker.workers import CpuAdapters

    wrapper = CpuAdapters(TOKENS, TOKENS, "cpu")
    ids = tuple(place + 1 for place in ADAPTERS)
    wrapper.update_metadata(LoRAMapping(ids, ids, is_prefill=True), [1, 2], PLACES, OUT)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(TOKENS, WIDTH, generator=generator)
    shrink, widen = torch.randn(PLACES, 1, RANK, WIDTH, generator=generator), torch.randn(PLACES, 1, OUT, RANK, generator=generator)
    y = torch.zeros(TOKENS, OUT)
    if kind == "linear":
        wrapper.add_lora_linear(y, x, (shrink,), (widen,), 1.0, (OUT,))
    elif kind == "logits":
        wrapper.add_lora_logits(y, x, shrink, widen, 1.0)
    else:
        wrapper.add_lora_embedding(y, x[:, :RANK], widen)
    return [float(line.abs().sum()) for line in y]


@pytest.mark.parametrize("kind", ["linear", "logits", "embedding"])
def test_a_token_without_an_adapter_is_left_alone(kind: str) -> None:
    assert [change > 0 for change in added(kind)] == [place >= 0 for place in ADAPTERS]
