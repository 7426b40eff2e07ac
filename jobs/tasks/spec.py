"""What a task is: a prompt over columns and the shape of its answer."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from jobs.frozen import Frozen

REASONING = "reasoning"  # result column of what was thought before the answer


class AnswerKind(StrEnum):
    TEXT = "text"  # column ``output``: the answer as it came
    CHOICE = "choice"  # column ``output``: one of ``labels``, guided by the engine
    EMBEDDING = "embedding"  # column ``embedding``: a vector, of a model that makes such
    JSON = "json"  # one typed column for each property of ``json_schema``, guided by the engine


def _thinking(given: Any) -> Any:
    """``on`` and ``off`` as YAML reads them, and a number as a command line has it."""
    if isinstance(given, bool):
        return "on" if given else "off"
    return int(given) if isinstance(given, str) and given.isdecimal() else given


# "on": up to the tokens that `jobs.tasks.thinking` sets; a number: at most so many tokens of thinking.
Thinking = Annotated[Literal["off", "on"] | Annotated[int, Field(ge=1)], BeforeValidator(_thinking)]

# Arguments that the code which renders a prompt sets itself, and those by which a request could bring its own template.
_TEMPLATE_OWN = frozenset(
    {"chat_template", "tokenize", "add_generation_prompt", "continue_final_message", "conversation", "messages", "tools", "documents"}
    | {"return_dict", "return_tensors", "return_assistant_tokens_mask", "tokenizer_kwargs", "padding", "truncation", "max_length"}
)


def _template_kwargs(given: dict[str, Any]) -> dict[str, Any]:
    for name in given:
        if not name.isidentifier() or name in _TEMPLATE_OWN:
            raise ValueError(f"{name[:80]} is no argument that a request may give the chat template; leave it out")
    return given


TemplateKwargs = Annotated[dict[str, Any], AfterValidator(_template_kwargs)]
MAX_IMAGE_COLUMNS = 64


def _distinct(given: tuple[str, ...]) -> tuple[str, ...]:
    for name in given:
        if not name or given.count(name) > 1:
            raise ValueError(f"image column {name[:80]!r} is named twice or has no name; name each column once")
    return given


ImageColumns = Annotated[tuple[str, ...], Field(max_length=MAX_IMAGE_COLUMNS), AfterValidator(_distinct)]


Adapter = Annotated[str, Field(min_length=1, max_length=256)]


class Task(Frozen):
    """A task, resolved: every option has been filled in, only ``{column}`` places are left in the prompt.

    ``{text}`` stands for the job's text column; any other ``{name}`` for the column of that name; ``{{`` and ``}}`` for braces.
    """

    name: str = Field(min_length=1, max_length=64)
    description: str = ""
    system: str | None = Field(default=None, description="System message, may hold places too.")
    prompt: str = Field(min_length=1, description="User message with {column} places.")
    combine: str | None = Field(default=None, description="User message that combines the answers for the parts of a long text.")
    answer: AnswerKind = AnswerKind.TEXT
    labels: tuple[str, ...] | None = Field(default=None, description="The answers allowed, with `answer: choice`.")
    json_schema: dict[str, Any] | None = Field(default=None, description="JSON schema of an object, with `answer: json`.")
    max_tokens: int = Field(default=128, ge=1, description="Maximum output tokens of one answer.")
    temperature: float | None = Field(
        default=None, ge=0.0, le=2.0, description="None: 0, and the model's own where it thinks: greedy thinking repeats itself."
    )
    thinking: Thinking | None = Field(
        default=None,
        description="What was asked; of a job the most tokens of thinking (`jobs.tasks.thinking.settled`), or none: off, None.",
    )
    chat_template_kwargs: TemplateKwargs = Field(default_factory=dict, description="More arguments of the model's chat template.")
    images: ImageColumns = Field(default=(), description="Columns whose images the user message shows, in this order.")
    adapter: Adapter | None = Field(default=None, description="LoRA adapter of the server that answers. None: the model itself.")

    @property
    def thinking_tokens(self) -> int:
        """Maximum tokens of thinking before an answer, once `jobs.tasks.thinking.settled` has set it; 0: none."""
        return self.thinking if isinstance(self.thinking, int) else 0

    @property
    def sampling_temperature(self) -> float | None:
        """Temperature that the engine gets. None: the model's own."""
        return 0.0 if self.temperature is None and not self.thinking_tokens else self.temperature

    @property
    def most_tokens(self) -> int:
        """Most output tokens of one request: thinking and answer. An embedding has none."""
        return 0 if self.answer is AnswerKind.EMBEDDING else self.thinking_tokens + self.max_tokens

    def key_fields(self) -> dict[str, Any]:
        """The task as JSON, for keys that tell tasks apart. Fields added later are left out where unset, so older keys stay valid."""
        left_out = {"thinking"} if not self.thinking_tokens else set()
        left_out |= {name for name in ("chat_template_kwargs", "images", "adapter") if not getattr(self, name)}
        return self.model_dump(mode="json", exclude=left_out) | {"temperature": self.sampling_temperature}
