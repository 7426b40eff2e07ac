"""Every kind of attention layer that vLLM ships has a place for a safepoint, or is known to have none."""

from __future__ import annotations

import warnings
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from harvester.engine.worker.places import KINDS, Barred, Hook, Silent, find, kind_of
from tests.engine.layer_classes import Source, descendants

pytestmark = pytest.mark.engine

LAYER = "vllm.model_executor.layers.attention_layer_base:AttentionLayerBase"
IMPLEMENTATION = "vllm.v1.attention.backend:AttentionImplBase"
ABSTRACT = {LAYER}

# What a newer vLLM adds to these lists needs a look: does its op call the hook, and is what it writes the same when it is written again?
WITH_A_PLACE = {
    "Attention": "impl.forward",
    "ChunkedLocalAttention": "impl.forward",
    "PrefillPrefixLMAttention": "impl.forward",
    "RSWAAttention": "impl.forward",
    "StaticSinkAttention": "impl.forward",
    "MLAAttention": "forward_impl",
    "Dots3NotePaddedMLAAttention": "forward_impl",
}
SILENT = {
    "CacheOnlyAttentionLayer",
    "DeepseekV32IndexerCache",
    "DeepseekV32ROCmIndexerCache",
    "EncoderOnlyAttention",
    "Glm5NextIndexerCache",
}
# Where vLLM splits a compiled graph, so that what is inside stays Python: the ops that call a hook, and those of barred or silent layers.
HOOKED_OPS = {"vllm::unified_attention_with_output", "vllm::unified_mla_attention_with_output"}
OTHER_OPS = {
    "vllm::mamba_mixer2",
    "vllm::mamba_mixer",
    "vllm::short_conv",
    "vllm::qwen4_exp_ple_short_conv",
    "vllm::qwen4_exp_qsa_with_output",
    "vllm::qwen4_exp_qsa_prepare_with_output",
    "vllm::linear_attention",
    "vllm::qwen_gdn_attention_core",
    "vllm::qwen_gdn_attention_core_fused_norm_packed",
    "vllm::gdn_attention_core_xpu",
    "vllm::olmo_hybrid_gdn_full_forward",
    "vllm::sparse_attn_indexer",
    "vllm::rocm_aiter_sparse_attn_indexer",
    "vllm::deepseek_v4_attention",
    "vllm::hpc_rope_norm_forward",
}


@cache
def layers() -> dict[str, Source]:
    return {name: source for name, source in descendants(LAYER).items() if name not in ABSTRACT}


def short(name: str) -> str:
    return name.partition(":")[2]


def test_each_class_of_layer_in_vllm_is_known_by_its_own_name_or_an_ancestors() -> None:
    unknown = [name for name, source in layers().items() if not any(one in KINDS for one in source.ancestry)]
    assert len(layers()) > 60
    assert unknown == []


def test_nothing_is_known_that_vllm_does_not_have() -> None:
    assert [name for name in KINDS if name not in layers()] == []


def test_the_classes_with_a_place_and_those_that_leave_others_theirs_are_these() -> None:
    kinds = {name: kind_of(source.ancestry) for name, source in layers().items()}
    hooks = {short(name): ".".join(filter(None, (k.owner, k.attribute))) for name, k in kinds.items() if isinstance(k, Hook)}
    assert hooks == WITH_A_PLACE
    assert {short(name) for name, kind in kinds.items() if isinstance(kind, Silent)} == SILENT
    assert all(kind.why for kind in kinds.values() if isinstance(kind, Barred | Silent))


def test_each_implementation_of_attention_has_what_the_hook_of_its_layer_wraps() -> None:
    found = descendants(IMPLEMENTATION)
    direct = {short(name) for name, source in found.items() if source.ancestry[1:] == (IMPLEMENTATION,)}
    assert direct == {"AttentionImpl", "MLAAttentionImpl", "MiniMaxM3SparseImpl"}  # the last one's layer is barred
    without = [
        short(name)
        for name, source in found.items()
        if "vllm.v1.attention.backend:AttentionImpl" in source.ancestry
        and not any("forward" in found[one].methods for one in source.ancestry)
    ]
    assert without == []
    assert "forward_impl" in layers()["vllm.model_executor.layers.attention.mla_attention:MLAAttention"].methods


def test_vllm_splits_graphs_at_the_ops_known_here() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from vllm.config import CompilationConfig
    assert set(CompilationConfig._attention_ops) == HOOKED_OPS | OTHER_OPS


class Called:
    """An attention layer, or the implementation of one, that says when it is called."""

    def __init__(self, heard: list[str]) -> None:
        self._heard = heard
        self.hisparse_cache = None

    def forward(self, *args: Any, **rest: Any) -> None:
        self._heard.append("forward")

    def forward_impl(self, *args: Any, **rest: Any) -> None:
        self._heard.append("forward_impl")


@pytest.mark.parametrize("op", ["attention:unified_attention_with_output", "mla_attention:unified_mla_attention_with_output"])
def test_the_body_of_vllms_attention_op_comes_by_the_place(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import importlib

        from harvester.engine.shared.state import SharedState
        from harvester.engine.worker.device import HostDevice
        from harvester.engine.worker.places import SafepointSite
        from harvester.engine.worker.safepoint import Safepoints, StepAborted

        file, _, function = op.partition(":")
        module = importlib.import_module(f"vllm.model_executor.layers.attention.{file}")
    heard: list[str] = []
    layer: Any = Called(heard)
    layer.impl = Called(heard)
    hook = KINDS[f"vllm.model_executor.layers.attention.{file}:{'MLAAttention' if 'mla' in file else 'Attention'}"]
    assert isinstance(hook, Hook)
    monkeypatch.setattr(module, "get_attention_context", lambda name: (None, layer, None, None))
    shared = SharedState.make()
    try:
        safepoints = Safepoints(shared, leader=True, ranks=1, device=HostDevice())
        safepoints.install([SafepointSite("one", layer if hook.owner is None else getattr(layer, hook.owner), hook.attribute)])
        body = getattr(module, function)
        body(None, None, None, None, "one")
        assert heard == [hook.attribute]
        shared.planned(7, True, 1.0)
        shared.ask_to_end(7, 0.0)
        safepoints.arm(7)
        with pytest.raises(StepAborted):
            body(None, None, None, None, "one")
        assert heard == [hook.attribute]
    finally:
        shared.remove()


def layer_of(name: str, **attributes: Any) -> Any:
    """A layer whose class goes by this ``module:Class``."""
    module, _, kind = name.partition(":")
    made = type(kind, (), {"__module__": module, "__qualname__": kind})()
    for key, value in ({"impl": SimpleNamespace(forward=None)} | attributes).items():
        setattr(made, key, value)
    return made


ATTENTION = "vllm.model_executor.layers.attention.attention:Attention"
LATENT = "vllm.model_executor.layers.attention.mla_attention:MLAAttention"
RECURRENT = "vllm.model_executor.layers.mamba.abstract:MambaBase"


def test_places_stand_in_the_order_of_the_layers_each_at_what_its_kind_calls() -> None:
    plain, latent = layer_of(ATTENTION), layer_of(LATENT)
    places, without = find({"0": plain, "1": latent})
    assert [(place.layer_name, place.owner, place.attribute) for place in places] == [
        ("0", plain.impl, "forward"),
        ("1", latent, "forward_impl"),
    ]
    assert without == []


def test_layers_that_share_an_implementation_have_one_place() -> None:
    one = layer_of(ATTENTION)
    places, without = find({"0": one, "1": layer_of(ATTENTION, impl=one.impl)})
    assert [place.layer_name for place in places] == ["0"]
    assert without == []


@pytest.mark.parametrize(
    ("other", "barred"),
    [
        (layer_of(RECURRENT), True),
        (layer_of("somewhere.new:Attention9"), True),
        (layer_of("vllm.model_executor.layers.attention.cross_attention:CrossAttention"), True),
        (layer_of(ATTENTION, attn_type="encoder_decoder"), True),
        (layer_of(LATENT, hisparse_cache=object()), True),
        (layer_of(ATTENTION, use_direct_call=True), True),
        (layer_of(ATTENTION, attn_type="encoder_only"), False),
        (layer_of(ATTENTION, is_draft_layer=True), False),
        (layer_of("vllm.model_executor.models.deepseek_v2:DeepseekV32IndexerCache"), False),
    ],
    ids=["recurrent", "unknown", "cross", "cross by type", "hisparse", "not an op", "encoder", "draft", "indexer"],
)
def test_a_layer_without_a_place_is_named_and_may_take_away_all_others(other: Any, barred: bool) -> None:
    places, without = find({"0": layer_of(ATTENTION), "1": other, "2": layer_of(ATTENTION)})
    assert [place.layer_name for place in places] == ([] if barred else ["0", "2"])
    assert len(without) == 1
    assert without[0].startswith(f"1 {type(other).__name__}: ")
