"""Texts too long for the model's context, cut so that the whole prompt fits."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from jobs.engine import RowError

# A full stop ends a sentence where white space follows (not in 3.14), the full-width ones end it anywhere; closing marks belong to it.
# Each run of marks is looked at once: where it ends no sentence, none of its tails is tried.
_SENTENCE_END = re.compile(r"(?<![.!?…])[.!?…]++[\"'”’»)\]]*+(?=\s|\Z)|(?<![。！？])[。！？]++[\"'”’」』）]*+|(?=[\r\n])")
_WORD_END = re.compile(r"\S(?=\s)")
_NO_SPACE = re.compile(r"\S")
_WINDOW_CHARS = 2048  # searched from the cut backwards before the whole text is
HEAD_CHARS_PER_TOKEN = 16  # a text longer than this times the budget is measured by its head first
_REFINEMENTS = 4
_SLACK = 0.05  # of the room for the text: this much may stay free

Count = Callable[[str], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class FitResult:
    """``tokens`` is of the whole rendered prompt with ``text`` in it."""

    text: str
    truncated: bool
    tokens: int


def cut_at_sentence(text: str, max_chars: int, start: int = 0) -> str:
    """A head of ``text[start:]``, at most ``max_chars`` long.

    It ends at the last sentence end or line break that fits, else before the last white space that fits, else anywhere.
    """
    if len(text) - start <= max_chars:
        return text[start:]
    if max_chars <= 0:
        return ""
    limit = start + max_chars
    return text[start : _last_sentence_end(text, start, limit) or _last_space(text, start, limit) or limit]


def sentence_ends(text: str, start: int, end: int) -> Iterator[int]:
    """Places up to ``end`` where a sentence or line that ends at ``start`` or later ends."""
    return (match.end() for match in _SENTENCE_END.finditer(text, start, end + 1) if match.end() <= end)


def next_word(text: str, start: int, end: int) -> int:
    """Place of the first character of ``text[start:end]`` that is no white space, or ``end``."""
    found = _NO_SPACE.search(text, start, end)
    return found.start() if found else end


def _last_sentence_end(text: str, start: int, limit: int) -> int | None:
    first = next_word(text, start, limit)
    for begin in (max(start, limit - _WINDOW_CHARS), start):
        # One character past the cut is looked at, to see whether a full stop at the cut ends a sentence.
        end = max(sentence_ends(text, begin, limit), default=start)
        if end > first:
            return start + len(text[start:end].rstrip())
    return None


def _last_space(text: str, start: int, limit: int) -> int | None:
    for begin in (max(start, limit - _WINDOW_CHARS), start):
        ends = [match.end() for match in _WORD_END.finditer(text, begin, limit + 1) if match.end() <= limit]
        if ends:
            return ends[-1]
    return None


@dataclass(slots=True)
class _Bracket:
    """The longest head of ``text[start:]`` known to fit, and the shortest length known to be too long."""

    text: str
    start: int
    fits: str
    fits_tokens: int
    over_chars: int
    over_tokens: int
    budget_tokens: int
    empty_tokens: int

    def close_enough(self) -> bool:
        return self.budget_tokens - self.fits_tokens <= _SLACK * (self.budget_tokens - self.empty_tokens)

    def guess_chars(self) -> int:
        """Where the budget would end if tokens were spread evenly between the two."""
        share = (self.budget_tokens - self.fits_tokens) / max(1, self.over_tokens - self.fits_tokens)
        return len(self.fits) + int((self.over_chars - len(self.fits)) * min(share, 1.0) * 0.99)

    async def try_head(self, head: str, count: Count) -> None:
        tokens = await count(head)
        if tokens <= self.budget_tokens:
            self.fits, self.fits_tokens = head, tokens
        else:
            self.over_chars, self.over_tokens = len(head), tokens


async def measure(text: str, count: Count, budget_tokens: int, start: int = 0) -> tuple[str, int]:
    """``text[start:]`` and the tokens of its prompt. For a text that is far too long: a head of it that is too long too, and the head's.

    Nothing longer is counted than `HEAD_CHARS_PER_TOKEN` for each token of the budget, or so many times a head that fits.
    """
    max_chars = max(1, budget_tokens)
    while True:
        max_chars *= HEAD_CHARS_PER_TOKEN
        head = text[start : start + max_chars]
        tokens = await count(head)
        if tokens > budget_tokens or start + max_chars >= len(text):
            return head, tokens


async def fit(text: str, count: Count, budget_tokens: int, start: int = 0) -> FitResult:
    """``text[start:]`` where the prompt fits ``budget_tokens``, else the longest head found with few counts that does.

    ``count`` gives the tokens of the whole rendered prompt for a text. It is called about six times for a text that is too long, and
    never with more than `measure` says. A cut text ends as `cut_at_sentence` says, at a sentence end where the first sentence fits.
    Raises `RowError` (``prompt_too_long``) where even the empty text is above the budget.
    """
    head, tokens = await measure(text, count, budget_tokens, start)
    if tokens <= budget_tokens:
        return FitResult(head, False, tokens)
    empty_tokens = await count("")
    if empty_tokens > budget_tokens:
        raise RowError(
            "prompt_too_long",
            f"the prompt has {empty_tokens} tokens without its text, and there is room for {budget_tokens}; shorten it or lower max_tokens",
        )
    bracket = _Bracket(text, start, "", empty_tokens, len(head), tokens, budget_tokens, empty_tokens)
    await _narrow(bracket, count)
    return FitResult(bracket.fits, True, bracket.fits_tokens)


async def _narrow(bracket: _Bracket, count: Count) -> None:
    text, start = bracket.text, bracket.start
    for _ in range(_REFINEMENTS):
        head = cut_at_sentence(text, bracket.guess_chars(), start)
        if len(head) <= len(bracket.fits) or bracket.close_enough():
            break
        await bracket.try_head(head, count)
    # Tokens crowded at the start of a text defeat the even spread: halve until something fits.
    while not bracket.fits and bracket.over_chars > 1:
        await bracket.try_head(cut_at_sentence(text, bracket.over_chars // 2, start), count)
    if not ends_sentence(text, bracket.fits, start):
        # The guess stopped short of the first sentence's end.
        first = _first_sentence_end(text, start, start + len(bracket.fits), start + bracket.over_chars)
        if first is not None:
            await bracket.try_head(text[start:first], count)


def _first_sentence_end(text: str, start: int, fits_end: int, over_end: int) -> int | None:
    least = max(fits_end, next_word(text, start, over_end))
    return next((end for end in sentence_ends(text, fits_end, over_end) if least < end < over_end), None)


def ends_sentence(text: str, head: str, start: int = 0) -> bool:
    """Whether ``head``, which ``text[start:]`` begins with, ends at the end of a sentence or line."""
    end = start + len(head)
    return bool(head) and _last_sentence_end(text, start, end) == end
