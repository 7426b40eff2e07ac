"""The engine as its host, the profiler and the verification use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from harvester.core import PRIORITY_OFFLINE, WorkClass
from harvester.engine.shared.settings import Settings
from jobs.usage import Usage

Top = Mapping[int, float]  # token id -> log-probability, of the likeliest tokens at one position


@dataclass(frozen=True, slots=True)
class Sizes:
    """Limits of an engine. ``context_tokens``: prompt plus answer; ``step_tokens``, ``max_seqs``: one step; ``vocabulary``: token ids.

    ``kv_tokens``: of the longest requests whose KV all blocks hold, together; 0: not known. ``request_blocks``: most KV blocks that a
    request of ``context_tokens`` holds, of all groups of layers together; None: not known.
    """

    context_tokens: int
    step_tokens: int
    max_seqs: int
    block_tokens: int
    vocabulary: int
    kv_tokens: int = 0
    request_blocks: int | None = None


@dataclass(frozen=True, slots=True)
class Generated:
    """The answer to one prompt. ``tops``, ``prompt_tops``: by position, if log-probabilities were requested; None: none at a position."""

    text: str
    finish_reason: str
    token_ids: list[int]
    usage: Usage
    tops: list[Top] = field(default_factory=list)
    prompt_tops: list[Top | None] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Embedded:
    """The embedding of one prompt, with the model's own dimension."""

    vector: list[float]
    usage: Usage


class TokenEngine(Protocol):
    """An engine that answers token ids. `harvester.engine.vllm.frontend.client.HarvestLLM` is one."""

    @property
    def sizes(self) -> Sizes: ...

    @property
    def settings(self) -> Settings:
        """The settings that the engine core was started with."""

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

        ``extra``: `vllm_xargs`, such as the job. ``sampling``: further sampling parameters by vLLM's names. ``temperature`` None: taken
        from ``sampling``. ``thought``: ``engine`` of a `harvester.engine.vllm.frontend.serving.Reader`, the engine's arguments for thinking
        before the answer; the reader's ``sampling`` then holds the constraint on the answer. None: there is no thinking.

        Raises `UsageError` for a prompt that is refused, `BusyError` while the engine's queue is full, `EngineError` when it is dead.
        """

    async def on_workers(self, method: str) -> list[Any]:
        """Call ``method`` of each worker. Returns the results by rank."""

    def has_work(self) -> bool:
        """Whether any request is unfinished."""

    def in_flight(self) -> dict[WorkClass, int]:
        """Number of unanswered requests, by class of work."""

    def latencies(self, now_s: float) -> dict[str, Any]:
        """Recent ``ttft`` and ``tpot`` of online streams, and their SLOs, in seconds."""

    def stop_signals(self) -> None:
        """From now on arrivals end no steps."""
