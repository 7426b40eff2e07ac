"""When a step of offline work is ended, how long it should be, and how dense its safepoints are."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harvester.policy.step.preempt import COST_SHARE, Arrival, Flight, best_step_s, first_to_end, layers_between

STEP = Flight(number=7, endable=True, began_s=10.0, estimate_s=0.4)
NEXT = Flight(number=8, endable=True, began_s=None, estimate_s=0.4)
CHAT = Flight(number=7, endable=False, began_s=10.0, estimate_s=0.4)


@pytest.mark.parametrize(
    ("now_s", "prompt_s", "waited_s", "ends"),
    [(10.0, 0.5, 0.0, False), (10.0, 0.7, 0.0, True), (10.2, 0.7, 0.0, False), (10.0, 0.5, 0.2, True), (11.0, 0.9, 0.0, False)],
    ids=["in time", "late by its prompt", "in time behind what is left", "late since it waited", "the step is over"],
)
def test_a_step_ends_where_the_first_token_would_be_late(now_s: float, prompt_s: float, waited_s: float, ends: bool) -> None:
    assert (first_to_end([STEP], now_s, Arrival(prompt_s, 1.0, waited_s)) == 7) is ends


@pytest.mark.parametrize(("now_s", "ends"), [(10.0, True), (10.29, True), (10.31, False)], ids=["all left", "too much left", "little left"])
def test_a_step_ends_where_the_arrival_would_wait_for_more_than_its_share(now_s: float, ends: bool) -> None:
    assert (first_to_end([STEP], now_s, Arrival(0.0, 1.0, max_ttft_delay_fraction=0.1)) == 7) is ends


def test_a_step_with_chat_in_it_is_never_ended() -> None:
    assert first_to_end([CHAT], 10.0, Arrival(5.0, 0.1)) is None


def test_a_step_of_unknown_length_is_ended() -> None:
    assert first_to_end([Flight(7, True, 10.0, 0.0)], 10.0, Arrival(0.0, 100.0)) == 7


def test_without_a_step_in_flight_nothing_ends() -> None:
    assert first_to_end([], 10.0, Arrival(5.0, 0.1)) is None


@pytest.mark.parametrize(
    ("now_s", "ttft_s", "ends"),
    [(10.0, 1.0, None), (10.0, 0.7, 8), (10.39, 0.3, 8), (10.0, 0.3, 7)],
    ids=["both fit", "the second one suffices", "the first one is nearly over", "both must end"],
)
def test_of_two_steps_in_flight_the_last_that_suffices_is_ended(now_s: float, ttft_s: float, ends: int | None) -> None:
    assert first_to_end([STEP, NEXT], now_s, Arrival(0.0, ttft_s)) == ends


def test_behind_a_step_with_chat_the_offline_one_is_ended_before_it_begins() -> None:
    assert first_to_end([CHAT, NEXT], 10.0, Arrival(0.0, 0.5)) == 8


def test_before_a_step_with_chat_the_offline_one_is_ended_with_it() -> None:
    behind = Flight(8, False, None, 0.1)
    assert first_to_end([STEP, behind], 10.0, Arrival(0.0, 0.3)) == 7


@given(
    st.lists(st.tuples(st.booleans(), st.floats(0.0, 1.0)), min_size=1, max_size=3),
    st.floats(0.0, 1.0),
    st.floats(0.01, 2.0),
    st.floats(0.0, 1.0),
)
def test_only_a_step_that_can_be_ended_is_and_only_where_one_would_be_late(
    given_steps: list[tuple[bool, float]], run_s: float, ttft_s: float, prompt_s: float
) -> None:
    steps = [Flight(n, endable, 10.0 if n == 0 else None, s) for n, (endable, s) in enumerate(given_steps)]
    arrival = Arrival(prompt_s, ttft_s)
    chosen = first_to_end(steps, 10.0 + run_s, arrival)
    if chosen is not None:
        assert steps[chosen].endable
        assert first_to_end(steps[:chosen], 10.0 + run_s, arrival) is None or chosen == min(n for n, s in enumerate(steps) if s.endable)
    elif any(step.endable for step in steps):
        assert all(s.estimate_s > 0.0 for s in steps if s.endable)


@given(st.floats(1e-4, 0.1), st.floats(1e-3, 100.0))
def test_no_other_length_of_a_step_loses_less_to_arrivals_and_fixed_cost(fixed_s: float, gap_s: float) -> None:
    def lost(step_s: float) -> float:
        return fixed_s / step_s + step_s / (2 * gap_s)

    best_s = best_step_s(fixed_s, gap_s)
    assert all(lost(best_s) <= lost(best_s * factor) * (1 + 1e-9) for factor in (0.5, 0.9, 1.1, 2.0))


def test_steps_have_no_bound_where_no_arrival_is_to_be_expected() -> None:
    assert best_step_s(0.01, math.inf) == math.inf


@given(st.integers(1, 128), st.floats(1e-3, 10.0), st.floats(1e-7, 1e-3), st.floats(1e-3, 1.0), st.integers(1, 4))
def test_safepoints_cost_little_and_are_no_denser_than_detection_needs(
    layers: int, step_s: float, safepoint_s: float, detect_s: float, segments: int
) -> None:
    between = layers_between(layers, step_s, safepoint_s, detect_s, segments)
    assert 1 <= between <= layers
    if between < layers:
        assert layers / between * safepoint_s <= COST_SHARE * step_s * (1 + 1e-9)
    denser = (between - 1) * segments * step_s / layers
    if between > 1 and (between - 1) * COST_SHARE * step_s >= safepoint_s * layers:
        assert denser <= detect_s  # one denser would have been affordable: it was not needed


@given(st.integers(1, 128), st.floats(1e-3, 10.0), st.floats(1e-7, 1e-3), st.floats(1e-3, 1.0))
def test_safepoints_are_as_dense_as_their_cost_lets_where_nothing_runs_ahead(
    layers: int, step_s: float, safepoint_s: float, detect_s: float
) -> None:
    between = layers_between(layers, step_s, safepoint_s, detect_s)
    assert between == 1 or layers / (between - 1) * safepoint_s > COST_SHARE * step_s * (1 - 1e-9)


def test_a_short_step_has_no_stretch_of_the_whole_time_that_detection_may_take() -> None:
    """40 ms, eight layers, 6 us a safepoint: an arrival waits for a layer of 5 ms, not for 30 ms."""
    assert layers_between(8, 0.04, 6e-6, detect_s=0.03) == 1
    assert layers_between(8, 0.04, 6e-6, detect_s=0.03, segments=2) == 3


def test_a_step_of_unknown_length_has_a_safepoint_at_every_layer() -> None:
    assert layers_between(32, 0.0, 1e-5, 0.01) == 1


def test_a_step_of_unknown_length_that_cannot_be_ended_is_not_waited_for_and_one_that_can_is_thought_endless() -> None:
    steps = [Flight(0, True, 10.0, 0.1), Flight(1, False, None, 0.0), Flight(2, True, None, 0.5)]
    assert first_to_end(steps, 10.0, Arrival(prompt_s=0.1, ttft_slo_s=0.3)) == 2
    assert first_to_end(steps, 10.0, Arrival(prompt_s=0.1, ttft_slo_s=0.9)) is None
    assert first_to_end([Flight(0, True, 10.0, 0.0)], 10.0, Arrival(0.0, 1e9)) == 0


# -- a step that chat decodes in ------------------------------------------------------------------------------------------------------

MIXED = Flight(number=7, endable=True, began_s=10.0, estimate_s=0.04, beside_chat=True, tpot_s=0.05)


@pytest.mark.parametrize(
    ("ran_s", "prompt_s", "ends"),
    [(0.005, 0.5, True), (0.015, 0.03, True), (0.015, 0.04, False), (0.03, 0.01, False)],
    ids=["early", "the TPOT holds with the prompt's step", "it would not", "little is left of it"],
)
def test_a_step_that_chat_decodes_in_ends_early_or_where_its_tpot_holds(ran_s: float, prompt_s: float, ends: bool) -> None:
    arrival = Arrival(prompt_s, 0.1, max_ttft_delay_fraction=0.05, step_s=0.006)
    assert (first_to_end([MIXED], 10.0 + ran_s, arrival) == 7) is ends


def test_a_step_that_chat_decodes_in_goes_on_where_the_arrival_can_wait() -> None:
    assert first_to_end([MIXED], 10.0, Arrival(0.01, 1.0, max_ttft_delay_fraction=0.1, step_s=0.006)) is None


# -- an arrival that is promised no number --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ran_s", "ends"), [(0.36, False), (0.34, True)], ids=["a short wait", "a long one"])
def test_an_arrival_without_an_slo_waits_for_at_most_a_share_of_its_own_step(ran_s: float, ends: bool) -> None:
    arrival = Arrival(prompt_s=9.0, ttft_slo_s=math.inf, max_slowdown=1.25, alone_s=0.2)
    assert (first_to_end([STEP], 10.0 + ran_s, arrival) == 7) is ends


def test_an_arrival_without_an_slo_ends_nothing_where_no_slowdown_is_bound() -> None:
    assert first_to_end([STEP], 10.0, Arrival(prompt_s=0.2, ttft_slo_s=math.inf)) is None
