"""Step times that are stairs: CUDA graphs pad a step, and each kind of step costs a jump. What is learnt of it, and what that is worth."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harvester.errors import ConfigError
from harvester.policy.model.graphs import DECODE, EAGER, MIXED, GraphSizes
from harvester.policy.model.latency import FEATURES, PLAIN_FEATURES, LatencyModel, StepLoad, features, predict_with
from harvester.policy.step.budget import Prompts, StepBudget, offline_budget
from harvester.sim.cost import GPUS, Cost, Gpu
from tests.policy.stairs import DEFAULT, GRAPHS, H200, NOISE, Knower, a_load, decodes, learn, truth

EVERY_KIND = pytest.mark.parametrize("name", GRAPHS)
MONOTONE = {name: graphs for name, graphs in GRAPHS.items() if graphs.mixed}  # else a prompt token ends the decodes' padding
H100 = Gpu("h100", 989e12, 3350e9, 80e9, 64e9)

loads = st.builds(StepLoad, st.integers(0, 9000), st.floats(0, 1e8), st.integers(0, 600), st.integers(0, 10**6), st.integers(0, 600))
observations = st.lists(st.tuples(loads, st.floats(1e-5, 10.0)), min_size=1, max_size=80)


@cache
def learnt(name: str, seed: int = 1, steps: int = 2000) -> LatencyModel:
    return learn(LatencyModel(GRAPHS[name]), truth(GRAPHS[name]), steps, seed)


def worst_of_100(model: LatencyModel, cost: Cost, loads: int = 2000) -> float:
    """P99 of the relative error against the true time."""
    random = Random(9)
    fresh = [a_load(random) for _ in range(loads)]
    return sorted(abs(model.predict(load) / cost(load) - 1) for load in fresh)[math.ceil(0.99 * loads) - 1]


# -- graphs -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "decoding", "runs_as"),
    [
        (0, 3, (DECODE, 4)), (0, 8, (DECODE, 8)), (1, 3, (MIXED, 4)), (1, 8, (MIXED, 16)), (0, 9, (MIXED, 16)),
        (12, 0, (MIXED, 16)), (17, 0, (EAGER, 17)), (0, 17, (EAGER, 17)), (0, 0, (DECODE, 1)),
    ],
)  # fmt: skip
def test_a_step_runs_as_the_smallest_graph_of_its_kind_that_holds_it(prompt: int, decoding: int, runs_as: tuple[int, int]) -> None:
    assert GraphSizes((1, 2, 4, 8), (1, 2, 4, 8, 16)).padded(prompt, decoding) == runs_as


@pytest.mark.parametrize(
    ("decode", "mixed"), [((), ()), ((4, 2), ()), ((), (2, 2)), ((0, 1), ())], ids=["none", "falling", "twice", "a graph of nothing"]
)
def test_sizes_that_are_none_are_refused(decode: tuple[int, ...], mixed: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="CUDA graphs"):
        GraphSizes(decode, mixed)


# -- features -----------------------------------------------------------------------------------------------------------------------


def test_with_graphs_the_tokens_are_the_padded_ones_and_each_jump_has_a_feature() -> None:
    load = StepLoad(300, 1e4, 10, 5000, 11)  # runs as 320 tokens
    plain = (1.0, 320, 320 - 128, 320 - 256, 0.0, 1e4, 5000, 11)
    assert features(load, DEFAULT) == (*plain, 1, 0, 320 - 96, 320 - 160, 320 - 192, 320 - 224, 0.0)
    assert features(StepLoad(500, 1e4, 13, 5000, 14), DEFAULT)[8:10] == (1, 1)
    assert features(StepLoad(0, 0.0, 13, 5000, 13), DEFAULT)[8:10] == (0, 0)


def test_coefficients_of_a_machine_without_graphs_mean_the_same_for_who_takes_it_to_have_some() -> None:
    coefficients = [*range(1, PLAIN_FEATURES + 1), *[0.0] * (FEATURES - PLAIN_FEATURES)]
    at_an_edge = StepLoad(248, 1e4, 8, 5000, 9)
    assert predict_with(coefficients, at_an_edge, DEFAULT) == predict_with(coefficients, at_an_edge)


# -- what is learnt -----------------------------------------------------------------------------------------------------------------


@EVERY_KIND
@pytest.mark.parametrize("seed", [1, 2])
def test_one_prediction_of_100_is_off_by_a_tenth_at_most(name: str, seed: int) -> None:
    assert worst_of_100(learnt(name, seed), truth(GRAPHS[name])) < 0.04


@EVERY_KIND
def test_so_it_is_after_the_first_400_steps(name: str) -> None:
    assert worst_of_100(learnt(name, steps=400), truth(GRAPHS[name])) < 0.1


@pytest.mark.parametrize("gpu", [GPUS["a100-80gb"], H100], ids=["a100", "h100"])
def test_it_holds_on_gpus_whose_weights_hide_other_numbers_of_tokens(gpu: Gpu) -> None:
    cost = truth(DEFAULT, replace(H200, gpu=gpu))
    assert worst_of_100(learn(LatencyModel(DEFAULT), cost), cost) < 0.04


def test_the_jumps_come_out_as_they_are() -> None:
    cost, model = truth(), learnt("full and piecewise")
    alone, prompt = StepLoad(0, 0.0, 63, 30_000, 63), StepLoad.prefill(1)
    jump_s = cost(alone + prompt) - cost(alone)
    assert model.predict(alone + prompt) - model.predict(alone) == pytest.approx(jump_s, rel=0.1)
    assert jump_s > 0.15 * cost(alone)


@settings(max_examples=25, deadline=None)
@given(observations, loads, loads, st.sampled_from(sorted(MONOTONE)))
def test_whatever_was_seen_more_work_never_takes_less(
    seen: list[tuple[StepLoad, float]], load: StepLoad, more: StepLoad, name: str
) -> None:
    model = LatencyModel(MONOTONE[name])
    for step in seen:
        model.observe(*step)
    assert all(0.0 <= value < math.inf for value in model.coefficients)
    assert model.predict(load + more) >= model.predict(load)


# -- budgets ------------------------------------------------------------------------------------------------------------------------


class Case:
    """A step to plan: chat that decodes, in one of five steps with a prompt, and offline work that would take all it gets."""

    def __init__(self, random: Random) -> None:
        self.online = decodes(random, random.randint(1, 64))
        if random.random() < 0.2:
            self.online += StepLoad.prefill(random.randint(1, 512))
        self.limit_s = random.uniform(0.008, 0.06)
        self.contexts = sorted(random.randint(20, 3000) for _ in range(random.choice((0, 0, random.randint(1, 100)))))
        self.behind = random.choice((0, random.randint(0, 3000)))

    def budget(self, model: LatencyModel) -> StepBudget:
        """The budget as a plan computes it, with the margin for steps of this length."""
        limit_s = self.limit_s * model.margin / model.margin_at(self.limit_s)
        return offline_budget(model, self.online, limit_s, self.contexts, Prompts([(2048, self.behind)]), 2048 - self.online.tokens)

    def load(self, budget: StepBudget) -> StepLoad:
        load = self.online + StepLoad(0, 0.0, budget.decodes, sum(self.contexts[: budget.decodes]), budget.decodes)
        if not budget.prefill_tokens:
            return load
        return load + StepLoad.prefill(budget.prefill_tokens, self.behind)


def a_thousand() -> list[Case]:
    random = Random(5)
    return [Case(random) for _ in range(1000)]


@EVERY_KIND
def test_no_budget_makes_a_step_that_truly_takes_longer_than_its_limit(name: str) -> None:
    """The true time is that without noise; the margin is there for the noise, which lets through one step of 100 at most."""
    cost, model, random = truth(GRAPHS[name]), learnt(name), Random(3)
    times = []
    for case in a_thousand():
        budget = case.budget(model)
        if budget.tokens:
            times.append((cost(case.load(budget)), case.limit_s))
    assert len(times) > 700
    assert all(seconds <= limit_s for seconds, limit_s in times)
    assert sum(seconds * random.lognormvariate(0.0, NOISE) > limit_s for seconds, limit_s in times) <= len(times) / 100


@EVERY_KIND
def test_offline_work_loses_3_tokens_of_100_at_most_to_a_plan_that_knows_the_stairs(name: str) -> None:
    oracle, model, cases = Knower(truth(GRAPHS[name])), learnt(name), a_thousand()
    tokens, best = (sum(case.budget(planner).tokens for case in cases) for planner in (model, oracle))
    assert tokens >= 0.97 * best


def test_a_model_that_is_not_told_of_the_graphs_is_off_by_more_and_loses_a_tenth() -> None:
    cost, blind, cases = truth(), learn(LatencyModel(), truth()), a_thousand()
    tokens, best = (sum(case.budget(planner).tokens for case in cases) for planner in (blind, Knower(cost)))
    assert worst_of_100(blind, cost) > 0.1
    assert tokens < 0.9 * best


def test_a_budget_fills_a_stair_to_its_edge() -> None:
    model = Knower(lambda load: 1e-3 * DEFAULT.padded(load.prefill_tokens, load.decode_seqs)[1], margin=1.0)
    online = StepLoad(0, 0.0, 30, 0, 30)
    edges = {offline_budget(model, online, limit_ms * 1e-3, (), Prompts(), 2048).tokens + online.tokens for limit_ms in range(32, 513)}
    assert edges == {size for size in DEFAULT.mixed if size >= 32}


def test_a_prompt_that_would_cost_a_jump_too_much_waits_while_the_decodes_run() -> None:
    cost = truth()
    online, contexts = StepLoad(0, 0.0, 30, 30_000, 30), [1000] * 2
    beside = online + StepLoad(0, 0.0, 2, 2000, 2)
    between_s = (cost(beside) + cost(beside + StepLoad.prefill(1))) / 2
    assert offline_budget(Knower(cost, margin=1.0), online, between_s, contexts, Prompts(), 2048) == StepBudget(2, 0)


# -- profiles -----------------------------------------------------------------------------------------------------------------------


def test_a_profile_keeps_its_stairs() -> None:
    model = learnt("full and piecewise")
    loaded = LatencyModel.from_state(json.loads(json.dumps(model.state())), DEFAULT)
    assert (loaded.coefficients, loaded.graphs) == (model.coefficients, DEFAULT)


@pytest.mark.parametrize("other", [None, GRAPHS["few sizes"], GRAPHS["piecewise"]], ids=["none", "other sizes", "another kind"])
def test_a_profile_learnt_with_other_graphs_is_refused(other: GraphSizes | None) -> None:
    with pytest.raises(ConfigError, match="CUDA graphs"):
        LatencyModel.from_state(learnt("full and piecewise").state(), other)
    with pytest.raises(ConfigError, match="CUDA graphs"):
        LatencyModel.from_state(LatencyModel(other).state(), DEFAULT)


@pytest.mark.parametrize("broken", [7, {"decode": [1]}, {"decode": [2, 1], "mixed": []}, {"decode": ["a"], "mixed": []}])
def test_a_profile_with_graphs_that_are_none_is_refused(broken: object) -> None:
    with pytest.raises(ConfigError, match="make it again with harvester profile"):
        LatencyModel.from_state({**LatencyModel(DEFAULT).state(), "graphs": broken}, DEFAULT)
