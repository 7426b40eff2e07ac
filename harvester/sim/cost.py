"""How long a step takes on a named model and GPU, from floating-point operations and bytes moved (a roofline), or from a fitted profile.

    linear layers  max(2 x parameters x tokens / FLOP/s, weight bytes / bandwidth)
    attention      4 x layers x hidden x (token, context) pairs / FLOP/s for prompts; KV bytes read / bandwidth for decodes
    per step       a fixed time for launching and scheduling, two all-reduces a layer where several GPUs share a layer
    CUDA graphs    tokens padded to the captured sizes, and what each kind of step costs to launch

The peak figures are the vendor's, the reached shares of them are assumptions, stated where they are set. Absolute times are therefore good
to a few tens of percent; this is for comparing policies on the same cost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harvester.policy.model.graphs import GraphSizes
from harvester.policy.model.latency import StepLoad, predict_with

Cost = Callable[[StepLoad], float]
"""Seconds of a step with this load."""

BYTES = 2  # FP16 or BF16, weights and KV


@dataclass(frozen=True, slots=True)
class Model:
    """A dense decoder. ``kv_hidden``: width of the keys of one layer (heads x head size; smaller than ``hidden`` with grouped queries)."""

    name: str
    parameters: float
    layers: int
    hidden: int
    kv_hidden: int

    @property
    def weight_bytes(self) -> float:
        return BYTES * self.parameters

    @property
    def kv_bytes_per_token(self) -> float:
        return 2.0 * BYTES * self.layers * self.kv_hidden


@dataclass(frozen=True, slots=True)
class Gpu:
    """Peak figures of one GPU: dense 16-bit tensor FLOP/s, memory bytes/s, memory bytes, host link bytes/s in one direction."""

    name: str
    flops_per_s: float
    bytes_per_s: float
    memory_bytes: float
    link_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Machine:
    """``gpus`` of a kind, tensor-parallel over all of them. Shares of the peaks: assumptions, in the usual range of A100 serving."""

    gpu: Gpu
    gpus: int = 1
    flops_share: float = 0.55
    bytes_share: float = 0.8
    link_share: float = 0.8
    memory_share: float = 0.92  # of the memory for weights and KV; the rest holds activations and graphs
    step_s: float = 0.003  # launch, sampling, scheduling
    all_reduce_s: float = 20e-6  # one, small message, NVLink


@dataclass(frozen=True, slots=True)
class Launches:
    """Launch cost of a step per layer, by `GraphSizes.padded`'s kind. Assumptions, in the range that traces of such GPUs show.

    ``gap_s``: the GPU idle between kernels. ``host_s``: the host's own time, hidden behind the GPU's where that is longer. A graph of
    decodes is one launch. A piecewise one is a graph and an attention kernel per layer. Without a graph each kernel is launched by itself.
    """

    gap_s: tuple[float, float, float] = (0.0, 40e-6, 60e-6)
    host_s: tuple[float, float, float] = (0.0, 100e-6, 200e-6)


LAUNCHES = Launches()


# Table 1 of the FastServe paper (arXiv 2305.05920v3); Llama 2: its paper (arXiv 2307.09288) and model card.
MODELS = {
    model.name: model
    for model in (
        Model("opt-13b", 13e9, 40, 5120, 5120),
        Model("opt-66b", 66e9, 64, 9216, 9216),
        Model("opt-175b", 175e9, 96, 12288, 12288),
        Model("llama-2-7b", 6.74e9, 32, 4096, 4096),
        Model("llama-3.1-8b", 8.03e9, 32, 4096, 1024),  # its model card and config.json
        Model("llama-3.1-70b", 70.6e9, 80, 8192, 1024),  # the same
    )
}
# NVIDIA H200 data sheet (SXM): 989 TFLOP/s BF16 dense, 4.8 TB/s, 141 GB, PCIe 5.0 x16 at 64 GB/s in one direction.
# NVIDIA A100 data sheet (SXM): 312 TFLOP/s FP16 dense, 1,555 and 2,039 GB/s, PCIe 4.0 x16 at 32 GB/s in one direction.
GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("a100-40gb", 312e12, 1555e9, 40e9, 32e9),
        Gpu("a100-80gb", 312e12, 2039e9, 80e9, 32e9),
        Gpu("h200", 989e12, 4800e9, 141e9, 64e9),
    )
}


def roofline(model: Model, machine: Machine, graphs: GraphSizes | None = None, launches: Launches = LAUNCHES) -> Cost:
    """Cost of a step of ``model`` on ``machine``.

    With ``graphs`` it is a staircase: linear layers compute the padded tokens, and each kind of step has ``launches`` of its own.
    """
    flops_per_s = machine.gpus * machine.gpu.flops_per_s * machine.flops_share
    bytes_per_s = machine.gpus * machine.gpu.bytes_per_s * machine.bytes_share
    weights_s = model.weight_bytes / bytes_per_s
    token_s = 2.0 * model.parameters / flops_per_s
    pair_s = 4.0 * model.layers * model.hidden / flops_per_s
    context_s = model.kv_bytes_per_token / bytes_per_s
    fixed_s = machine.step_s + (2 * model.layers * machine.all_reduce_s if machine.gpus > 1 else 0.0)

    def computed_s(load: StepLoad, tokens: int) -> float:
        return max(token_s * tokens, weights_s) + pair_s * load.prefill_attention + context_s * load.decode_context

    if graphs is None:
        return lambda load: fixed_s + computed_s(load, load.tokens)
    padded, (gaps_s, hosts_s) = graphs.padded, ([model.layers * layer_s for layer_s in part] for part in (launches.gap_s, launches.host_s))

    def stairs(load: StepLoad) -> float:
        kind, tokens = padded(load.prefill_tokens, load.decode_seqs)
        return fixed_s + max(computed_s(load, tokens) + gaps_s[kind], hosts_s[kind])

    return stairs


def fitted(coefficients: tuple[float, ...]) -> Cost:
    """Cost of a step from a measured profile (`LatencyModel.coefficients`)."""
    return lambda load: predict_with(coefficients, load)


def kv_blocks(model: Model, machine: Machine, block_tokens: int = 16) -> int:
    """KV blocks that fit beside the weights. Raises ValueError where the weights alone do not fit."""
    free = machine.gpus * machine.gpu.memory_bytes * machine.memory_share - model.weight_bytes
    blocks = int(free / (model.kv_bytes_per_token * block_tokens))
    if blocks < 1:
        raise ValueError(f"{model.name} does not fit {machine.gpus} x {machine.gpu.name}; take more GPUs")
    return blocks


def block_copy_s(model: Model, machine: Machine, block_tokens: int = 16) -> float:
    """Seconds to copy one KV block between GPU and host; every GPU copies its part over its own link."""
    return model.kv_bytes_per_token * block_tokens / (machine.gpus * machine.gpu.link_bytes_per_s * machine.link_share)
