"""vLLM's workers, imported by name in the worker process (``worker_cls``).

A step of offline work may end at a safepoint, and then answers that nothing was computed. On a CPU, an adapter answers only the requests
that asked for it.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from vllm.config import get_layers_from_vllm_config
from vllm.distributed import get_pp_group
from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.outputs import AsyncModelRunnerOutput, KVConnectorOutput, ModelRunnerOutput

from harvester.engine.shared.state import Field, SharedState
from harvester.engine.shared.steporder import ENDED_EARLY, ORDER, SAFEPOINTS_KEY, STEP_SECONDS, Order
from harvester.engine.vllm import surface
from harvester.engine.vllm.connector import CheckpointConnector
from harvester.engine.vllm.platform import additional, on_cpu, sleep_between_looks
from harvester.engine.worker.clock import StepClock
from harvester.engine.worker.device import Device, Span, device_of
from harvester.engine.worker.kvcopy import kv_comes_back, measure_kv_copy
from harvester.engine.worker.places import find
from harvester.engine.worker.safepoint import Safepoints, StepAborted

if TYPE_CHECKING or on_cpu():  # replaces parts of `torch.cuda`, before vLLM's GPU worker looks at them
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.worker.cpu_worker import CPUWorker

from vllm.v1.worker.gpu_worker import Worker

log = logging.getLogger(__name__)

SPIN_S = 0.005  # the CPU worker has its core to itself, and the next step mostly comes within this time

if TYPE_CHECKING:
    Stock = Worker
else:
    Stock = object  # vLLM's worker for CPUs or for GPUs is the next base class


class PreemptibleWorker(Stock):
    """Mixed into a vLLM worker, which owns every attribute used here."""

    model_runner: Any  # one of vLLM's two model runners, which share no base class

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        surface.require()
        super().__init__(*args, **kwargs)
        self._safepoints: Safepoints | None = None
        self._shared: SharedState | None = None
        self._device: Device | None = None
        self._clock: StepClock | None = None
        self._ended: ModelRunnerOutput | None = None
        self._void_epoch: int | None = None

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)
        settings = additional(self.vllm_config).get(SAFEPOINTS_KEY)
        device = device_of(self.vllm_config.device_config.device_type)
        parallel = self.vllm_config.parallel_config
        if device.lags and parallel.pipeline_parallel_size == 1 and self.vllm_config.speculative_config is None:
            self._clock = StepClock(device)
        if settings is None:
            return
        places, without = find(get_layers_from_vllm_config(self.vllm_config, AttentionLayerBase))
        if without and self.rank == 0:
            log.warning("safepoints %s: %s", "in other layers only" if places else "off", "; ".join(without))
        if not places:
            return
        shared = SharedState(Path(settings["shared_state"]))
        safepoints = Safepoints(
            shared,
            leader=self.rank == 0,
            ranks=parallel.tensor_parallel_size,
            device=device,
            chaos=settings.get("chaos", 0.0),
            seed=settings.get("seed", 0),
        )
        safepoints.install(places)
        self._end_steps(safepoints, device, shared)

    def _end_steps(self, safepoints: Safepoints, device: Device, shared: SharedState) -> None:
        """From now on steps may end early."""
        self._safepoints, self._device, self._shared = safepoints, device, shared

    def execute_model(self, scheduler_output: SchedulerOutput) -> Any:
        """vLLM's; where the step ends early, `sample_tokens` answers for it."""
        order: Order | None = getattr(scheduler_output, ORDER, None)
        if order is None:
            return super().execute_model(scheduler_output)
        if order.epoch == self._void_epoch:
            return self._skip(scheduler_output)
        self._begin(order)
        try:
            return super().execute_model(scheduler_output)
        except StepAborted:
            self._void_epoch = order.epoch
            return self._end(scheduler_output, order.number)
        finally:
            if self._safepoints is not None:
                self._safepoints.disarm()

    def _begin(self, order: Order) -> None:
        if self._clock is not None:
            self._clock.begin()
        if self._safepoints is None or self._shared is None or self._device is None:
            return
        if self.rank == 0:
            self._shared.began(order.number, time.monotonic(), on_device=not self._device.lags)
        if order.every:
            self._safepoints.arm(order.number, order.every)

    def _skip(self, scheduler_output: SchedulerOutput) -> None:
        """Take in a void step, and do not compute it.

        The model must not run: with two steps in flight its input holds tokens that the ended step was to sample. The step's changes to
        requests and blocks still count, and so do its KV transfers.
        """
        empty = dataclasses.replace(scheduler_output, total_num_scheduled_tokens=0)
        output = super().execute_model(empty)
        self._ended = _nothing(scheduler_output, output.kv_connector_output)

    def _end(self, scheduler_output: SchedulerOutput, number: int) -> None:
        """End the step, whose results do not count. It has ended when the device has none of its work left."""
        assert self._device is not None
        assert self._shared is not None
        self._device.drain()
        now_s = time.monotonic()
        computed_s = None if self._clock is None else self._clock.ended_early()
        if self.rank == 0:
            if computed_s is not None:
                self._shared.began(number, now_s - computed_s, on_device=True)
            self._shared[Field.ENDED_AT_S] = now_s
            self._shared[Field.ENDED_STEP] = number
        self.model_runner.execute_model_state = None
        self._ended = _nothing(scheduler_output, self._transfers(scheduler_output))

    def _transfers(self, scheduler_output: SchedulerOutput) -> KVConnectorOutput | None:
        """What the step reports of KV transfers, which go on although it ended early. Begins those that it asked for."""
        if not has_kv_transfer_group():
            return None
        runner = self.model_runner
        if hasattr(runner, "kv_connector"):  # Model Runner V2, whose `sample_tokens` would do it
            runner.kv_connector.finish_forward()
            told: KVConnectorOutput = runner.kv_connector.post_forward(scheduler_output.finished_req_ids)
            return told
        runner.kv_connector_output = None
        connector = get_kv_transfer_group()
        return connector.take_report() if isinstance(connector, CheckpointConnector) else None

    def kv_copy(self) -> dict[str, float]:
        """How long a KV block takes to host memory and back; called between two steps."""
        return measure_kv_copy(self.model_runner.kv_caches, self._kv_blocks())

    def kv_comes_back(self) -> bool:
        """Whether KV blocks are unchanged after a copy to host memory and back; called while nothing runs."""
        return kv_comes_back(self.model_runner.kv_caches, self._kv_blocks())

    def _kv_blocks(self) -> int:
        blocks = self.vllm_config.cache_config.num_gpu_blocks
        assert blocks is not None, "asked before the KV cache is there"
        return blocks

    def sample_tokens(self, grammar_output: GrammarOutput | None) -> Any:
        """vLLM's; the answer of a step that ended early has no tokens."""
        ended, self._ended = self._ended, None
        if ended is not None:
            return ended
        output = super().sample_tokens(grammar_output)
        span = None if self._clock is None else self._clock.end()
        if span is None or not isinstance(output, ModelRunnerOutput | AsyncModelRunnerOutput):
            return output
        return TimedOutput(output, span)


class TimedOutput(AsyncModelRunnerOutput):
    """An output that carries its step's seconds as `STEP_SECONDS` once the device is done."""

    def __init__(self, inner: ModelRunnerOutput | AsyncModelRunnerOutput, span: Span) -> None:
        self._inner, self._span = inner, span

    def get_output(self) -> ModelRunnerOutput:
        """vLLM's; waits for the device."""
        output = self._inner.get_output() if isinstance(self._inner, AsyncModelRunnerOutput) else self._inner
        self._span.ended.synchronize()
        setattr(output, STEP_SECONDS, self._span.seconds())
        return output


def _nothing(scheduler_output: SchedulerOutput, transfers: KVConnectorOutput | None) -> ModelRunnerOutput:
    """The answer of a step that ended early, or is void."""
    ids = list(scheduler_output.num_scheduled_tokens)
    ended = ModelRunnerOutput(req_ids=ids, req_id_to_index={name: i for i, name in enumerate(ids)})
    ended.kv_connector_output = transfers
    setattr(ended, ENDED_EARLY, True)
    return ended


class CpuAdapters(PunicaWrapperCPU):
    """LoRA on a CPU, where a token without an adapter gets none.

    vLLM 0.32 gives such a token index -1. PyTorch takes that for the last place: in a step with an adapter, every request without one
    was answered by the adapter that lay there. Tensors are of shape (tokens, width), or (requests, width) for logits.
    """

    def add_lora_linear(self, y: torch.Tensor, x: torch.Tensor, *given: Any, **named: Any) -> None:
        super().add_lora_linear(y, _without(x, self.token_lora_indices), *given, **named)

    def add_lora_embedding(self, y: torch.Tensor, x: torch.Tensor, *given: Any, **named: Any) -> None:
        super().add_lora_embedding(y, _without(x, self.token_lora_indices), *given, **named)

    def add_lora_logits(self, y: torch.Tensor, x: torch.Tensor, *given: Any, **named: Any) -> None:
        super().add_lora_logits(y, _without(x, self.sampler_indices), *given, **named)


def _without(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """``x`` with zeros in the lines whose adapter's place is -1, so that adapters add nothing to them."""
    lines = x.view(-1, x.shape[-1])
    return torch.where(places[: lines.shape[0], None] >= 0, lines, 0).view_as(x)


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
        """For CPUs, with seeded sampling that survives a chunked prefill, and adapters only for requests that asked for them.

        Without a compiler, vLLM's worker does not warm up. That is where a later pipeline stage makes room for what the stage before it
        sends: its first step would fail.
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
