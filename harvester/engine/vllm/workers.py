"""vLLM's workers with steps that may end early. Imported by name in the worker process (``worker_cls``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed import get_pp_group

from harvester.engine.vllm.platform import on_cpu, sleep_between_looks
from harvester.engine.vllm.runner import CpuAdapters, PreemptibleWorker

if TYPE_CHECKING or on_cpu():  # replaces parts of `torch.cuda`, before vLLM's GPU worker looks at them
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.worker.cpu_worker import CPUWorker

from vllm.v1.worker.gpu_worker import Worker

SPIN_S = 0.005  # the CPU worker has its core to itself, and the next step mostly comes within this time


class HarvestCudaWorker(PreemptibleWorker, Worker):
    """For GPUs."""


class RewindingGenerator(torch.Generator):
    """A CPU generator whose draw can be taken back before the first token: it starts again from its seed.

    vLLM 0.32 takes back the random draw of an unfinished prompt chunk with ``set_offset(get_offset() - 4)``. PyTorch's CPU generators have
    neither method: the engine would die of one chat request with a ``seed`` and a long prompt. A request that is preempted after some
    tokens and prefilled again in chunks draws from the start of its stream again.
    """

    def get_offset(self) -> int:
        return 0

    def set_offset(self, offset: int) -> torch.Generator:
        return self.manual_seed(self.initial_seed())


if TYPE_CHECKING or on_cpu():

    class HarvestCpuWorker(PreemptibleWorker, CPUWorker):
        """For CPUs, with seeded sampling that survives a chunked prefill, and adapters for those alone who asked for them.

        Without a compiler vLLM's warms nothing up, which is where a later pipeline stage makes room for what the stage before it sends: its
        first step would fail.
        """

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            torch.Generator = RewindingGenerator  # type: ignore[misc]
            name = f"{CpuAdapters.__module__}.{CpuAdapters.__qualname__}"
            CpuPlatform.get_punica_wrapper = classmethod(lambda cls: name)  # type: ignore[method-assign, assignment]
            sleep_between_looks(SPIN_S)
            super().__init__(*args, **kwargs)

        def compile_or_warm_up_model(self) -> Any:
            times = super().compile_or_warm_up_model()
            runner = self.model_runner
            if runner.intermediate_tensors is None and not get_pp_group().is_first_rank:
                make = runner.model.make_empty_intermediate_tensors
                runner.intermediate_tensors = make(batch_size=runner.max_num_tokens, dtype=runner.dtype, device=runner.device)
            return times
