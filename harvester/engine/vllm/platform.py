"""What vLLM knows of the machine and of its own processes: device, CUDA graphs, CUDA calls that PyTorch lacks, message queues, sizes
of the workers' buffers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from vllm import _custom_ops, envs, platforms
from vllm.config import CUDAGraphMode, VllmConfig
from vllm.distributed.device_communicators import shm_broadcast
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams
from vllm.v1.kv_offload.cpu.host_register import host_register, host_unregister

from harvester.engine.shared.backoff import PollBackoff
from harvester.engine.worker.device import CudaCalls
from harvester.policy.model.graphs import GraphSizes


def on_cpu() -> bool:
    return bool(platforms.current_platform.is_cpu())


def accelerator_name() -> str:
    """The driver's name for it, through NVML. The front end must not open a CUDA context, which takes GPU memory from the engine."""
    platform = platforms.current_platform
    if platform.is_cuda():
        from vllm.platforms.cuda import NvmlCudaPlatform

        if not isinstance(platform, NvmlCudaPlatform):
            return "CUDA without NVML"  # a Jetson: there vLLM itself would ask through a context
    return str(platform.get_device_name())


class Additional(dict[str, Any]):
    """vLLM's `additional_config` with the user's own values alone. Harvester's settings are beside them, in ``ours``.

    vLLM hashes the values for the key of its compiled graphs and for the `system_fingerprint` of answers. Harvester's settings name files
    of one start and change no graph: with them among the values, each start would compile anew. Some layers of vLLM read a dict alone.
    """

    def __init__(self, values: Mapping[str, Any], ours: Collection[str]) -> None:
        super().__init__({name: value for name, value in values.items() if name not in ours})
        self.ours = {name: value for name, value in values.items() if name in ours}


def additional(vllm_config: VllmConfig) -> Mapping[str, Any]:
    """vLLM's `additional_config` and harvester's settings; empty if it is no dict: vLLM passes on any hashable object."""
    found = vllm_config.additional_config
    if isinstance(found, Additional):
        return {**found, **found.ours}
    return found if isinstance(found, dict) else {}


def graph_sizes(vllm_config: VllmConfig) -> GraphSizes | None:
    """The CUDA graphs that vLLM captures. None on a CPU, with ``enforce_eager``, and wherever else it captures none.

    vLLM has separate graphs, FULL ones, for steps in which each request computes one token, up to ``max_num_seqs``. Other steps run as
    PIECEWISE graphs, or as FULL ones where the attention backend can. With speculative decoding a decode computes several tokens, and vLLM
    does not take a step of one token each for decodes. Source: `v1.cudagraph_dispatcher`, `v1.worker.gpu.cudagraph_utils`.
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


def sleep_between_looks(spin_s: float = 0.0) -> PollBackoff:
    """From now on the message queues of this process sleep between two polls, after ``spin_s`` of a wait. May be called again."""
    queues: Any = shm_broadcast  # which looks the function up in its own namespace, and does not export it
    if not isinstance(queues.sched_yield, PollBackoff):
        queues.sched_yield = PollBackoff(spin_s)
    backoff: PollBackoff = queues.sched_yield
    return backoff


def _copy_batch(sources: torch.Tensor, targets: torch.Tensor, sizes: torch.Tensor, any_order: bool) -> None:
    _custom_ops.swap_blocks_batch(sources, targets, sizes, is_src_access_order_any=any_order)


CUDA_CALLS = CudaCalls(_copy_batch, host_register, host_unregister)


def keeps_slots(config: VllmConfig) -> bool:
    """Whether a request keeps its slot in the workers until it ends or loses its KV, without spare slots: vLLM's Model Runner V2.

    V1 has slots only for the requests in the step, so a request may sit out a step and keep its KV.
    """
    return bool(config.use_v2_model_runner)


UnsendableError = VLLMValidationError  # vLLM's routes answer it with 400
# Sizes of buffers of Model Runner V2 (`vllm.v1.worker.gpu.sample.logit_bias`), whose module needs a GPU.
MAX_ALLOWED_TOKEN_IDS = 1024
MAX_LOGIT_BIASES = 1024
MAX_STOP_TOKEN_IDS = 128


def check_buffers(params: SamplingParams) -> None:
    """Raises `UnsendableError` for more of a parameter than the workers of Model Runner V2 have room for."""
    held = {
        "allowed_token_ids": (len(params.allowed_token_ids or ()), MAX_ALLOWED_TOKEN_IDS),
        "logit_bias": (len(params.logit_bias or ()), MAX_LOGIT_BIASES),
        "stop_token_ids": (len(params.all_stop_token_ids) if params.min_tokens > 0 else 0, MAX_STOP_TOKEN_IDS),
        "bad_words": (sum(map(len, params.bad_words_token_ids or ())), envs.VLLM_MAX_BAD_WORDS_TOTAL_TOKENS),
    }
    for name, (count, most) in held.items():
        if count > most:
            raise UnsendableError(f"{name} holds {count:,} tokens; the limit is {most:,}: give fewer", parameter=name)
