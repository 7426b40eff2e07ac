"""Texts too long for the model's context, cut into parts that each fit and overlap a little."""

from __future__ import annotations

from jobs.engine import RowError
from jobs.longtext.fit import Count, cut_at_sentence, ends_sentence, fit, next_word, sentence_ends

OVERLAP_SHARE = 0.1  # of a part, told again at the start of the next: a sentence may need the one before it
_EXPECTED_SHARE = 0.97  # of the characters that should fit, judging by the part before; tried first


async def split(text: str, count: Count, budget_tokens: int) -> list[str]:
    """`spans` of ``text``, as texts."""
    return [text[start:end] for start, end in await spans(text, count, budget_tokens)]


async def spans(text: str, count: Count, budget_tokens: int) -> list[tuple[int, int]]:
    """Start and end of each part in order; one where the whole fits. Nothing but white space is in no part.

    ``count`` gives the tokens of the whole rendered prompt for a text. Parts end at the ends of sentences where `fit` finds one, and start
    at the start of a sentence, or of a word, up to `OVERLAP_SHARE` of a part before the end of the last one. One count a part is usual.
    Raises `RowError` (``prompt_too_long``) where no text fits at all.
    """
    found: list[tuple[int, int]] = []
    start, expected_chars = next_word(text, 0, len(text)), 0
    while True:
        part, tokens = await _next_part(text, start, expected_chars, count, budget_tokens)
        if not part.strip():
            raise RowError(
                "prompt_too_long", f"the prompt leaves no room for a word of the text within {budget_tokens} tokens; shorten the prompt"
            )
        end = start + len(part)
        found.append((start, end))
        if next_word(text, end, len(text)) == len(text):
            return found
        expected_chars = int(len(part) * budget_tokens / tokens * _EXPECTED_SHARE)
        start = _next_start(text, start, end)


async def _next_part(text: str, start: int, expected_chars: int, count: Count, budget_tokens: int) -> tuple[str, int]:
    """As long a head of ``text[start:]`` as fits, and the tokens of its prompt. What fitted last time is tried before a new measurement."""
    head = cut_at_sentence(text, expected_chars, start)
    is_rest = start + len(head) == len(text)
    if is_rest or (ends_sentence(text, head, start) and len(head) > expected_chars // 2):
        tokens = await count(head)
        if tokens <= budget_tokens:
            return head, tokens
    result = await fit(text, count, budget_tokens, start)
    return result.text, result.tokens


def _next_start(text: str, start: int, end: int) -> int:
    """Where the part after ``text[start:end]`` starts: a sentence before its end, or a word where it ends within a sentence."""
    earliest = max(start + 1, end - int((end - start) * OVERLAP_SHARE))
    place = next((place for place in sentence_ends(text, earliest, end) if place < end), None)
    if place is None and not ends_sentence(text, text[start:end], start):
        place = next((i for i in range(earliest, end) if text[i].isspace()), None)
    return next_word(text, end if place is None else place, len(text))
