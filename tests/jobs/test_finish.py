"""The estimate of a job's end: by the mean rate, with a range that holds it four times of five."""

from __future__ import annotations

import random

import pytest

from jobs.forecast.finish import Left, Span, finish


def test_the_time_is_what_is_left_over_the_mean_rate() -> None:
    found = finish(Left(6000), [Span(10, 500), Span(30, 1500)])
    assert found is not None
    assert found.seconds == 120.0
    assert (found.low_s, found.high_s) == (120.0, 120.0)


@pytest.mark.parametrize("spans", [[], [Span(10, 0)], [Span(0, 10)]], ids=["none", "nothing served", "no time"])
def test_nothing_is_said_where_nothing_was_served(spans: list[Span]) -> None:
    assert finish(Left(10), spans) is None


def test_one_span_says_little_and_more_that_agree_say_more() -> None:
    one, many = finish(Left(1000), [Span(10, 100)]), finish(Left(1000), [Span(10, 100 + i % 3) for i in range(30)])
    assert one is not None
    assert many is not None
    assert one.high_s - one.low_s > 5 * (many.high_s - many.low_s)


def test_the_spread_grows_with_rates_that_differ_and_with_lengths_that_differ() -> None:
    even, uneven = [Span(10, 100)] * 6, [Span(10, 20), Span(10, 180)] * 3
    spreads = [finish(Left(3000, sd), spans) for spans, sd in ((even, 0.0), (even, 300.0), (uneven, 0.0))]
    widths = [found.high_s - found.low_s for found in spreads if found is not None]
    assert widths[0] == 0.0 < widths[1]
    assert widths[2] > 0.0


@pytest.mark.parametrize("persistence", [0.0, 0.5], ids=["independent spans", "waves"])
def test_four_of_five_jobs_end_within_the_spread(persistence: float) -> None:
    inside = 0
    for seed in range(400):
        chance = random.Random(seed)
        level, rates = 0.0, []
        for _ in range(400):
            level = persistence * level + chance.gauss(0, 1)
            rates.append(max(5.0, 100 + 40 * level * (1 - persistence**2) ** 0.5))
        told = finish(Left(rates_sum := 100.0 * 10 * 60), [Span(10, 10 * rate) for rate in rates[:30]])
        assert told is not None
        seconds, done = 0.0, 0.0
        for rate in rates[30:]:
            if done + 10 * rate >= rates_sum:
                seconds += (rates_sum - done) / rate
                break
            seconds, done = seconds + 10, done + 10 * rate
        inside += told.low_s <= seconds <= told.high_s
    assert 0.75 <= inside / 400 <= 0.99
