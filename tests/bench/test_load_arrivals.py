"""The load generator: the statistics it promises, decided by the seed."""

from __future__ import annotations

import statistics
from itertools import pairwise

import numpy as np
import pytest

from bench.harness.load.arrivals import Trace, drawn, gamma_times, phased, read_lengths, read_trace, replay, synthetic


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("rate", [0.5, 2.0])
def test_gamma_arrivals_have_the_rate_and_the_burstiness_asked_for(rate: float, cv: float) -> None:
    times = gamma_times(rate, cv, 40_000 / rate, np.random.default_rng(1))
    gaps = [after - before for before, after in pairwise(times)]
    assert statistics.mean(gaps) == pytest.approx(1 / rate, rel=0.1)
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(cv, rel=0.1)


def test_arrivals_are_in_order_and_within_the_time() -> None:
    found = synthetic(3.0, 2.0, 50.0, (512, 64), np.random.default_rng(0))
    times = [arrival.at_s for arrival in found]
    assert times == sorted(times)
    assert 0.0 <= times[0] <= times[-1] < 50.0
    assert {(arrival.prompt_tokens, arrival.output_tokens) for arrival in found} == {(512, 64)}


def test_the_seed_decides_the_load() -> None:
    loads = [synthetic(2.0, 1.0, 30.0, (8, 8), np.random.default_rng(seed)) for seed in (7, 7, 8)]
    assert loads[0] == loads[1]
    assert loads[0] != loads[2]


def test_no_request_comes_in_an_off_phase() -> None:
    found = phased([(10.0, 5.0), (10.0, 0.0), (10.0, 5.0)], 1.0, (8, 8), np.random.default_rng(3))
    parts = [sum(start <= arrival.at_s < start + 10.0 for arrival in found) for start in (0.0, 10.0, 20.0)]
    assert parts[1] == 0
    assert parts[0] > 25
    assert parts[2] > 25


def test_a_replay_takes_rate_times_duration_requests_and_rescales_the_whole_trace() -> None:
    trace = Trace([float(second) for second in range(1001)], [100] * 1001, [50] * 1001)
    found = replay(trace, 2.0, 100.0, 1.0, (4096, 512), np.random.default_rng(0))
    assert len(found) == 200
    assert found == sorted(found, key=lambda arrival: arrival.at_s)
    assert found[0].at_s < 5.0
    assert 95.0 < found[-1].at_s < 100.0


def test_a_replay_of_every_request_keeps_the_shape_of_the_trace() -> None:
    trace = Trace([10.0, 10.5, 18.0, 20.0], [40, 4000, 1, 80], [10, 20, 1, 900])
    found = replay(trace, 4.0, 1.0, 0.5, (1000, 100), np.random.default_rng(0))
    assert [arrival.at_s for arrival in found] == pytest.approx([0.0, 0.05, 0.8, 1.0])
    assert found[-1].at_s < 1.0
    assert [(arrival.prompt_tokens, arrival.output_tokens) for arrival in found] == [(20, 5), (1000, 10), (4, 2), (40, 100)]


def test_lengths_are_drawn_in_pairs_and_bounded() -> None:
    found = drawn(5.0, 1.0, 200.0, [(10, 20), (9000, 3000)], 0.5, (2048, 256), np.random.default_rng(0))
    assert {(arrival.prompt_tokens, arrival.output_tokens) for arrival in found} == {(5, 10), (2048, 256)}
    assert len(found) == pytest.approx(1000, rel=0.15)
    assert len(read_lengths()) == 30_731


def test_the_shipped_trace_is_the_one_described() -> None:
    trace = read_trace()
    assert len(trace.times_s) == 19_366
    assert list(trace.times_s) == sorted(trace.times_s)
    assert statistics.median(trace.prompt_tokens) == pytest.approx(1020, abs=5)
    found = replay(trace, 1.0, 500.0, 0.5, (4096, 512), np.random.default_rng(0))
    assert len(found) == 500
    assert statistics.median(arrival.prompt_tokens for arrival in found) == pytest.approx(510, rel=0.2)
