"""Where safepoints can stand: for each kind of vLLM's attention layers, the callable before which a step may end.

A place must be Python in every mode: eager, under `torch.compile` and with piecewise CUDA graphs. The bodies of vLLM's attention ops are,
since the compiled graph calls or splits at them.

A step that ended there is computed again, so no layer of the model may keep a state that a step changes in place. KV is written to slots
by position: the second time the same values are written. A recurrent state would be advanced twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

LAYERS = "vllm.model_executor.layers."
MODELS = "vllm.model_executor.models."

RECURRENT = "its recurrent state is updated in place"
UNPROVEN = "its attention runs outside vLLM's common attention ops"
ONCE = "what it computes is kept over steps"


@dataclass(frozen=True, slots=True)
class SafepointSite:
    """``owner.attribute`` is called once in each step, just before the attention of the layer."""

    layer_name: str
    owner: Any
    attribute: str


@dataclass(frozen=True, slots=True)
class Hook:
    """A kind of layer with a place: attribute ``attribute`` of the layer's ``owner``, or of the layer itself where that is None."""

    owner: str | None
    attribute: str


@dataclass(frozen=True, slots=True)
class Silent:
    """A kind of layer without a place. Other layers of the model may have safepoints."""

    why: str


@dataclass(frozen=True, slots=True)
class Barred:
    """A kind whose presence forbids safepoints in the whole model."""

    why: str


Kind = Hook | Silent | Barred

# By class of the layer. A class that is not listed has the kind of its nearest listed ancestor.
KINDS: dict[str, Kind] = {
    f"{LAYERS}attention.attention:Attention": Hook("impl", "forward"),
    f"{LAYERS}attention.mla_attention:MLAAttention": Hook(None, "forward_impl"),
    f"{LAYERS}attention.encoder_only_attention:EncoderOnlyAttention": Silent("an encoder runs before the first decoder layer"),
    f"{MODELS}deepseek_v2:DeepseekV32IndexerCache": Silent("a cache that another layer fills"),
    f"{MODELS}extract_hidden_states:CacheOnlyAttentionLayer": Silent("a cache that is filled after the last layer"),
    f"{LAYERS}attention.cross_attention:CrossAttention": Barred(ONCE),
    f"{MODELS}whisper_causal:WhisperCausalAttentionWithBlockPooling": Barred(ONCE),
    f"{LAYERS}mamba.abstract:MambaBase": Barred(RECURRENT),
    "vllm.models.glm5next.common.attention:Glm5NextTailCache": Barred("its ring is overwritten in place"),
    "vllm.models.inkling.amd.sconv_swa_attn:InklingConvState": Barred(UNPROVEN),
    "vllm.models.inkling.nvidia.sconv_swa_attn:InklingConvState": Barred(UNPROVEN),
    "vllm.models.inkling.amd.attention:InklingAttention": Barred(UNPROVEN),
    "vllm.models.inkling.nvidia.attention:InklingAttention": Barred(UNPROVEN),
    "vllm.models.deepseek_v32.attention:DeepseekV32Attention": Barred(UNPROVEN),
    "vllm.models.deepseek_v4.attention:DeepseekV4Attention": Barred(UNPROVEN),
    "vllm.models.deepseek_v4.attention:DeepseekV4IndexerCache": Barred(UNPROVEN),
    "vllm.models.deepseek_v4.compressor:CompressorStateCache": Barred(UNPROVEN),
    "vllm.models.deepseek_v41.attention:DeepseekV4Attention": Barred(UNPROVEN),
    "vllm.models.deepseek_v41.attention:DeepseekV4IndexerCache": Barred(UNPROVEN),
    "vllm.models.deepseek_v41.compressor:CompressorStateCache": Barred(UNPROVEN),
    "vllm.v1.attention.backends.mla.sparse_swa:DeepseekV4SWACache": Barred(UNPROVEN),
    "vllm.models.kimi_k3.nvidia.mla:MultiHeadLatentAttention": Barred(UNPROVEN),
    "vllm.models.minimax_m3.amd.model:MiniMaxM3SparseAttention": Barred(UNPROVEN),
    "vllm.models.minimax_m3.nvidia.model:MiniMaxM3SparseAttention": Barred(UNPROVEN),
    "vllm.models.minimax_m3.common.indexer:MiniMaxM3IndexerCache": Barred(UNPROVEN),
    "vllm.models.qwen4_exp.amd.qsa:Qwen4ExpQSAAttention": Barred(UNPROVEN),
    "vllm.models.qwen4_exp.nvidia.qsa:Qwen4ExpQSAAttention": Barred(UNPROVEN),
    "vllm.models.qwen4_exp.common.qsa_cache:_QSAStateCache": Barred(UNPROVEN),
}


def kind_of(ancestry: Iterable[str]) -> Kind:
    """The kind of a layer, given its class and ancestors as ``module:Class``, the most derived first. Unknown ones are `Barred`."""
    for name in ancestry:
        if name in KINDS:
            return KINDS[name]
    return Barred("this kind of layer is not known")


def find(layers: Mapping[str, Any]) -> tuple[list[SafepointSite], list[str]]:
    """The places of a model with these ``layers``, in their order, and a line for each kind of layer without one.

    ``layers``: as `get_layers_from_vllm_config` gives them, in the order the model made them. All ranks of a tensor parallel group get the
    same number of places in the same order, for they have the same layers. One barred layer, and there is no place at all.
    """
    places: list[SafepointSite] = []
    without: Counter[tuple[str, str]] = Counter()
    barred = False
    seen: set[tuple[int, str]] = set()
    for name, layer in layers.items():
        kind = _kind(layer)
        if isinstance(kind, Hook):
            owner = layer if kind.owner is None else getattr(layer, kind.owner)
            if (id(owner), kind.attribute) not in seen:  # layers may share an implementation
                seen.add((id(owner), kind.attribute))
                places.append(SafepointSite(name, owner, kind.attribute))
            continue
        barred |= isinstance(kind, Barred)
        without[type(layer).__name__, kind.why] += 1
    return [] if barred else places, [f"{number} {name}: {why}" for (name, why), number in without.items()]


def _kind(layer: Any) -> Kind:
    """The kind of a layer by its class, corrected by attributes of the layer itself."""
    kind = kind_of(f"{one.__module__}:{one.__qualname__}" for one in type(layer).__mro__)
    if not isinstance(kind, Hook):
        return kind
    if getattr(layer, "is_draft_layer", False):
        return Silent("the draft model runs after the step")
    attends = getattr(layer, "attn_type", "decoder")  # a str enum
    if attends == "encoder_decoder":
        return Barred(ONCE)
    if attends in ("encoder", "encoder_only"):
        return Silent("an encoder runs before the first decoder layer")
    if getattr(layer, "hisparse_cache", None) is not None:
        return Barred("which of its KV is on the device changes in a step")
    if getattr(layer, "use_direct_call", False):
        return Barred("on this platform its attention is compiled with the model")
    return kind
