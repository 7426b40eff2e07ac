"""What tokens cost, and what an engine can do with chat alone: found again from noisy steps of a machine whose costs are known."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from bench.harness.engine.step_record import StepRecord
from bench.harness.load.arrivals import Arrival
from bench.harness.measure.prices import PIECES, Prices, capacity_of, prices_of, stock_prices
from bench.harness.measure.steps import Ran
from harvester.errors import EngineError
from harvester.policy.model.latency import predict_with
from harvester.policy.model.load import StepLoad
from tests.policy.machine import CPU, steps

TRUE = Prices(CPU[1], CPU[5], CPU[1] + CPU[7], CPU[6])
CHAT = [Arrival(0.0, 160, 32)]


def ran(noise: float, count: int = 600, slow: range = range(0), factor: float = 1.0) -> list[Ran]:
    """Steps of a machine; ``slow``: steps that other work made ``factor`` times as long."""
    found = steps(CPU, count, noise, seed=4, pace=lambda step: factor if step in slow else 1.0)
    return [Ran(float(number), load, seconds, False) for number, (load, seconds) in enumerate(found)]


def saturated(cycles: int, seqs: int = 16, slow: range = range(0)) -> list[Ran]:
    """An engine that takes ``seqs`` chats at once: their prompts in one step, then their answers, again and again."""
    rng = random.Random(5)
    found: list[Ran] = []
    for cycle in range(cycles):
        prompts = StepLoad()
        for _ in range(seqs):
            prompts += StepLoad.prefill(160)
        decodes = [StepLoad(0, 0.0, seqs, seqs * (160 + place), seqs) for place in range(31)]
        for load in (prompts, *decodes):
            factor = (5.0 if cycle in slow else 1.0) * rng.lognormvariate(0.0, 0.1)
            found.append(Ran(float(len(found)), load, predict_with(CPU, load) * factor, False))
    return found


def test_prices_are_found_in_noisy_steps_without_what_a_step_costs_itself() -> None:
    found = prices_of(ran(0.1))
    for load in (StepLoad.prefill(400, 800), StepLoad.decode(900), StepLoad.prefill(160) + StepLoad.decode(500)):
        assert found.load_s(load) == pytest.approx(TRUE.load_s(load), rel=0.08)
    assert TRUE.load_s(StepLoad()) == 0.0


def test_a_prompt_is_the_same_work_in_any_number_of_steps() -> None:
    chunks = [StepLoad.prefill(100, behind) for behind in range(0, 800, 100)]
    assert sum(map(TRUE.load_s, chunks)) == pytest.approx(TRUE.load_s(StepLoad.prefill(800)))


def test_a_request_is_the_work_of_its_prompt_and_of_each_further_token() -> None:
    decodes = [StepLoad.decode(160 + place) for place in range(31)]
    assert TRUE.request_s(160, 32) == pytest.approx(TRUE.load_s(StepLoad.prefill(160)) + sum(map(TRUE.load_s, decodes)))
    assert TRUE.request_s(160, 1) == TRUE.load_s(StepLoad.prefill(160))


def test_tokens_that_were_computed_before_are_no_work() -> None:
    step = Ran(0.0, StepLoad.prefill(100), 1.0, False)
    assert TRUE.step_s(replace(step, again_tokens=100)) == 0.0
    assert TRUE.step_s(replace(step, again_tokens=25)) == pytest.approx(0.75 * TRUE.step_s(step))


def test_steps_that_were_ended_early_tell_no_price() -> None:
    early = [replace(step, seconds=step.seconds / 10, ended_early=True) for step in ran(0.05)]
    assert prices_of([*ran(0.05), *early]) == prices_of(ran(0.05))


def test_too_few_steps_are_an_error() -> None:
    with pytest.raises(EngineError, match=r"19 steps .* --seconds"):
        prices_of(ran(0.1, 19))


def test_the_capacity_is_the_rate_at_which_an_engine_that_is_full_answers() -> None:
    full = saturated(12)
    true = 12 * 16 / sum(step.seconds for step in full)
    assert capacity_of(full).requests_per_s(CHAT) == pytest.approx(true, rel=0.05)


@pytest.mark.parametrize("slow", [range(2), range(22, 24)], ids=["at first", "at last"])
def test_a_machine_that_is_five_times_slower_for_a_third_of_the_time_moves_the_pieces_and_not_the_median(slow: range) -> None:
    """All answers divided by all seconds would give three quarters of the true capacity."""
    full, disturbed = saturated(24), saturated(24, slow=slow)
    quiet = capacity_of(full).requests_per_s(CHAT)
    found = capacity_of(disturbed)
    assert sum(step.seconds for step in full) < 0.77 * sum(step.seconds for step in disturbed)
    assert found.requests_per_s(CHAT) == pytest.approx(quiet, rel=0.08)
    assert min(found.pieces) < 0.5 * max(found.pieces)
    assert len(found.pieces) in (PIECES - 1, PIECES)


def test_a_share_of_the_capacity_is_told_by_the_lengths_of_the_load() -> None:
    found = capacity_of(saturated(12))
    rate = 0.25 * found.requests_per_s(CHAT)
    load = CHAT * round(1000 * rate)
    assert found.share_of(load, 1000.0) == pytest.approx(0.25, rel=1e-3)
    longer = [Arrival(0.0, 320, 64)] * len(load)
    assert found.share_of(longer, 1000.0) > 0.5
    assert found.share_of([], 10.0) == 0.0


def test_a_result_can_hold_a_capacity() -> None:
    line = capacity_of(saturated(4)).line(CHAT)
    assert json.loads(json.dumps(line)) == line
    assert line["requests_per_s"] > 0


def test_one_model_is_fitted_to_the_stock_engines_of_a_run_and_to_no_other(tmp_path: Path) -> None:
    for name, factor in (("online_only", 1.0), ("vllm_priority-2048-24", 1.0), ("harvester", 9.0)):
        record, now_s = StepRecord(tmp_path / f"{name}.steps"), 10.0
        record.engine(100, 16)
        for load, seconds in [*steps(CPU, 300, 0.0, seed=len(name)), (StepLoad.decode(1), 1.0)]:
            record.planned(load, {}, now_s)
            now_s += factor * seconds
            record.answered(now_s, False)
            now_s += 1.0
    prices, line = stock_prices(tmp_path)
    assert line["fitted_to"] == ["online_only", "vllm_priority-2048-24"]
    assert line["prices"] == prices.line()
    assert prices.load_s(StepLoad.prefill(800)) == pytest.approx(TRUE.load_s(StepLoad.prefill(800)), rel=0.05)
