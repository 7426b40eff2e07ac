"""One sample: token ids, and which of them are the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tools.embedded_model.tokenizer import ASSISTANT, START, STOP, SYSTEM, USER

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
    """``answer`` marks tokens of an assistant's turn. ``schema`` or ``labels`` is what a job would constrain the answer to."""

    ids: Ids = field(default_factory=list)
    answer: list[bool] = field(default_factory=list)
    schema: dict[str, Any] | None = None
    labels: list[str] | None = None

    def add(self, ids: Sequence[int], *, answer: bool = False) -> None:
        self.ids.extend(ids)
        self.answer.extend([answer] * len(ids))


def open_chat(encoder: Encoder, system: str | None) -> Sample:
    """The chat template's beginning, up to the first user turn."""
    sample = Sample()
    sample.add([encoder.start])
    if system is not None:
        sample.add([encoder.system, *encoder(system), encoder.stop])
    return sample


def add_turn(sample: Sample, encoder: Encoder, user: Sequence[int], answer: Sequence[int]) -> None:
    """A user's turn and the assistant's answer to it, as the chat template writes them."""
    sample.add([encoder.user, *user, encoder.stop, encoder.assistant])
    sample.add([*answer, encoder.stop], answer=True)
