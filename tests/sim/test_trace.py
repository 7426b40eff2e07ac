"""Traces, costs and figures of the simulator."""

from __future__ import annotations

import random
from itertools import pairwise
from statistics import mean, stdev

import pytest

from harvester.policy.model.latency import PLAIN_FEATURES, StepLoad
from harvester.sim.cost import GPUS, MODELS, Machine, block_copy_s, fitted, kv_blocks, roofline
from harvester.sim.measure import highest_rate, percentile
from harvester.sim.trace import SHAREGPT, Fixed, Request, gamma, offline_job, replay, stretched

ONE = Machine(GPUS["a100-40gb"])


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0], ids=["even", "poisson", "bursty"])
def test_gamma_arrivals_have_the_rate_and_the_variation_asked_for(cv: float) -> None:
    requests = gamma(5.0, cv, 4000.0, Fixed(1, 1), random.Random(1))
    gaps = [later.arrival_s - earlier.arrival_s for earlier, later in pairwise(requests)]
    assert len(requests) / 4000 == pytest.approx(5.0, rel=0.05)
    assert stdev(gaps) / mean(gaps) == pytest.approx(cv, rel=0.1)


def test_one_seed_gives_one_trace() -> None:
    assert gamma(3.0, 1.0, 50.0, SHAREGPT, random.Random(4)) == gamma(3.0, 1.0, 50.0, SHAREGPT, random.Random(4))
    assert gamma(3.0, 1.0, 50.0, SHAREGPT, random.Random(4)) != gamma(3.0, 1.0, 50.0, SHAREGPT, random.Random(5))


def test_sharegpt_like_lengths_are_near_their_published_means_and_within_bounds() -> None:
    rng = random.Random(2)
    drawn = [SHAREGPT.draw(rng) for _ in range(20_000)]
    assert mean(prompt for prompt, _ in drawn) == pytest.approx(161, rel=0.1)
    assert mean(output for _, output in drawn) == pytest.approx(338, rel=0.2)  # clipping takes some of the tail
    assert all(4 <= prompt <= 1024 and 2 <= output <= 1024 for prompt, output in drawn)


def test_a_recorded_trace_starts_at_zero_and_can_be_sped_up_and_cut() -> None:
    rows = [(100.0, 7, 3), (104.0, 8, 4), (120.0, 9, 5)]
    assert replay(rows, seconds=10.0, speed=2.0) == [Request("r0", 0.0, 7, 3), Request("r1", 2.0, 8, 4)]
    assert replay([]) == []


def test_a_trace_out_of_order_is_refused() -> None:
    with pytest.raises(ValueError, match="order of time"):
        replay([(2.0, 1, 1), (1.0, 1, 1)])


def test_longer_prompts_change_nothing_else() -> None:
    requests = offline_job("j", 2, Fixed(10, 4), random.Random(0))
    assert [(r.prompt_tokens, r.output_tokens, r.job) for r in stretched(requests, 2.5)] == [(25, 4, "j")] * 2


def test_a_decode_step_reads_the_weights_once_however_many_sequences_it_holds() -> None:
    cost = roofline(MODELS["opt-13b"], ONE)
    assert cost(StepLoad.decode(1)) == pytest.approx(26e9 / (1555e9 * 0.8) + 0.003, rel=1e-3)
    assert cost(StepLoad(0, 0.0, 30, 30, 30)) == pytest.approx(cost(StepLoad.decode(1)), rel=1e-3)


def test_a_long_prompt_is_bound_by_arithmetic() -> None:
    seconds = roofline(MODELS["opt-13b"], ONE)(StepLoad.prefill(1024))
    assert seconds == pytest.approx((2 * 13e9 * 1024 + 4 * 40 * 5120 * 1024**2 / 2) / (312e12 * 0.55) + 0.003, rel=1e-3)


def test_a_decoded_context_costs_the_reading_of_its_kv() -> None:
    model = MODELS["opt-175b"]
    cost = roofline(model, Machine(GPUS["a100-40gb"], gpus=16))
    assert model.kv_bytes_per_token * 513 == pytest.approx(2.42e9, rel=0.01)  # FastServe 4.2 gives 2.3 GiB for it
    assert cost(StepLoad.decode(1000)) - cost(StepLoad.decode(0)) == pytest.approx(1000 * 4 * 96 * 12288 / (16 * 1555e9 * 0.8))


@pytest.mark.parametrize(("name", "gpus"), [("opt-13b", 1), ("opt-66b", 4), ("opt-175b", 16)], ids=lambda value: str(value))
def test_the_models_of_the_paper_fit_the_gpus_of_the_paper_and_decode_in_tens_of_milliseconds(name: str, gpus: int) -> None:
    machine = Machine(GPUS["a100-40gb"], gpus)
    assert kv_blocks(MODELS[name], machine) * 16 > 2048
    assert 0.01 < roofline(MODELS[name], machine)(StepLoad.decode(500)) < 0.06


def test_a_model_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="opt-66b does not fit 1 x a100-40gb; take more GPUs"):
        kv_blocks(MODELS["opt-66b"], ONE)


def test_a_block_is_copied_over_the_links_of_all_gpus_at_once() -> None:
    one, four = block_copy_s(MODELS["opt-66b"], ONE), block_copy_s(MODELS["opt-66b"], Machine(GPUS["a100-40gb"], 4))
    assert one == pytest.approx(4 * four)


def test_a_measured_profile_can_take_the_place_of_the_roofline() -> None:
    assert fitted((0.01, *[0.0] * (PLAIN_FEATURES - 1)))(StepLoad.prefill(50)) == 0.01


@pytest.mark.parametrize(("share", "value"), [(0.0, 1.0), (0.5, 2.0), (0.51, 3.0), (1.0, 4.0)], ids=lambda value: str(value))
def test_a_percentile_is_the_smallest_value_that_covers_the_share(share: float, value: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], share) == value


@pytest.mark.parametrize(
    ("bound", "found"), [(0.5, None), (1.0, 1.0), (3.0, 2.5), (9.0, 4.0)], ids=["never", "at a rate", "between", "always"]
)
def test_the_highest_rate_within_a_bound_is_found_between_the_rates_tried(bound: float, found: float | None) -> None:
    values = {1.0: 1.0, 2.0: 2.0, 3.0: 4.0, 4.0: 8.0}
    assert highest_rate(values.__getitem__, bound, list(values)) == found
