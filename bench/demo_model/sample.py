"""One training sequence: token ids, and which of them the loss is on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.demo_model.tokenizer import ASSISTANT, START, STOP, SYSTEM, USER

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Ids = list[int]


class Encoder:
    """Text to token ids, with no start token in front."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        vocab = tokenizer.get_vocab()
        self.start, self.stop, self.system, self.user, self.assistant = (vocab[token] for token in (START, STOP, SYSTEM, USER, ASSISTANT))
        self.space, self.line = self(" ")[0], self("\n")[0]
        self.vocab_tokens = int(tokenizer.get_vocab_size())

    def __call__(self, text: str) -> Ids:
        ids: Ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def text(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def all(self, texts: Sequence[str]) -> list[Ids]:
        return [encoding.ids for encoding in self._tokenizer.encode_batch(texts, add_special_tokens=False)]


@dataclass(slots=True)
class Sample:
    """``answer`` marks tokens of an assistant's turn, ``choice`` those of them at which something is decided: all others follow from what
    stands before them. ``repeat`` marks tokens that were to be foreseen because they repeat earlier ones. ``schema`` or ``labels``
    is what a job would hold the answer to."""

    ids: Ids = field(default_factory=list)
    answer: list[bool] = field(default_factory=list)
    choice: list[bool] = field(default_factory=list)
    repeat: list[bool] = field(default_factory=list)
    schema: dict[str, Any] | None = None
    labels: list[str] | None = None

    def add(self, ids: Sequence[int], *, choice: Sequence[bool] | None = None, repeat: Sequence[bool] | None = None) -> None:
        """``choice`` is given of an answer."""
        self.ids.extend(ids)
        self.answer.extend([choice is not None] * len(ids))
        self.choice.extend([False] * len(ids) if choice is None else choice)
        self.repeat.extend([False] * len(ids) if repeat is None else repeat)


def open_chat(encoder: Encoder, system: str | None) -> Sample:
    """The chat template's beginning, up to the first user turn."""
    sample = Sample()
    sample.add([encoder.start])
    if system is not None:
        sample.add([encoder.system, *encoder(system), encoder.stop])
    return sample


def add_turn(
    sample: Sample,
    encoder: Encoder,
    user: Sequence[int],
    answer: Sequence[int],
    repeat: Sequence[bool] | None = None,
    choice: Sequence[bool] | None = None,
) -> None:
    """A user's turn and the assistant's answer to it, as the chat template writes them. ``choice``: its first token, where not given; the
    answer's end always is one."""
    sample.add([encoder.user])
    sample.add(user, repeat=repeat)
    sample.add([encoder.stop, encoder.assistant])
    decided = [number == 0 for number in range(len(answer))] if choice is None else choice
    sample.add([*answer, encoder.stop], choice=[*decided, True])
