"""Which KV caches can have checkpoints, as vLLM lays them out."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from harvester.engine.checkpoints.budget import transfer_config
from harvester.engine.embedded import embedded_model
from harvester.model_config import CheckpointConfig

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    import torch
    from vllm.v1.kv_cache_interface import CircularBufferSpec, FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MLAAttentionSpec

    from bench.harness.engine.drive import Drive
    from harvester.engine.vllm.connector import host_layout
    from harvester.engine.vllm.core.scheduler import HarvestScheduler

pytestmark = pytest.mark.engine
CHECKPOINT = CheckpointConfig(enabled=True, host_gib=0.3)
FULL = MLAAttentionSpec(block_size=128, num_kv_heads=1, head_size=8, dtype=torch.float32)
RING = CircularBufferSpec(block_size=4, num_kv_heads=2, head_size=8, head_size_v=0, dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def config() -> Any:
    sections = {"share": {"reserved_slots": 0, "reserved_kv": 0.0}, "checkpoint": CHECKPOINT.model_dump()}
    return Drive(embedded_model(), HarvestScheduler, 80, 8, 16, sections, transfer=transfer_config(CHECKPOINT, 1)).config


def able(config: Any, *specs: Any) -> bool:
    groups = [KVCacheGroupSpec([f"layer{number}"], spec) for number, spec in enumerate(specs)]
    return host_layout(config, KVCacheConfig(80, [], groups)).supports_checkpoints


def test_a_ring_beside_full_attention_has_none(config: Any) -> None:
    assert able(config, FULL)
    assert not able(config, FULL, RING), "its bytes would not come back with a block that is partly filled"


@pytest.mark.parametrize(("layout", "expected"), [("LBNHC", True), ("BLHNC", True), ("LHBNC", False), ("BHLNC", False)])
def test_pages_that_are_not_in_one_piece_have_none(config: Any, monkeypatch: pytest.MonkeyPatch, layout: str, expected: bool) -> None:
    monkeypatch.setattr(config.cache_config, "kv_cache_layout", layout)
    assert able(config, FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=1, dtype=torch.float32)) == expected


def test_pipeline_stages_of_other_sizes_have_the_same_slots(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler has the layout of the first stage, and names slots that each stage must have."""
    monkeypatch.setattr(config.parallel_config, "pipeline_parallel_size", 2)
    monkeypatch.setattr(type(config.model_config), "get_total_num_hidden_layers", lambda self: 5)
    spec = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=64, dtype=torch.float32)

    def slots(layers: int) -> int:
        names = [f"layer{number}" for number in range(layers)]
        return host_layout(config, KVCacheConfig(80, [], [KVCacheGroupSpec(names, spec)])).slots

    assert slots(2) == slots(3) > 0
