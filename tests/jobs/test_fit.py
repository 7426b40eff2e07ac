"""Texts cut to fit a budget of tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.engine import RowError
from jobs.longtext.fit import FitResult, cut_at_sentence, ends_sentence, fit, sentence_ends

OVERHEAD_TOKENS = 10
prose = st.lists(st.sampled_from(["word", "a", "3.14", "end.", "Really?", "no!", "\n", "  ", "文。", "long" * 9]), max_size=120).map(
    " ".join
)


def fitted(text: str, tokens_of: Callable[[str], int], budget_tokens: int) -> tuple[FitResult, list[int]]:
    """The result, and the length of each text that was counted."""
    counted: list[int] = []

    async def count(candidate: str) -> int:
        counted.append(len(candidate))
        return OVERHEAD_TOKENS + tokens_of(candidate)

    return asyncio.run(fit(text, count, budget_tokens)), counted


@pytest.mark.parametrize(
    ("text", "max_chars", "head"),
    [
        pytest.param("One. Two.", 100, "One. Two.", id="fits"),
        pytest.param("One. Two. Three", 12, "One. Two.", id="last-sentence"),
        pytest.param("One. Two", 4, "One.", id="stop-at-the-cut"),
        pytest.param("Pi is 3.14 now", 8, "Pi is", id="decimal-point-at-the-cut"),
        pytest.param("Pi is 3.14 now", 9, "Pi is", id="decimal-point"),
        pytest.param('He said "Go!" And went', 16, 'He said "Go!"', id="closing-quote"),
        pytest.param("first line\nsecond line", 15, "first line", id="line-break"),
        pytest.param("first line \r\n second", 15, "first line", id="line-break-crlf"),
        pytest.param("今天很好。明天也好。后天", 11, "今天很好。明天也好。", id="full-width"),
        pytest.param("one two three", 9, "one two", id="white-space"),
        pytest.param("one two three", 7, "one two", id="white-space-at-the-cut"),
        pytest.param("onetwothree", 5, "onetw", id="hard"),
        pytest.param("\n\nonetwothree", 5, "\n\none", id="leading-line-breaks"),
        pytest.param("abc", 0, "", id="nothing"),
        pytest.param("Hi. " + "x" * 5000, 4000, "Hi.", id="sentence-far-back"),
    ],
)
def test_a_text_is_cut_at_the_best_place_that_fits(text: str, max_chars: int, head: str) -> None:
    assert cut_at_sentence(text, max_chars) == head


@pytest.mark.parametrize(
    ("text", "most", "head"),
    [
        ("One. Two.", 9, "One. Two."),
        ("One. Two.", 8, "One."),
        ("One. Two.", 4, "One."),
        ("One two three", 9, "One two"),
        ("One two three", 7, "One two"),
        ("Onetwothree", 5, "Onetw"),
        ("One. Two.", 0, ""),
        ("One. Two.", -1, ""),
        ("Version 3.14 is out", 11, "Version"),
        ('He said "no." Then', 14, 'He said "no."'),
        ("一。二。三", 4, "一。二。"),
        ("a\nb c", 4, "a"),
        (". " + "x" * 3000 + " y", 2900, "."),
        ("One two " + "x" * 3000, 2900, "One two"),
    ],
)
def test_a_head_ends_at_a_sentence_else_at_a_word(text: str, most: int, head: str) -> None:
    assert cut_at_sentence(text, most) == head


def test_a_sentence_ends_at_its_mark_and_nothing_ends_none() -> None:
    assert [ends_sentence("One. Two", head) for head in ("One.", "One", "", "One. Two")] == [True, False, False, False]
    assert list(sentence_ends("One. Two. Three", 0, 9)) == [4, 9]
    assert list(sentence_ends("One. Two. Three", 4, 8)) == []


@given(st.text(), st.integers(-1, 50))
def test_a_cut_is_a_head_no_longer_than_allowed(text: str, max_chars: int) -> None:
    head = cut_at_sentence(text, max_chars)
    assert text.startswith(head)
    assert len(head) <= max(0, max_chars) or head == text == ""
    assert head or max_chars <= 0 or not text


@given(prose, st.integers(OVERHEAD_TOKENS, 80))
def test_the_result_is_never_above_the_budget(text: str, budget_tokens: int) -> None:
    result, _ = fitted(text, lambda head: len(head.encode()) // 3, budget_tokens)
    assert result.tokens == OVERHEAD_TOKENS + len(result.text.encode()) // 3 <= budget_tokens
    assert text.startswith(result.text)
    assert result.truncated == (result.text != text)


def ends_a_sentence(text: str, head: str) -> bool:
    after = text[len(head) :]
    line_break = bool(head.strip()) and after[:1] == "\n"
    return head.endswith("。") or line_break or (head.endswith((".", "?", "!")) and (not after or after[0].isspace()))


@given(prose, st.integers(OVERHEAD_TOKENS, 80))
def test_a_cut_text_ends_at_a_sentence_where_one_fits(text: str, budget_tokens: int) -> None:
    result, _ = fitted(text, len, budget_tokens)
    fits = text[: budget_tokens - OVERHEAD_TOKENS]
    if result.truncated and any(ends_a_sentence(text, fits[:end]) for end in range(1, len(fits) + 1)):
        spaces = len(text) - len(result.text) - len(text[len(result.text) :].lstrip(" "))
        assert ends_a_sentence(text, result.text) or ends_a_sentence(text, result.text + spaces * " ")


@given(st.text(min_size=1), st.integers(0, 60), st.randoms(use_true_random=False))
def test_a_count_without_order_still_keeps_the_budget(text: str, room: int, random: object) -> None:
    jitter = {length: random.randrange(5) for length in range(len(text) + 1)}  # type: ignore[attr-defined]
    result, _ = fitted(text, lambda head: len(head) + (jitter[len(head)] if head else 0), OVERHEAD_TOKENS + room)
    assert result.tokens <= OVERHEAD_TOKENS + room


def test_a_text_that_fits_is_counted_once() -> None:
    result, counted = fitted("Short. Text", len, 100)
    assert result == FitResult("Short. Text", False, 21)
    assert len(counted) == 1


def test_a_long_text_takes_few_counts_and_fills_the_budget() -> None:
    text = "This is one sentence of the text. " * 50_000
    result, counted = fitted(text, lambda head: len(head) // 4, 4000)
    assert len(counted) <= 6
    assert max(counted) < len(text) / 10, "the whole of a text that is very much too long is never counted"
    assert 3700 < result.tokens <= 4000
    assert result.text.endswith("text.")


def test_a_text_of_few_tokens_and_many_characters_is_not_cut() -> None:
    text = " " * 10_000
    result, counted = fitted(text, lambda head: 1 if head else 0, 20)
    assert result == FitResult(text, False, 11)
    assert counted == [320, 5120, 10_000]


def test_line_breaks_at_the_start_of_a_text_are_looked_at_once() -> None:
    text = "\n" * 250_000 + "One sentence. Another one. " * 10_000
    result, _ = fitted(text, len, 240_000)
    assert result == FitResult("\n" * len(result.text), True, OVERHEAD_TOKENS + len(result.text))
    result, _ = fitted(text, len, 250_100)
    assert result.truncated
    assert result.text.endswith("One sentence.")


def test_a_prompt_that_leaves_little_room_still_takes_few_counts() -> None:
    result, counted = fitted("word " * 4000, lambda head: 3900 + len(head.split()), 4000)
    assert 80 <= len(result.text.split()) <= 90
    assert len(counted) <= 7


def test_tokens_crowded_at_the_start_leave_some_text() -> None:
    text = "x" * 1000 + " " + "y" * 20_000
    result, _ = fitted(text, lambda head: 50 * min(len(head), 1000) + len(head) // 100, 2000)
    assert len(result.text) > 0
    assert result.tokens <= 2000


def test_a_prompt_too_long_without_its_text_is_a_row_error() -> None:
    with pytest.raises(RowError, match="has 10 tokens without its text, and there is room for 9") as caught:
        fitted("Some text.", len, 9)
    assert caught.value.code == "prompt_too_long"


def test_a_budget_that_the_empty_text_just_fits_leaves_an_empty_text() -> None:
    result, _ = fitted("Some text.", len, 10)
    assert result == FitResult("", True, 10)
