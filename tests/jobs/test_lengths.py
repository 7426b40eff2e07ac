"""Response lengths: quantiles right within a bucket, coverage counted before a row is learnt, counts that add up and fade."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.forecast.lengths import (
    FADE_ROWS,
    GROWTH,
    MIN_ROWS,
    QUANTILES,
    Lengths,
    band_of,
    band_tokens,
    bucket_of,
    bucket_tokens,
    counted,
)


@given(st.integers(0, 200_000))
def test_a_length_lies_in_its_bucket_and_in_no_smaller_one(tokens: int) -> None:
    bucket = bucket_of(tokens)
    assert tokens <= bucket_tokens(bucket) <= max(tokens, tokens * GROWTH)
    assert bucket == 0 or bucket_tokens(bucket - 1) < tokens or bucket_of(bucket_tokens(bucket - 1)) < bucket


@given(st.integers(0, 10**6))
def test_a_prompt_lies_in_its_band(tokens: int) -> None:
    least, most = band_tokens(band_of(tokens))
    assert least <= tokens <= most


@given(st.lists(st.integers(1, 4000), min_size=MIN_ROWS, max_size=300), st.sampled_from([0.5, 0.9, 0.99]))
def test_a_quantile_is_right_within_a_tenth(outputs: list[int], share: float) -> None:
    lengths = Lengths()
    lengths.learn(counted((100, tokens) for tokens in outputs))
    exact = sorted(outputs)[math.ceil(share * len(outputs)) - 1]
    found = lengths.quantile(100, share)
    assert found is not None
    assert exact <= found <= exact * GROWTH


@pytest.mark.parametrize("most", [12, 100, 3000])
def test_the_mean_is_right_within_a_few_hundredths(most: int) -> None:
    chance = random.Random(most)
    outputs = [chance.randint(1, most) for _ in range(2000)]
    lengths = Lengths()
    lengths.learn(counted((100, tokens) for tokens in outputs))
    found = lengths.spread()
    assert found is not None
    assert found[0] == pytest.approx(sum(outputs) / 2000, rel=0.03)
    assert found[1] == pytest.approx(most / math.sqrt(12), rel=0.06)


def test_nothing_is_said_of_few_rows_and_the_nearest_band_speaks_for_one_that_knows_nothing() -> None:
    lengths = Lengths()
    lengths.learn(counted([(100, 50)] * (MIN_ROWS - 1)))
    assert lengths.quantile(100, 0.9) is None
    assert lengths.spread() is None
    assert lengths.median() is None
    lengths.learn(counted([(100, 50)] + [(5000, 400)] * MIN_ROWS))
    assert lengths.median() == bucket_tokens(bucket_of(50))  # of all bands together
    assert lengths.quantile(100, 0.5) == bucket_tokens(bucket_of(50))
    assert lengths.quantile(9, 0.5) == lengths.quantile(100, 0.5)
    assert lengths.quantile(100_000, 0.5) == lengths.quantile(5000, 0.5) == bucket_tokens(bucket_of(400))


@pytest.mark.parametrize("seed", range(5))
def test_coverage_of_rows_like_those_before_is_the_quantile_told(seed: int) -> None:
    chance = random.Random(seed)
    lengths = Lengths()
    for _ in range(60):
        slice_rows = [(prompt, 1 + int(chance.lognormvariate(math.log(prompt / 8), 0.6))) for prompt in chance.choices([100, 3000], k=64)]
        lengths.learn(counted(slice_rows))
    assert min(band.judged for band in lengths.bands.values()) > 1000
    for band in lengths.report():
        assert band.coverage is not None
        for told, share in zip(QUANTILES, band.coverage, strict=True):
            assert told - 0.03 <= share <= told + 0.09, "a bucket is a tenth wide, and its upper end is told"


def test_a_row_is_judged_by_what_was_told_before_it() -> None:
    lengths = Lengths()
    lengths.learn(counted([(100, 10)] * MIN_ROWS))
    assert lengths.report()[0].coverage is None
    lengths.learn(counted([(100, 10)] * 3 + [(100, 500)]))
    assert lengths.report()[0].coverage == (0.75, 0.75)


def test_old_rows_fade_so_that_a_change_is_followed() -> None:
    lengths = Lengths()
    for _ in range(FADE_ROWS // 1000 + 1):
        lengths.learn(counted([(100, 10)] * 1000))
    for _ in range(FADE_ROWS // 1000 + 1):
        lengths.learn(counted([(100, 300)] * 1000))
    assert lengths.quantile(100, 0.5) == bucket_tokens(bucket_of(300))
    assert lengths.report()[0].rows <= FADE_ROWS


@given(st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 900)), max_size=80))
def test_counts_survive_their_json_exactly(rows: list[tuple[int, int]]) -> None:
    lengths = Lengths()
    lengths.learn(counted(rows[:40]))
    lengths.learn(counted(rows[40:]))
    again = Lengths.from_json(json.loads(json.dumps(lengths.to_json())))
    assert again.bands == lengths.bands
    assert again.report() == lengths.report()


def test_many_rows_become_few_counts() -> None:
    chance = random.Random(1)
    counts = counted((chance.randint(50, 2000), chance.randint(1, 512)) for _ in range(20_000))
    assert len(counts) < 400
    assert sum(rows for _, _, rows in counts) == 20_000


def test_a_bucket_holds_a_tenth_more_than_the_one_before() -> None:
    assert [bucket_tokens(bucket) for bucket in (0, 1, 10, 11, 12, 13, 20)] == [0, 1, 10, 11, 12, 13, 25]
    assert [bucket_of(tokens) for tokens in (0, 1, 10, 11, 12, 13, 25, 26)] == [0, 1, 10, 11, 12, 13, 20, 21]
