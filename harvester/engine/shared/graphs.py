"""Which CUDA graphs vLLM captures (`v1.cudagraph_dispatcher`, `v1.worker.gpu.cudagraph_utils`), as the latency model is told of them."""

from __future__ import annotations

from typing import Any

from vllm.config import CUDAGraphMode, VllmConfig

from harvester.policy.model.graphs import GraphSizes


def graph_sizes(vllm_config: VllmConfig | Any) -> GraphSizes | None:
    """None on a CPU, with ``enforce_eager``, and wherever else vLLM captures none.

    vLLM has graphs of their own for steps in which each request computes one token, up to ``max_num_seqs``: FULL ones. Other steps run as
    PIECEWISE graphs, or as FULL ones where the attention backend can. With speculative decoding a decode computes several tokens, and what
    computes one is no step of decodes to vLLM.
    """
    compilation = vllm_config.compilation_config
    mode, sizes = compilation.cudagraph_mode, tuple(sorted(set(compilation.cudagraph_capture_sizes or ())))
    if not mode or not sizes:
        return None
    mixed = sizes if mode.mixed_mode() != CUDAGraphMode.NONE else ()
    decode: tuple[int, ...] = ()
    if mode.decode_mode() == CUDAGraphMode.FULL and vllm_config.num_speculative_tokens == 0:
        most = vllm_config.scheduler_config.max_num_seqs
        decode = tuple(size for size in sizes if size <= most) if mode.separate_routine() else sizes
    return GraphSizes(decode, mixed) if decode or mixed else None
