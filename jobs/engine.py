"""What a job needs of an engine: count tokens, answer one prompt. The serve room hands in vLLM, tests hand in a script."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

Message = dict[str, str]  # {"role": "system" | "user" | "assistant", "content": ...}


@dataclass(frozen=True, slots=True)
class Claim:
    """What a job gets beside others: its weight among them, and the share of the engine that is guaranteed to it."""

    weight: float = 1.0
    share: float = 0.0
    above_slo: bool = False  # the share holds even where chat's promise then does not

    def extra_args(self) -> dict[str, float | bool]:
        """As a request tells the scheduler."""
        return {"weight": self.weight, "share": self.share, "above_slo": self.above_slo}


EVEN = Claim()


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row's request. At most one of ``choices`` and ``json_schema`` is set."""

    request_id: str
    messages: tuple[Message, ...]
    max_tokens: int
    temperature: float
    choices: tuple[str, ...] | None = None
    json_schema: dict[str, Any] | None = None
    job: str = ""
    claim: Claim = EVEN
    window: int = 0  # prompts of one window of a job may be run in any order


@dataclass(frozen=True, slots=True)
class Completion:
    text: str
    finish_reason: str  # "stop" or "length"
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One row that is a request to an OpenAI endpoint, as a client would send it."""

    request_id: str
    endpoint: str  # "/v1/chat/completions" or "/v1/completions"
    body: dict[str, Any]
    job: str = ""
    claim: Claim = EVEN
    window: int = 0  # as of a `Prompt`


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """``completion.text`` is the response's body, JSON text, whatever the status: a refused request has its reason there."""

    status_code: int
    completion: Completion


class RowError(Exception):
    """This row cannot be answered, however often it is tried: it ends with ``status`` error. Others go on."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class EngineGone(Exception):
    """The engine died under the request. Says nothing about the row: it is computed again elsewhere."""


class Engine(Protocol):
    @property
    def model(self) -> str: ...

    @property
    def context_tokens(self) -> int:
        """Most tokens of prompt and answer together."""

    @property
    def concurrency(self) -> int:
        """How many prompts to keep in the engine so that its scheduler has a wide choice."""

    async def count_tokens(self, messages: tuple[Message, ...]) -> int:
        """Tokens of the rendered chat prompt. Never blocks the event loop."""

    async def complete(self, prompt: Prompt) -> Completion:
        """Answer one prompt as offline work.

        Raises `RowError` for a prompt that can never work and `EngineGone` when the engine is lost. Cancelling the awaiting task aborts
        the request in the engine.
        """

    async def respond(self, request: ApiRequest) -> ApiAnswer:
        """Answer one OpenAI request as offline work, in full: tools, response_format, logprobs, n.

        A request that cannot work is answered with its HTTP status. Raises `EngineGone` when the engine is lost. Cancelling the awaiting
        task aborts the request in the engine.
        """
