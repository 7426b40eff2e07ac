"""What a job needs of an engine: count tokens, answer one request. A replica hands in vLLM, tests hand in a script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from jobs.access.marks import Marks
from jobs.hint import EVEN, SchedulingHint
from jobs.usage import NONE_USED, Usage

Message = dict[str, str]  # {"role": "system" | "user" | "assistant", "content": ...}


@dataclass(frozen=True, slots=True)
class Rendering:
    """How the model's chat template renders a conversation.

    ``thinking_tokens``: maximum tokens of thinking before the answer; 0: no thinking. ``template_kwargs``: further template arguments.
    ``is_plain``: no template, the prompt is the text of the only message; used for embedding. ``images``: data: URLs or addresses of the
    images that the first user message shows before its text.
    """

    thinking_tokens: int = 0
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    is_plain: bool = False
    images: tuple[str, ...] = ()


PLAIN = Rendering()


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation to answer, built from a task. At most one of ``choices`` and ``json_schema`` is set.

    ``max_tokens``: of answer and thinking together; 0: the prompt is to be embedded. ``adapter``: name of the LoRA adapter that answers.
    """

    messages: tuple[Message, ...]
    max_tokens: int
    temperature: float | None  # None: the model's own
    choices: tuple[str, ...] | None = None
    json_schema: dict[str, Any] | None = None
    rendering: Rendering = PLAIN
    adapter: str | None = None


@dataclass(frozen=True, slots=True)
class ApiCall:
    """A request to an OpenAI endpoint, as a client would send it."""

    endpoint: str  # "/v1/chat/completions" or "/v1/completions"
    body: dict[str, Any]
    max_tokens: int | None = None  # the answer ends there, whatever ``body`` says; None: no limit


@dataclass(frozen=True, slots=True)
class RowRequest:
    """One request of a row to the engine; a row may make several."""

    request_id: str
    content: Prompt | ApiCall
    hint: SchedulingHint = EVEN


@dataclass(frozen=True, slots=True)
class Completion:
    """The answer to a `RowRequest`.

    ``text``: the answer; for an `ApiCall` the response body as JSON text, whatever the status; for an embedding a JSON list of numbers.
    ``reasoning``: the model's thinking before it answered a `Prompt`; None where it did not think.
    """

    text: str
    finish_reason: str  # "stop" or "length"; "error" of a refused request
    usage: Usage = NONE_USED
    status_code: int = 200  # of an `ApiCall`
    reasoning: str | None = None


class RowError(Exception):
    """Permanent failure of one row, which ends with ``status`` error. Other rows go on."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class EngineGone(Exception):
    """The engine died during the request. This says nothing about the row, which is computed again elsewhere."""


class RowEngine(Protocol):
    @property
    def model(self) -> str: ...

    @property
    def context_tokens(self) -> int:
        """Most tokens of prompt and answer together."""

    @property
    def concurrency(self) -> int:
        """How many prompts to keep in the engine so that its scheduler has a wide choice."""

    @property
    def marks(self) -> Marks:
        """What its tokenizer reads as control tokens. The values of a row are given to it with these parted."""

    @property
    def harvested_s(self) -> float:
        """GPU-seconds that it spent on jobs since it was started, in steps of offline work alone. Steps that chat shared do not count.

        Of a step that flex chat or a measurement shared, it is the jobs' part by tokens.
        """

    async def count_tokens(self, messages: tuple[Message, ...], rendering: Rendering = PLAIN) -> int:
        """Tokens of the rendered chat prompt. Never blocks the event loop."""

    async def complete(self, request: RowRequest) -> Completion:
        """Answer one request as offline work. An `ApiCall` may use all that its endpoint takes: tools, response_format, logprobs, n.

        An `ApiCall` that cannot work gets a response with its HTTP error status; a `Prompt` that can never work raises `RowError`. Raises
        `EngineGone` when the engine is lost. Cancelling the awaiting task aborts the request in the engine.
        """
