"""The latency model: what it learns, how far it is off, and how soon it follows a machine that changes."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harvester.errors import ConfigError
from harvester.policy.model.latency import PLAIN_FEATURES, LatencyModel, StepLoad, features, predict_with
from tests.policy.machine import CPU, GPU, a_model, steps

MACHINES = pytest.mark.parametrize("coefficients", [CPU, GPU], ids=["cpu", "gpu"])

loads = st.builds(StepLoad, st.integers(0, 9000), st.floats(0, 1e8), st.integers(0, 600), st.integers(0, 10**6), st.integers(0, 600))
observations = st.lists(st.tuples(loads, st.floats(1e-5, 10.0)), min_size=1, max_size=80)


def unsaved(model: LatencyModel, run: list[tuple[StepLoad, float]]) -> list[int]:
    """The steps of ``run`` that took longer than the model's bound before it saw them."""
    late = []
    for i, (load, seconds) in enumerate(run):
        if seconds > model.bound(load):
            late.append(i)
        model.observe(load, seconds)
    return late


def test_loads_add_up_and_a_chunk_attends_to_what_is_before_it_and_to_half_of_itself() -> None:
    assert StepLoad.prefill(100, 50) + StepLoad.decode(7) == StepLoad(100, 100 * (50 + 50), 1, 7, 2)
    assert StepLoad.prefill(0, 50) == StepLoad()


def test_a_prediction_is_the_coefficients_times_the_features() -> None:
    load = StepLoad(300, 1e4, 10, 5000, 11)
    assert features(load) == (1.0, 310, 310 - 128, 310 - 256, 0.0, 1e4, 5000, 11)
    assert predict_with(tuple(range(1, PLAIN_FEATURES + 1)), load) == 1 + 2 * 310 + 3 * 182 + 4 * 54 + 6e4 + 7 * 5000 + 8 * 11


@MACHINES
@pytest.mark.parametrize(("noise", "max_error"), [(0.0, 0.005), (0.05, 0.02), (0.2, 0.08)], ids=["no noise", "5%", "20%"])
def test_known_coefficients_are_recovered_under_noise(coefficients: tuple[float, ...], noise: float, max_error: float) -> None:
    model = a_model(coefficients, noise, count=600)
    fresh = [load for load, _ in steps(coefficients, 200, 0.0, seed=9)]
    errors = sorted(abs(model.predict(load) / predict_with(coefficients, load) - 1) for load in fresh)
    assert errors[100] < max_error


def test_coefficients_that_differ_enough_come_out_one_by_one() -> None:
    model = a_model(CPU, noise=0.0, count=2000)
    assert model.coefficients == pytest.approx(CPU, rel=0.05, abs=1e-6)


@MACHINES
@pytest.mark.parametrize("noise", [0.0, 0.05, 0.3], ids=["no noise", "5%", "30%"])
def test_the_bound_covers_98_of_100_steps_of_a_steady_machine(coefficients: tuple[float, ...], noise: float) -> None:
    model = a_model(coefficients, noise, seed=3)
    assert len(unsaved(model, steps(coefficients, 1500, noise, seed=4))) <= 30


@MACHINES
@pytest.mark.parametrize("noise", [0.0, 0.1], ids=["no noise", "10%"])
def test_a_machine_that_becomes_twice_as_slow_is_covered_again_within_8_steps(coefficients: tuple[float, ...], noise: float) -> None:
    model = a_model(coefficients, noise, seed=5)
    late = unsaved(model, steps(coefficients, 1000, noise, seed=6, pace=lambda step: 2.0))
    assert len(late) <= 20
    assert len([i for i in late if 8 <= i < 108]) <= 2


@pytest.mark.parametrize(
    "pace",
    [lambda step: 1.0 + (step // 50) % 2, lambda step: 1.0 + (step // 400) % 2, lambda step: 0.5 if step < 300 else 10.0],
    ids=["twice as slow every other 50", "every other 400", "twenty times slower once"],
)
def test_a_machine_that_changes_its_pace_is_covered_in_98_of_100_steps(pace: Callable[[int], float]) -> None:
    model = a_model(GPU, 0.05, seed=7)
    assert len(unsaved(model, steps(GPU, 2000, 0.05, seed=8, pace=pace))) <= 40


def test_the_margin_of_a_machine_that_was_slow_for_a_while_goes_away_again() -> None:
    model = a_model(CPU, 0.02)
    unsaved(model, steps(CPU, 40, 0.02, seed=2, pace=lambda step: 2.0))
    wide = model.margin
    unsaved(model, steps(CPU, 600, 0.02, seed=3))
    assert wide > 1.9
    assert model.margin < 1.2


def test_a_pace_seen_in_decode_steps_holds_for_prompts_that_come_later() -> None:
    model = a_model(CPU)
    for load, _ in steps(CPU, 400, 0.0, seed=2):
        decodes = StepLoad(0, 0.0, load.decode_seqs, load.decode_context, load.decode_seqs)
        model.observe(decodes, 2 * predict_with(CPU, decodes))
    prompt = StepLoad.prefill(1024)
    assert model.predict(prompt) == pytest.approx(2 * predict_with(CPU, prompt), rel=0.05)


def test_a_stall_moves_neither_the_prediction_nor_the_margin() -> None:
    model, load = a_model(CPU, 0.05), StepLoad.decode(100)
    before = model.predict(load), model.margin
    model.observe(load, 1.0)
    for other, seconds in steps(CPU, 8, 0.0, seed=2):
        model.observe(other, seconds)
    assert model.predict(load) == pytest.approx(before[0], rel=0.05)
    assert model.margin == pytest.approx(before[1], rel=0.1)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan], ids=["0", "negative", "inf", "nan"])
def test_a_time_that_is_none_teaches_nothing(seconds: float) -> None:
    model = a_model()
    before = model.state()
    model.observe(StepLoad.decode(5), seconds)
    model.observe(StepLoad(), 0.01)
    assert model.state() == before


def test_a_new_model_is_not_ready_and_trusts_nothing() -> None:
    model = LatencyModel()
    assert (model.ready, model.margin, model.error(), model.reach_tokens) == (False, LatencyModel.MAX_MARGIN, (1.0, 1.0), 0)
    assert a_model(count=LatencyModel.READY_STEPS - 1).ready is False
    assert a_model(count=LatencyModel.READY_STEPS).ready is True


def test_a_prediction_reaches_twice_the_largest_step_seen() -> None:
    model = LatencyModel()
    model.observe(StepLoad.prefill(300), 0.1)
    model.observe(StepLoad.prefill(100), 0.1)
    assert model.reach_tokens == 600


def test_the_error_of_few_steps_is_their_worst() -> None:
    model = LatencyModel.from_state(a_model().state())
    load = StepLoad.decode(100)
    for factor in (1.0, 3.0, 1.1):
        model.observe(load, factor * model.predict(load))
    assert model.error() == pytest.approx((1.1, 3.0))


def test_a_profile_predicts_as_the_model_that_wrote_it_and_survives_json() -> None:
    model = a_model(GPU, 0.05)
    loaded = LatencyModel.from_state(json.loads(json.dumps(model.state())))
    assert loaded.coefficients == model.coefficients
    assert loaded.reach_tokens == model.reach_tokens


def test_a_profile_is_checked_on_this_machine_before_it_is_used() -> None:
    model = LatencyModel.from_state(a_model(CPU).state())
    run = steps(CPU, LatencyModel.CHECK_STEPS, 0.0, seed=2, pace=lambda step: 3.0)
    ready = []
    for load, seconds in run:
        ready.append(model.ready)
        model.observe(load, seconds)
    assert (any(ready), model.ready) == (False, True)
    assert model.bound(run[0][0]) >= run[0][1]


@pytest.mark.parametrize("factor", [0.2, 5.0], ids=["of a slower machine", "of a faster machine"])
def test_a_wrong_profile_is_unlearnt(factor: float) -> None:
    model = LatencyModel.from_state(a_model(CPU).state())
    for load, seconds in steps(CPU, 200, 0.02, seed=2, pace=lambda step: factor):
        model.observe(load, seconds)
    load = StepLoad.prefill(500) + StepLoad.decode(1000)
    assert model.predict(load) == pytest.approx(factor * predict_with(CPU, load), rel=0.1)


@pytest.mark.parametrize(
    "broken",
    [{}, {"version": 0}, {"coefficients": [1.0]}, {"moment": None}, {"normal": [[1.0]]}, {"steps": "many"}],
    ids=["empty", "another version", "too few", "no list", "another shape", "no number"],
)
def test_a_broken_profile_is_refused_with_what_to_do(broken: dict[str, object]) -> None:
    state = {**a_model().state(), **broken} if broken else {}
    with pytest.raises(ConfigError, match="make it again with harvester profile"):
        LatencyModel.from_state(state)


@settings(max_examples=25, deadline=None)
@given(observations, loads, loads)
def test_whatever_was_seen_no_coefficient_is_negative_and_more_work_never_takes_less(
    seen: list[tuple[StepLoad, float]], load: StepLoad, more: StepLoad
) -> None:
    model = LatencyModel()
    for step in seen:
        model.observe(*step)
    assert all(0.0 <= value < math.inf for value in model.coefficients)
    assert model.predict(load + more) >= model.predict(load)
    assert model.bound(load) >= model.predict(load)


def test_the_time_of_a_gpu_step_is_convex_in_tokens() -> None:
    model = a_model(GPU, 0.05)
    times = [model.predict(StepLoad(tokens, 0.0, 0, 0, 1)) for tokens in range(0, 2049, 64)]
    growth = [after - before for before, after in pairwise(times)]
    assert all(after >= before - 1e-12 for before, after in pairwise(growth))


def test_a_long_step_is_not_judged_by_the_stalls_of_short_ones() -> None:
    model = a_model(CPU, count=400)
    short, long = StepLoad.decode(100), StepLoad.prefill(2000)
    for step in range(120):
        model.observe(short, predict_with(CPU, short) * (3 if step % 10 == 0 else 1))
        model.observe(long, predict_with(CPU, long))
    assert model.margin_at(model.predict(StepLoad.prefill(2000))) < 1.5
    assert model.margin > 2.0


def test_where_few_steps_were_as_long_the_margin_of_all_counts() -> None:
    model = a_model(CPU, 0.1, count=400)
    assert model.margin_at(1e6) == model.margin


def decodes(count: int, context: int) -> StepLoad:
    return StepLoad(0, 0.0, count, count * context, count)


@pytest.mark.parametrize("seed", range(8))
def test_the_first_short_steps_after_long_ones_leave_no_wide_margin(seed: int) -> None:
    rng, model = random.Random(seed), LatencyModel()

    def ran(load: StepLoad) -> None:
        model.observe(load, predict_with(CPU, load) * rng.lognormvariate(0.0, 0.04))

    for _ in range(117):
        ran(StepLoad.prefill(rng.choice([1400, 1739, 2017]), rng.choice([200, 500, 900])) + decodes(rng.choice([29, 30, 31]), 1425))
    for load, times in ((decodes(31, 1440), 10), (decodes(1, 60), 17), (decodes(31, 1440), 12), (decodes(5, 200), 8)):
        for _ in range(times):
            ran(load)
    assert model.margin < 1.5
    assert model.predict(decodes(1, 60)) == pytest.approx(predict_with(CPU, decodes(1, 60)), rel=0.2)
