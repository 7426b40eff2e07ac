"""What a row of a dry run asks of the engine: the number of its requests and the tokens of their prompts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from jobs.engine import Message
from jobs.longtext.split import OVERLAP_SHARE
from jobs.spec import OnLong


@dataclass(frozen=True, slots=True)
class SampledRow:
    """``messages``: its prompt, with a head of the text where that is far too long. ``chars``: of the prompt with the whole text.

    ``bare_chars``: of the prompt without its text; None without a text column, which is all that may be cut. ``combine_chars``: of the
    prompt that combines answers, without them.
    """

    messages: tuple[Message, ...]
    chars: int
    bare_chars: int | None
    combine_chars: int = 0


@dataclass(frozen=True, slots=True)
class Asked:
    """``requests``: 0 for a row that is refused, because its prompt does not fit. ``prompt_tokens``: of all its requests."""

    requests: int
    prompt_tokens: float
    is_long: bool = False


@dataclass(frozen=True, slots=True)
class Bounds:
    """``budget_tokens``: of a prompt; None where nobody asked the model. ``answer_tokens``: of the answer for a part of a text."""

    budget_tokens: int | None
    on_long: OnLong
    answer_tokens: float


def asked(row: SampledRow, tokens_per_char: float, bounds: Bounds) -> Asked:
    """What `jobs.run.row` asks for the row, with each prompt as long as its characters say."""
    whole, budget = row.chars * tokens_per_char, bounds.budget_tokens
    if budget is None or whole <= budget:
        return Asked(1, whole)
    bare = None if row.bare_chars is None else row.bare_chars * tokens_per_char
    if bare is None or bare >= budget or bounds.on_long is OnLong.ERROR:
        return Asked(0, 0.0, is_long=True)
    if bounds.on_long is OnLong.TRUNCATE:
        return Asked(1, budget, is_long=True)
    return _in_parts(whole, bare, row.combine_chars * tokens_per_char, budget, bounds.answer_tokens)


def _in_parts(whole: float, bare: float, combine: float, budget: int, answer_tokens: float) -> Asked:
    """Tokens of the prompt with the whole text, without it, and of the prompt that combines; see `jobs.run.document.read_in_parts`."""
    room = budget - bare
    overlap = room * OVERLAP_SHARE
    parts = 1 + math.ceil((whole - budget) / (room - overlap))
    requests, tokens = parts, whole + (parts - 1) * (bare + overlap)
    of_a_group = max(2, int((budget - combine) / max(1.0, answer_tokens)))
    answers = parts
    while answers > 1:
        alone = answers % of_a_group == 1  # it waits for the next level
        groups = answers // of_a_group if alone else math.ceil(answers / of_a_group)
        requests += groups
        tokens += min(groups * combine + (answers - alone) * answer_tokens, groups * budget)
        answers = groups + alone
    return Asked(requests, tokens, is_long=True)
