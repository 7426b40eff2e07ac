"""The budget of a step: the largest offline work that the model's own bound allows."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harvester.policy.model.latency import LatencyModel, StepLoad
from harvester.policy.step.budget import Prompts, StepBudget, longest_decode, offline_budget
from tests.policy.machine import CPU, GPU, a_model
from tests.policy.stairs import GRAPHS, learn, truth

STAIRS = {name: learn(LatencyModel(graphs), truth(graphs), steps=400) for name, graphs in GRAPHS.items()}
MODELS = {"cpu": a_model(CPU, 0.05), "gpu": a_model(GPU, 0.05), "blank": LatencyModel(), **STAIRS}

models = st.sampled_from(sorted(MODELS)).map(MODELS.__getitem__)
online = st.builds(StepLoad, st.integers(0, 4096), st.floats(0, 1e7), st.integers(0, 128), st.integers(0, 100_000), st.integers(0, 130))
limits = st.floats(-0.1, 1.0)
contexts = st.lists(st.integers(0, 5000), max_size=40)


queues = st.lists(st.tuples(st.integers(1, 2000), st.integers(0, 5000)), max_size=16)  # (tokens left, tokens before) of each prompt


def load_of(budget: StepBudget, decodes: list[int], prompts: list[tuple[int, int]]) -> StepLoad:
    """What runs: decodes, then prompts from the first until the tokens are spent, as an engine takes them."""
    load, left = StepLoad(0, 0.0, budget.decodes, sum(decodes[: budget.decodes]), budget.decodes), budget.prefill_tokens
    for place, (tokens, context) in enumerate(prompts or [(left, 0)]):
        chunk = left if place >= len(prompts) - 1 else min(tokens, left)
        load += StepLoad.prefill(chunk, context)
        left -= chunk
    return load


@settings(max_examples=60)
@given(models, online, limits, contexts, queues, st.integers(0, 3000))
def test_a_budget_never_exceeds_the_limit_by_the_model_s_own_bound(
    model: LatencyModel, load: StepLoad, limit_s: float, decodes: list[int], prompts: list[tuple[int, int]], most: int
) -> None:
    budget = offline_budget(model, load, limit_s, decodes, Prompts(prompts), most)
    assert budget.tokens <= most
    if budget.tokens:
        assert model.bound(load + load_of(budget, decodes, prompts)) <= limit_s * (1 + 1e-9)


@settings(max_examples=60)
@given(models, online, limits, contexts, queues, st.integers(0, 3000))
def test_a_budget_is_the_largest_that_fits(
    model: LatencyModel, load: StepLoad, limit_s: float, decodes: list[int], prompts: list[tuple[int, int]], most: int
) -> None:
    budget = offline_budget(model, load, limit_s, decodes, Prompts(prompts), most)
    if budget.decodes < min(len(decodes), most):
        larger = StepBudget(budget.decodes + 1, 0)
        assert budget.prefill_tokens == 0
    elif len(decodes) <= most and budget.tokens < most:
        larger = StepBudget(budget.decodes, budget.prefill_tokens + 1)
    else:
        return
    assert model.bound(load + load_of(larger, decodes, prompts)) > limit_s * (1 - 1e-9)


@settings(max_examples=60)
@given(models, online, limits, limits, contexts, queues, st.integers(0, 3000))
def test_a_higher_limit_never_lowers_a_budget(
    model: LatencyModel, load: StepLoad, one_s: float, other_s: float, decodes: list[int], prompts: list[tuple[int, int]], most: int
) -> None:
    low, high = (offline_budget(model, load, limit_s, decodes, Prompts(prompts), most) for limit_s in sorted((one_s, other_s)))
    assert low.decodes <= high.decodes
    assert low.prefill_tokens <= high.prefill_tokens


@given(models, online, limits, st.integers(0, 5000))
def test_the_longest_decode_fits_alone_and_a_longer_one_does_not(model: LatencyModel, load: StepLoad, limit_s: float, more: int) -> None:
    longest = longest_decode(model, load, limit_s)
    if 1 <= longest < math.inf:
        assert offline_budget(model, load, limit_s, [int(longest * 0.999)], Prompts(), 1).decodes == 1
    if longest < math.inf:
        assert offline_budget(model, load, limit_s, [max(0, int(longest * 1.001) + 1) + more], Prompts(), 1).decodes == 0


@pytest.mark.parametrize("limit_s", [0.0, -1.0, 1e-6], ids=["no time", "late", "less than the online work takes"])
def test_no_time_is_no_budget(limit_s: float) -> None:
    assert offline_budget(MODELS["cpu"], StepLoad.decode(100), limit_s, [1, 1], Prompts(), 512) == StepBudget(0, 0)


def test_prompts_behind_a_long_context_get_fewer_tokens() -> None:
    queued = (Prompts([(4096, behind)]) for behind in (0, 20_000))
    near, far = (offline_budget(MODELS["cpu"], StepLoad(), 0.05, [], prompts, 4096).prefill_tokens for prompts in queued)
    assert 0 < far < near


def test_more_prompts_at_once_get_fewer_tokens() -> None:
    queued = (Prompts([(size, 0)] * 400) for size in (4096, 10))
    one, many = (offline_budget(MODELS["cpu"], StepLoad(), 0.05, [], prompts, 4096).prefill_tokens for prompts in queued)
    assert 0 < many < one


def test_prompts_that_wait_and_do_not_run_cost_nothing() -> None:
    one, many = (offline_budget(MODELS["cpu"], StepLoad(), 0.05, [], Prompts([(4096, 0)] * count), 4096) for count in (1, 16))
    assert one == many


@given(queues, st.integers(1, 40_000))
def test_the_prompts_of_a_step_are_counted_from_the_first_until_its_tokens_are_spent(prompts: list[tuple[int, int]], tokens: int) -> None:
    ends = [sum(size for size, _ in prompts[: place + 1]) for place in range(len(prompts))]
    assert Prompts(prompts).count(tokens) == next((place + 1 for place, end in enumerate(ends) if end >= tokens), len(prompts))
