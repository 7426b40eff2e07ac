"""What a latency model keeps in a profile and tells of its errors, to the number."""

from __future__ import annotations

import math
from typing import Any

import pytest

from harvester.errors import ConfigError
from harvester.policy.model.graphs import DECODE, EAGER, MIXED, GraphSizes
from harvester.policy.model.latency import VERSION, LatencyModel, StepLoad
from harvester.policy.model.load import FEATURES, GRAPH_KNEES, KNEES, PLAIN_FEATURES, features
from tests.policy.machine import CPU, a_model

GRAPHS = GraphSizes((1, 8), (16, 512))
LOAD = StepLoad.decode(100)


def loaded(**state: Any) -> LatencyModel:
    return LatencyModel.from_state({**a_model(CPU).state(), **state})


def test_a_profile_holds_what_was_learnt_for_one_step_of_weight() -> None:
    model = LatencyModel()
    model.observe(StepLoad.prefill(300), 0.5)
    state = model.state()
    row = features(StepLoad.prefill(300))
    assert state.keys() == {"version", "graphs", "coefficients", "normal", "moment", "steps", "max_tokens", "error"}
    assert (state["version"], state["graphs"], state["steps"], state["max_tokens"]) == (VERSION, None, 1, 300)
    assert state["error"] == {"p50": 1.0, "p99": 1.0}
    assert state["moment"] == pytest.approx([value * 0.5 / 0.25 for value in row])
    assert state["normal"] == [pytest.approx([one * other / 0.25 for other in row]) for one in row]
    assert LatencyModel(GRAPHS).state()["graphs"] == {"decode": [1, 8], "mixed": [16, 512]}


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"version": 1}, f"profile is not a latency profile of version {VERSION} (version 1); make it again with harvester profile"),
        (
            {"graphs": {"decode": [1], "mixed": []}},
            f"profile is not a latency profile of version {VERSION} (it was learnt with CUDA graphs of other sizes); "
            "make it again with harvester profile",
        ),
        (
            {"coefficients": [1.0]},
            f"profile holds [1, {PLAIN_FEATURES}] coefficients, not {PLAIN_FEATURES}; make it again with harvester profile",
        ),
        ({"normal": [[1.0]] * PLAIN_FEATURES}, f"profile holds [1, {PLAIN_FEATURES}] coefficients, not {PLAIN_FEATURES}"),
    ],
    ids=["version", "graphs", "coefficients", "matrix"],
)
def test_a_profile_that_does_not_fit_says_why(state: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(**state)
    assert caught.value.message.startswith(says)


def test_a_profile_is_taken_with_its_weight_up_to_a_bound_and_without_negative_coefficients() -> None:
    state = a_model(CPU).state()
    for steps, share in ((100, 1.0), (256, 0.5), (10**6, 0.25)):
        assert loaded(steps=steps).state()["moment"] == pytest.approx([share * value for value in state["moment"]])
        assert loaded(steps=steps).state()["normal"][1] == pytest.approx([share * value for value in state["normal"][1]])
    assert loaded(coefficients=[-1.0] * PLAIN_FEATURES).coefficients == (0.0,) * PLAIN_FEATURES


def test_median_and_high_end_are_told_once_the_model_is_ready() -> None:
    model = loaded()
    assert (model.median_s(LOAD), model.high_s(LOAD)) == (None, None)
    for step in range(LatencyModel.CHECK_STEPS):
        model.observe(LOAD, model.predict(LOAD) * (2.0 if step == 3 else 1.0))
    predicted = model.predict(LOAD)
    p50, p99 = model.error()
    assert p50 < 1.1
    assert p99 == pytest.approx(2.0)
    assert model.median_s(LOAD) == predicted * p50
    assert model.high_s(LOAD) == predicted * model.margin == model.bound(LOAD)


def test_the_margin_is_never_below_one_nor_beyond_its_most() -> None:
    fast, slow = loaded(), loaded()
    for _ in range(4):
        fast.observe(LOAD, fast.predict(LOAD) * 0.9)
        slow.observe(LOAD, slow.predict(LOAD) * 100)
    assert (fast.margin, slow.margin) == (1.0, LatencyModel.MAX_MARGIN)
    assert (slow.margin_at(0.0), slow.margin_at(-1.0)) == (LatencyModel.MAX_MARGIN,) * 2


def test_the_high_end_of_steps_alike_is_that_of_their_own_errors() -> None:
    model = loaded()
    for step in range(LatencyModel.ALIKE_STEPS):
        model.observe(LOAD, model.predict(LOAD) * (3.0 if step == 5 else 1.0))
    assert model.margin_at(model.predict(LOAD)) == pytest.approx(3.0)
    for _ in range(170):
        model.observe(LOAD, model.predict(LOAD))
    assert model.margin_at(model.predict(LOAD)) == pytest.approx(1.0, rel=0.05), "one of more than a hundred is beyond the P99"


def test_a_model_that_has_run_for_weeks_learns_as_one_that_has_just_begun() -> None:
    weeks, twin = loaded(), loaded()
    weeks._weight = 0.999e9
    weeks._rescale(weeks._weight, weeks._weight)
    for step in range(8):
        for model in (weeks, twin):
            model.observe(StepLoad.prefill(100 + step), 0.1)
    assert weeks._weight < 2.0, "its weights were scaled back"
    assert weeks.state()["moment"] == pytest.approx(twin.state()["moment"])
    assert weeks.state()["normal"] == [pytest.approx(row) for row in twin.state()["normal"]]


def test_the_features_of_a_machine_with_graphs_count_the_tokens_of_the_graph() -> None:
    load = StepLoad(300, 5.0, 4, 40, 5)
    tokens = 512
    hinges = [max(0, tokens - knee) for knee in (*KNEES, *GRAPH_KNEES)]
    assert features(load, GRAPHS) == (1.0, tokens, *hinges[:3], 5.0, 40, 5, True, False, *hinges[3:])
    assert features(StepLoad(0, 0.0, 3, 30, 3), GRAPHS)[1:2] + features(StepLoad(0, 0.0, 3, 30, 3), GRAPHS)[8:10] == (8, False, False)
    assert features(StepLoad(600, 0.0, 0, 0, 1), GRAPHS)[8:10] == (True, True)
    assert len(features(load, GRAPHS)) == FEATURES


@pytest.mark.parametrize(
    ("prefill", "decodes", "runs"),
    [
        (0, 1, (DECODE, 1)),
        (0, 2, (DECODE, 8)),
        (0, 8, (DECODE, 8)),
        (0, 9, (MIXED, 16)),
        (1, 1, (MIXED, 16)),
        (500, 12, (MIXED, 512)),
        (501, 12, (EAGER, 513)),
    ],
)
def test_a_step_is_padded_to_the_smallest_graph_that_holds_it(prefill: int, decodes: int, runs: tuple[int, int]) -> None:
    assert GRAPHS.padded(prefill, decodes) == runs
    assert GraphSizes((), (16,)).padded(0, 3) == (MIXED, 16)
    assert GraphSizes((8,), ()).padded(1, 3) == (EAGER, 4)


@pytest.mark.parametrize(
    ("decode", "mixed", "says"),
    [
        ((), (), "a machine without CUDA graphs has no sizes of them"),
        ((8, 1), (), "sizes of CUDA graphs must be positive and ascend, and are (8, 1)"),
        ((1,), (2, 2), "sizes of CUDA graphs must be positive and ascend, and are (2, 2)"),
        ((0, 1), (), "sizes of CUDA graphs must be positive and ascend, and are (0, 1)"),
    ],
)
def test_sizes_of_graphs_ascend(decode: tuple[int, ...], mixed: tuple[int, ...], says: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - compared whole below
        GraphSizes(decode, mixed)
    assert str(caught.value) == says
    assert GraphSizes.from_state(GRAPHS.state()) == GRAPHS
    assert GraphSizes.from_state(None) is None


def test_no_time_at_all_is_no_time() -> None:
    model = LatencyModel()
    for seconds in (math.inf, 0.0, -1.0):
        model.observe(LOAD, seconds)
    assert model.reach_tokens == 0
