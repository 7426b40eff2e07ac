"""A vLLM scheduler without a model: requests go in, steps are planned, and each step's output is made up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from vllm.config import CacheConfig, KVTransferConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheSpec, MambaSpec, SlidingWindowSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from harvester.core import PRIORITY_OFFLINE, PRIORITY_ONLINE
from harvester.engine.shared.settings import KEY

MODEL_TOKENS = 2048  # longest request
STEP_TOKENS = 2048
WORD, STOP = 7, 8  # tokens that answers are made of


class Drive:
    """``kind`` is the scheduler's class, ``sections`` what it is told under `harvester.engine.shared.settings.KEY`, in JSON values.

    ``blocks``: KV blocks of ``block_tokens``; ``transfer``: arguments of vLLM's `KVTransferConfig`, for a KV connector.
    ``windows``: further KV groups, each with a sliding window of so many tokens. ``states``: further KV groups with a recurrent state, each
    with so many blocks for drafts. ``full_last``: the group without a window comes after them. ``watermark``: share of the KV kept free at
    admission.
    After each step every request whose prompt is computed gets one more token.
    """

    def __init__(
        self,
        model: Path,
        kind: type,
        blocks: int,
        slots: int,
        block_tokens: int,
        sections: dict[str, Any],
        *,
        model_tokens: int = MODEL_TOKENS,
        step_tokens: int = STEP_TOKENS,
        transfer: dict[str, Any] | None = None,
        windows: Sequence[int] = (),
        states: Sequence[int] = (),
        full_last: bool = False,
        watermark: float = 0.0,
    ) -> None:
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(block_tokens, sha256)
        cache = CacheConfig(block_size=block_tokens, enable_prefix_caching=True)
        self.config = VllmConfig(
            model_config=ModelConfig(model=str(model), dtype="float32", max_model_len=model_tokens),
            scheduler_config=SchedulerConfig(
                max_num_seqs=slots,
                max_num_batched_tokens=step_tokens,
                max_model_len=model_tokens,
                policy="priority",
                is_encoder_decoder=False,
                async_scheduling=kind.__name__.startswith("Async"),
                watermark=watermark,
            ),
            cache_config=cache,
            kv_transfer_config=None if transfer is None else KVTransferConfig(**transfer),
            additional_config={KEY: sections},
        )
        cache.num_gpu_blocks = blocks
        if states:
            cache.mamba_cache_mode = "align"
        attention: KVCacheSpec = FullAttentionSpec(block_size=block_tokens, num_kv_heads=1, head_size=1, dtype=torch.float32)
        others: list[KVCacheSpec] = [
            SlidingWindowSpec(block_size=block_tokens, num_kv_heads=1, head_size=1, dtype=torch.float32, sliding_window=window)
            for window in windows
        ]
        others += [_state(block_tokens, drafts) for drafts in states]
        specs = [*others, attention] if full_last else [attention, *others]
        groups = [KVCacheGroupSpec(["layer" if not number else f"layer {number}"], spec) for number, spec in enumerate(specs)]
        self.kv_cache = KVCacheConfig(blocks, [], groups)
        self.scheduler = kind(
            vllm_config=self.config,
            kv_cache_config=self.kv_cache,
            structured_output_manager=StructuredOutputManager(self.config),
            block_size=block_tokens,
            log_stats=True,
        )
        self.requests: dict[str, Request] = {}
        self.finished: dict[str, int] = {}  # tokens made
        self._answers: dict[str, int] = {}  # answer tokens of requests that stop before ``max_tokens``
        self._serial = 0

    def add(self, name: str, prompt_tokens: int, max_tokens: int, *, offline: bool, arrived_s: float | None = None) -> None:
        """A prompt with no prefix in common with another. ``arrived_s``: of the wall clock; None: in the order of the calls, long ago."""
        self.enter(self.made(name, prompt_tokens, max_tokens, offline=offline, arrived_s=arrived_s))

    def made(
        self,
        name: str,
        prompt_tokens: int,
        max_tokens: int,
        *,
        offline: bool,
        arrived_s: float | None = None,
        answer_tokens: int | None = None,
    ) -> Request:
        """A request as for `add`, not yet given to the scheduler. ``answer_tokens``: where its answer stops; None: at ``max_tokens``."""
        if answer_tokens is not None:
            self._answers[name] = answer_tokens
        prompt = [1000 * (self._serial + 1) + i for i in range(prompt_tokens)]
        return self.asked(name, prompt, max_tokens, offline=offline, arrived_s=arrived_s)

    def asked(
        self, name: str, prompt: list[int], max_tokens: int, *, offline: bool, arrived_s: float | None = None, job: str | None = None
    ) -> Request:
        """As `made`, with given prompt tokens. ``job``: the job of a row."""
        self._serial += 1
        return Request(
            name,
            prompt,
            SamplingParams(max_tokens=max_tokens, ignore_eos=True, stop_token_ids=[STOP], extra_args=None if job is None else {"job": job}),
            None,
            arrival_time=float(self._serial) if arrived_s is None else arrived_s,
            priority=PRIORITY_OFFLINE if offline else PRIORITY_ONLINE,
            block_hasher=self._hasher,
        )

    def enter(self, request: Request) -> None:
        self.requests[request.request_id] = request
        self.scheduler.add_request(request)

    def schedule(self) -> Any:
        return self.scheduler.schedule()

    def sent(self, output: Any) -> None:
        """What the engine core asks of the scheduler once the workers have the step."""
        self.scheduler.get_grammar_bitmask(output)

    def update(self, output: Any) -> None:
        self.take(output, self.output(output))

    def output(self, output: Any) -> ModelRunnerOutput:
        """What a model might have answered to the step."""
        names = list(output.num_scheduled_tokens)
        tokens = [[self._next(name)] if not self.requests[name].is_prefill_chunk else [] for name in names]
        return ModelRunnerOutput(req_ids=names, req_id_to_index={name: i for i, name in enumerate(names)}, sampled_token_ids=tokens)

    def _next(self, name: str) -> int:
        return STOP if self.requests[name].num_output_tokens + 1 == self._answers.get(name) else WORD

    def take(self, output: Any, result: ModelRunnerOutput) -> None:
        self.note(self.answered(output, result))

    def answered(self, output: Any, result: ModelRunnerOutput) -> Any:
        """The scheduler's outputs for a step's result, for `note`."""
        return self.scheduler.update_from_output(output, result)

    def note(self, answers: Any) -> None:
        """Record the requests that finished."""
        for outputs in answers.values():
            for item in outputs.outputs:
                if item.finished:
                    self.finished[item.request_id] = self.requests[item.request_id].num_output_tokens

    def step(self) -> dict[str, int]:
        """Run one step; returns the tokens of each request in it."""
        output = self.schedule()
        self.sent(output)
        self.update(output)
        return dict(output.num_scheduled_tokens)

    @property
    def running(self) -> set[str]:
        return {request.request_id for request in self.scheduler.running}

    @property
    def free_blocks(self) -> int:
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def blocks(self, name: str) -> list[int]:
        return list(self.scheduler.kv_cache_manager.get_block_ids(name)[0])


def _state(block_tokens: int, drafts: int) -> MambaSpec:
    """A recurrent state, kept where a block ends, in pages as wide as those of attention."""
    return MambaSpec(
        block_size=block_tokens,
        shapes=((block_tokens * 2,),),
        dtypes=(torch.float32,),
        mamba_cache_mode="align",
        num_speculative_blocks=drafts,
    )
