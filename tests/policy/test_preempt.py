"""When a step of offline work is ended, how long it should be, and how dense its safepoints are."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harvester.policy.preempt import COST_SHARE, RunningStep, best_step_s, layers_between, must_end

STEP = RunningStep(offline_only=True, began_s=10.0, estimate_s=0.4)


@pytest.mark.parametrize(
    ("now_s", "prompt_s", "waited_s", "ends"),
    [(10.0, 0.5, 0.0, False), (10.0, 0.7, 0.0, True), (10.2, 0.7, 0.0, False), (10.0, 0.5, 0.2, True), (11.0, 0.9, 0.0, False)],
    ids=["in time", "late by its prompt", "in time behind what is left", "late since it waited", "the step is over"],
)
def test_a_step_ends_where_the_first_token_would_be_late(now_s: float, prompt_s: float, waited_s: float, ends: bool) -> None:
    assert must_end(STEP, now_s, prompt_s, ttft_slo_s=1.0, waited_s=waited_s) is ends


@pytest.mark.parametrize(("now_s", "ends"), [(10.0, True), (10.29, True), (10.31, False)], ids=["all left", "too much left", "little left"])
def test_a_step_ends_where_the_arrival_would_wait_for_more_than_its_share(now_s: float, ends: bool) -> None:
    assert must_end(STEP, now_s, prompt_s=0.0, ttft_slo_s=1.0, intrusion=0.1) is ends


def test_a_step_with_chat_in_it_is_never_ended() -> None:
    assert not must_end(RunningStep(False, 10.0, 0.4), 10.0, 5.0, 0.1)


def test_a_step_of_unknown_length_is_ended() -> None:
    assert must_end(RunningStep(True, 10.0, 0.0), 10.0, 0.0, 100.0)


@given(st.floats(1e-4, 0.1), st.floats(1e-3, 100.0))
def test_no_other_length_of_a_step_loses_less_to_arrivals_and_fixed_cost(fixed_s: float, gap_s: float) -> None:
    def lost(step_s: float) -> float:
        return fixed_s / step_s + step_s / (2 * gap_s)

    best_s = best_step_s(fixed_s, gap_s)
    assert all(lost(best_s) <= lost(best_s * factor) * (1 + 1e-9) for factor in (0.5, 0.9, 1.1, 2.0))


def test_steps_have_no_bound_where_no_arrival_is_to_be_expected() -> None:
    assert best_step_s(0.01, math.inf) == math.inf


@given(st.integers(1, 128), st.floats(1e-3, 10.0), st.floats(1e-7, 1e-3), st.floats(1e-3, 1.0), st.integers(0, 2))
def test_safepoints_cost_little_and_are_no_denser_than_detection_needs(
    layers: int, step_s: float, safepoint_s: float, detect_s: float, ahead: int
) -> None:
    between = layers_between(layers, step_s, safepoint_s, detect_s, ahead)
    assert 1 <= between <= layers
    if between < layers:
        assert layers / between * safepoint_s <= COST_SHARE * step_s * (1 + 1e-9)
    denser = (between - 1) * (1 + ahead) * step_s / layers
    if between > 1 and (between - 1) * COST_SHARE * step_s >= safepoint_s * layers:
        assert denser <= detect_s  # one denser would have been affordable: it was not needed


def test_a_step_of_unknown_length_has_a_safepoint_at_every_layer() -> None:
    assert layers_between(32, 0.0, 1e-5, 0.01, 0) == 1
