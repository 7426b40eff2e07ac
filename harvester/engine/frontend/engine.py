"""The engine as its host, the profiler and the verification use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from harvester.core import PRIORITY_OFFLINE, WorkClass
from harvester.engine.shared.settings import Settings
from jobs.usage import Usage

Top = Mapping[int, float]  # log-probability of the likeliest tokens at one place


@dataclass(frozen=True, slots=True)
class Sizes:
    """``context_tokens``: of a prompt with its answer; ``step_tokens``, ``max_seqs``: of one step; ``vocabulary``: token ids.

    ``kv_tokens``: that the KV blocks hold together; 0 where nobody has counted them.
    """

    context_tokens: int
    step_tokens: int
    max_seqs: int
    block_tokens: int
    vocabulary: int
    kv_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Generated:
    """The answer to one prompt. ``tops``, ``prompt_tops``: place by place, where log-probabilities were asked for; None: there are none."""

    text: str
    finish_reason: str
    token_ids: list[int]
    usage: Usage
    tops: list[Top] = field(default_factory=list)
    prompt_tops: list[Top | None] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Embedded:
    """The vector of one prompt, as long as the model makes them."""

    vector: list[float]
    usage: Usage


class TokenEngine(Protocol):
    """`harvester.engine.vllm.frontend.client.HarvestLLM` is one."""

    @property
    def sizes(self) -> Sizes: ...

    @property
    def settings(self) -> Settings:
        """What the engine core was told."""

    async def complete(
        self,
        request_id: str,
        token_ids: Sequence[int],
        *,
        max_tokens: int,
        temperature: float | None = 0.0,
        priority: int = PRIORITY_OFFLINE,
        choices: Sequence[str] | None = None,
        json_schema: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
        sampling: Mapping[str, Any] | None = None,
        thought: Mapping[str, Any] | None = None,
    ) -> Generated:
        """Answer one prompt; cancelling the task aborts it in the engine.

        ``extra``: `vllm_xargs`, such as the job. ``sampling``: further sampling parameters by vLLM's names. ``temperature`` None: as
        ``sampling`` says. ``thought``: what the engine is to know of the thinking before the answer, see
        `harvester.engine.vllm.frontend.serving.Reader`; its ``sampling`` then has what the answer is held to. None: there is no thinking.

        Raises `UsageError` for a prompt that is refused, `BusyError` while the engine's queue is full, `EngineError` when it is dead.
        """

    async def on_workers(self, method: str) -> list[Any]:
        """What the worker's ``method`` returns, by rank."""

    def has_work(self) -> bool:
        """Whether a request is not answered yet."""

    def in_flight(self) -> dict[WorkClass, int]:
        """Requests that have come and are not answered, by class of work."""

    def latencies(self, now_s: float) -> dict[str, Any]:
        """``ttft`` and ``tpot`` of online streams of late, and what they are promised, in seconds."""

    def stop_signals(self) -> None:
        """From now on arrivals end no steps."""
