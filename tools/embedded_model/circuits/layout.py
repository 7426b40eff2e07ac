"""What each dimension of the written network's width stands for, and how a token is known in it.

All sizes are in `STD`s, that of an embedding's dimension. A detector is a vector whose product with a state is 1 where something is so, and
about 0 elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tools.embedded_model.circuits.network import Network
from tools.embedded_model.lessons.sample import Encoder

STD = 0.05
WIDTH = 256
SHARED, SHARED_SIZE = 0, 256.0  # the dimension that all tokens share: so large that all states are of about one length
CONTENT = slice(1, 79)  # the token itself; the logits are read from these dimensions alone
MARK_PARTS = (5, 5, 6)  # first dimensions of CONTENT: a token's mark where it stands before another; each part of one length for all
MARK = sum(MARK_PARTS)
MARKS = (16, 16, 10, 5, 5, 5, 5)  # dimensions kept of the marks of the tokens one to seven back
SEED = 2  # of the tokens' directions
DRAWN = 400  # random marks of which the most distinct one is chosen
NEAR = 1  # tokens after an answer's beginning that know of it


def _consecutive(first: int, sizes: tuple[int, ...]) -> tuple[slice, ...]:
    starts = [first + sum(sizes[:place]) for place in range(len(sizes))]
    return tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))


BEFORE = _consecutive(CONTENT.stop, MARKS)
PARTED = _consecutive(BEFORE[-1].stop, (1,) * (len(MARKS) + 1))  # whether this token, and each one before it, is outside words
ASKED = slice(PARTED[-1].stop, PARTED[-1].stop + NEAR + 1)  # whether an answer begins here, and whether it did one token before
SIGNED = 18
SIGNATURE, ROW = _consecutive(ASKED.stop, (SIGNED, SIGNED))  # of the word that ends here, and of the name whose value this row is
LABEL, FOUND = _consecutive(ROW.stop, (9, 9))  # first token's mark: of the label in the list, and of the label found in the text
_FLAG_NAMES = """
    anchor listing label_begins value_asked next_asked value_begins name_begins line_began first_label listed has_list answering
    json label_ends row_length word_length matched found first nothing opens choosing closes place_1 place_2 place_3 place_4
    text_begins summary sort sort_before ends over
    turn turns schema counting repeating level begins_early early
    topic_1 topic_2 topic_3 topic_4 topic_5 topic_6
"""
FLAG_NAMES = _FLAG_NAMES.split()
FLAGS = dict(zip(FLAG_NAMES, range(FOUND.stop, WIDTH - 1), strict=False))
START, START_SIZE = WIDTH - 1, 8.0
FLAG = 4.0  # size of a flag
assert len(FLAGS) == len(FLAG_NAMES), FOUND.stop

# Rotary pairs that turn by less than half a radian in 7,000 tokens: in their dimensions tokens compare alike however far apart they stand.
FAR_PAIRS, SINK_PAIR = slice(11, 31), 31
FAR = [*range(FAR_PAIRS.start, FAR_PAIRS.stop), *range(FAR_PAIRS.start + 32, FAR_PAIRS.stop + 32)]
SAID_FOR = ((" ", "true"), (" ", "false"), ("true", "yes"), ("false", "no"))
MARKED_APART = ('"', ":", " ", ",", "\n")  # their marks are orthogonal, in every part


@dataclass(frozen=True, slots=True)
class Codes:
    """Detectors of tokens and flags, for one tokenizer."""

    tokens: Tensor  # [vocab, WIDTH], the embedding in STDs
    encoder: Encoder

    def one(self, text: str) -> int:
        """The id of a text that is one token."""
        (token,) = self.encoder(text)
        return token

    def now(self, token: int | str) -> Tensor:
        """Detector of a token itself."""
        return _detector(CONTENT, self.tokens[self._id(token), CONTENT])

    def any(self, texts: Sequence[str]) -> Tensor:
        """Detector that is 1 for any of these tokens."""
        vector = torch.zeros(WIDTH)
        vector[CONTENT] = torch.linalg.pinv(self.tokens[[self.one(text) for text in texts], CONTENT]).sum(1)
        return vector

    def before(self, back: int, token: int | str) -> Tensor:
        """Detector of a token ``back`` + 1 tokens ago."""
        return _detector(BEFORE[back], self.tokens[self._id(token), 1 : 1 + MARKS[back]])

    def run(self, tokens: list[int], first: int = 0) -> Tensor:
        """Counts how many of the last tokens are these, the last of them ``first`` + 1 ago."""
        return sum((self.before(first + back, token) for back, token in enumerate(reversed(tokens))), torch.zeros(WIDTH))

    def sum(self, *texts: str) -> Tensor:
        """What to add to a state for the logits of these tokens."""
        vector = torch.zeros(WIDTH)
        for text in texts:
            vector[CONTENT] += self.tokens[self.one(text), CONTENT]
        return vector

    def end(self) -> Tensor:
        """What to add to a state for the end token's logit."""
        vector = torch.zeros(WIDTH)
        vector[CONTENT] = self.tokens[self.encoder.stop, CONTENT]
        return vector

    def _id(self, token: int | str) -> int:
        return self.one(token) if isinstance(token, str) else token


def _detector(place: slice, values: Tensor) -> Tensor:
    vector = torch.zeros(WIDTH)
    vector[place] = values / values.square().sum()
    return vector


def flag(name: str) -> Tensor:
    """Detector of a flag."""
    vector = torch.zeros(WIDTH)
    vector[FLAGS[name]] = 1 / FLAG
    return vector


def flagged(name: str, size: float = 1.0) -> Tensor:
    """What to add to a state to set a flag."""
    vector = torch.zeros(WIDTH)
    vector[FLAGS[name]] = FLAG * size
    return vector


def parted(back: int) -> Tensor:
    """Detector of a token that is no part of a word: ``back`` tokens ago, 0 for the token itself."""
    vector = torch.zeros(WIDTH)
    vector[PARTED[back]] = 1 / FLAG
    return vector


def asked(back: int) -> Tensor:
    vector = torch.zeros(WIDTH)
    vector[ASKED.start + back] = 1 / FLAG
    return vector


def always() -> Tensor:
    """1 in every state."""
    vector = torch.zeros(WIDTH)
    vector[SHARED] = 1 / SHARED_SIZE
    return vector


def at_start() -> Tensor:
    vector = torch.zeros(WIDTH)
    vector[START] = 1 / START_SIZE
    return vector


def dims(place: slice) -> Tensor:
    """Detectors that read the dimensions as they are: ``[dimensions, WIDTH]``."""
    return torch.eye(WIDTH)[place]


@torch.no_grad()
def write_embedding(network: Network, encoder: Encoder, distinct: Iterable[str] = ()) -> Codes:
    """Write tokens as random directions, marks of one length, and the flags that a token sets by itself.

    Tokens of ``distinct`` texts get marks that are unlike all others.
    """
    embedding = network.embed_tokens.weight
    chooser = torch.Generator().manual_seed(SEED)
    embedding.normal_(generator=chooser)
    embedding[:, CONTENT.stop :] = 0.0
    first = 1
    for wide in (*MARK_PARTS, CONTENT.stop - 1 - MARK):
        part = embedding[:, first : first + wide]
        axes = torch.linalg.qr(torch.randn(wide, wide, generator=chooser)).Q
        for place, text in enumerate(MARKED_APART):
            part[encoder(text)[0]] = axes[place]
            if text == " ":  # digits are orthogonal to it: a number begins where a space may stand
                digits = encoder("0123456789")
                part[digits] -= (part[digits] @ axes[place])[:, None] * axes[place]
        for text, said in SAID_FOR:  # the token said for a word in a text must not be taken for that word
            one, other = part[encoder(said)[0]], part[encoder(text)[0]]
            one -= (one @ other) / (other @ other) * other
        part *= wide**0.5 / part.norm(dim=1, keepdim=True).clamp(min=1e-6)
        first += wide
    for token in sorted({token for text in distinct for token in encoder(text)} - {encoder(text)[0] for text in MARKED_APART}):
        _mark_apart(embedding, token, chooser)
    alike = slice(1, 1 + MARK_PARTS[0])  # an answer begins like a word in a list
    embedding[encoder.assistant, alike] = embedding[encoder.space, alike]
    embedding[:, SHARED] = SHARED_SIZE
    embedding[:, PARTED[0]] = FLAG * torch.tensor([[float(not _in_word(encoder.text([token])))] for token in range(len(embedding))])
    embedding[:, FLAGS["sort"]] = FLAG * torch.tensor([_sort(encoder.text([token])) for token in range(len(embedding))])
    embedding[encoder.user, FLAGS["turn"]] = FLAG
    embedding[encoder.start, 1:] = 0.0
    embedding[encoder.start, START] = START_SIZE
    embedding[encoder.assistant, ASKED.start] = FLAG
    codes = Codes(embedding.clone(), encoder)
    embedding.mul_(STD)
    return codes


def _mark_apart(embedding: Tensor, token: int, chooser: torch.Generator) -> None:
    """Choose a token's mark among `DRAWN` random ones: the one whose most similar other mark is least similar."""
    drawn = torch.randn(DRAWN, MARK, generator=chooser)
    for part in drawn.split(MARK_PARTS, dim=1):
        part *= part.shape[1] ** 0.5 / part.norm(dim=1, keepdim=True)
    others = embedding[torch.arange(len(embedding)) != token, 1 : 1 + MARK]
    embedding[token, 1 : 1 + MARK] = drawn[(drawn @ others.T).amax(1).argmin()]


def _in_word(text: str) -> bool:
    """Whether a token is part of a word: so is a byte of a letter, which is no text by itself, but no special token."""
    return bool(text) and not text.startswith("<|") and (text[0].isalnum() or text[0] in "_\ufffd")


def _sort(text: str) -> float:
    """1 for a capital letter, -1 for text that begins with white space, else 0."""
    return -1.0 if text[:1].isspace() else float(len(text) == 1 and "A" <= text <= "Z")
