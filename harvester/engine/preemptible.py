"""What harvester adds to vLLM's worker: a step of offline work may end at a safepoint, and then answers that nothing was computed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from vllm.config import VllmConfig, get_layers_from_vllm_config
from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput

from harvester.engine.board import Board, Field
from harvester.engine.checkpoints.connector import CheckpointConnector
from harvester.engine.kvcopy import kv_comes_back, measure_kv_copy
from harvester.engine.safepoint import Safepoints, StepAborted

SAFEPOINTS_KEY = "harvester_safepoints"  # in vLLM's `additional_config`
ENDED_EARLY = "ended_early"  # attribute of the `ModelRunnerOutput` of a step that counts for nothing
VOID_STEP = -1


class PreemptibleWorker:
    """Mixed into a vLLM worker, which owns every attribute used here."""

    vllm_config: VllmConfig
    model_runner: Any
    rank: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._safepoints: Safepoints | None = None
        self._board: Board | None = None
        self._ended: ModelRunnerOutput | None = None
        self._void_epoch = -1

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)  # type: ignore[misc]
        settings = self.vllm_config.additional_config.get(SAFEPOINTS_KEY)
        if settings is None:
            return
        parallel = self.vllm_config.parallel_config
        self._board = Board(Path(settings["board"]))
        self._safepoints = Safepoints(
            self._board,
            leader=self.rank == 0,
            ranks=parallel.tensor_parallel_size,
            device=self.vllm_config.device_config.device_type,
            chaos=settings.get("chaos", 0.0),
            seed=settings.get("seed", 0),
        )
        layers = get_layers_from_vllm_config(self.vllm_config, AttentionLayerBase)
        self._safepoints.install([layer.impl for layer in layers.values()])

    def execute_model(self, scheduler_output: SchedulerOutput) -> Any:
        """vLLM's; where the step ends early, `sample_tokens` answers for it."""
        step, every = getattr(scheduler_output, "preemptible", (0, 1))
        epoch = getattr(scheduler_output, "epoch", 0)
        void = epoch == self._void_epoch  # planned before the scheduler knew that the step before had ended
        if self._safepoints is None or not (step or void):
            return super().execute_model(scheduler_output)  # type: ignore[misc]
        self._safepoints.arm(step or VOID_STEP, every, at_once=void)
        try:
            output = super().execute_model(scheduler_output)  # type: ignore[misc]
            if void and scheduler_output.total_num_scheduled_tokens:  # a step without safepoints, such as one CUDA graph
                self._end(scheduler_output, 0)
                return None
            return output
        except StepAborted:
            self._void_epoch = epoch
            self._end(scheduler_output, 0 if void else step)
            return None
        finally:
            self._safepoints.disarm()

    def _end(self, scheduler_output: SchedulerOutput, step: int) -> None:
        self.model_runner.execute_model_state = self.model_runner.kv_connector_output = None
        ids = list(scheduler_output.num_scheduled_tokens)
        self._ended = ModelRunnerOutput(req_ids=ids, req_id_to_index={name: i for i, name in enumerate(ids)})
        setattr(self._ended, ENDED_EARLY, True)
        if has_kv_transfer_group() and isinstance(connector := get_kv_transfer_group(), CheckpointConnector):
            self._ended.kv_connector_output = connector.told()  # copies go on, whatever becomes of the step
        if step and self._board is not None and self.rank == 0:
            self._board[Field.ENDED_AT_S] = time.monotonic()
            self._board[Field.ENDED_STEP] = step

    def kv_copy(self) -> dict[str, float]:
        """How long a KV block takes to host memory and back; called between two steps."""
        return measure_kv_copy(self.model_runner.kv_caches, self.vllm_config.cache_config.num_gpu_blocks)

    def kv_comes_back(self) -> bool:
        """Whether KV blocks are the same after a way to host memory and back; called while nothing runs."""
        return kv_comes_back(self.model_runner.kv_caches, self.vllm_config.cache_config.num_gpu_blocks)

    def sample_tokens(self, grammar_output: Any) -> Any:
        ended, self._ended = self._ended, None
        return super().sample_tokens(grammar_output) if ended is None else ended  # type: ignore[misc]
