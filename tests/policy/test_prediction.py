"""Predicted lengths of answers, by those that ended."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harvester.policy.model.prediction import MAX_ANSWERS, MAX_KINDS, MIN_ANSWERS, LengthPredictor, Prediction


def taught(*groups: tuple[str, int, int], answers: int = MIN_ANSWERS) -> LengthPredictor:
    """``groups``: (kind, prompt tokens, tokens of each of ``answers`` answers)."""
    lengths = LengthPredictor()
    for kind, prompt_tokens, tokens in groups:
        for _ in range(answers):
            lengths.ended(kind, prompt_tokens, tokens, Prediction())
    return lengths


def test_too_few_answers_foretell_nothing() -> None:
    assert taught(("a", 9, 50), answers=MIN_ANSWERS - 1).predict("a", 9) == Prediction()


@pytest.mark.parametrize(
    ("kind", "prompt_tokens", "median"),
    [("brief", 100, 10), ("brief", 5000, 500), ("brief", 20, 10), ("wordy", 100, 900), ("new", 100, 500)],
    ids=["its band", "another band", "a band without answers: the kind", "another kind", "a new kind: all answers"],
)
def test_the_narrowest_group_that_has_answers_speaks(kind: str, prompt_tokens: int, median: int) -> None:
    lengths = taught(("brief", 100, 10), ("brief", 5000, 500), ("wordy", 100, 900))
    assert lengths.predict(kind, prompt_tokens).median == median


def test_a_median_and_what_nine_of_ten_do_not_exceed_are_told() -> None:
    lengths = LengthPredictor()
    for tokens in range(1, 101):
        lengths.ended("a", 9, tokens, Prediction())
    assert lengths.predict("a", 9) == Prediction(50, 90)


def test_a_change_is_followed_within_the_window() -> None:
    lengths = taught(("a", 9, 700), answers=MAX_ANSWERS)
    for _ in range(MAX_ANSWERS * 51 // 100 + 1):
        lengths.ended("a", 9, 30, Prediction())
    assert lengths.predict("a", 9).median == 30


def test_kinds_beyond_the_bound_are_told_what_all_answers_say() -> None:
    lengths = taught(*((f"k{number}", 9, 5) for number in range(MAX_KINDS)))
    for _ in range(MIN_ANSWERS):
        lengths.ended("one more", 9, 800, Prediction())
    assert lengths.predict("one more", 9).median == 5
    assert lengths.predict("k0", 9).median == 5


def test_what_was_told_is_judged_by_what_came() -> None:
    lengths = LengthPredictor()
    for tokens in (50, 100, 150, 400):
        lengths.ended("a", 9, tokens, Prediction(100, 200))
    lengths.ended("a", 9, 1, Prediction())  # nothing was predicted for this one
    found = lengths.accuracy()
    assert (found.judged, found.within_median, found.within_high) == (4, 2, 3)
    assert found.error == pytest.approx(1 / 3)  # 1, 0, a third and three quarters


def test_coverage_of_long_tailed_answers_is_what_the_quantiles_say() -> None:
    lengths, draw = LengthPredictor(), Random(7)
    for _ in range(3000):
        prompt_tokens = draw.randint(1, 4000)
        told = lengths.predict("a", prompt_tokens)
        lengths.ended("a", prompt_tokens, max(1, round(draw.lognormvariate(5.0, 1.0))), told)
    found = lengths.accuracy()
    assert found.within_median / found.judged == pytest.approx(0.5, abs=0.03)
    assert found.within_high / found.judged == pytest.approx(0.9, abs=0.03)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 10_000), st.integers(1, 10_000)), max_size=60))
def test_nothing_foretold_lies_outside_what_was_seen(rows: list[tuple[str, int, int]]) -> None:
    lengths, seen = LengthPredictor(), set[int]()
    for kind, prompt_tokens, tokens in rows:
        told = lengths.predict(kind, prompt_tokens)
        assert (told.median is None) == (told.high is None) == (len(seen) == 0 or told == Prediction())
        if told.median is not None and told.high is not None:
            assert min(seen) <= told.median <= told.high <= max(seen)
        lengths.ended(kind, prompt_tokens, tokens, told)
        seen.add(tokens)
