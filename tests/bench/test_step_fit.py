"""Steps as an engine core writes them down, the cost that is fitted to them, and predictions beside what was measured."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.harness.engine.step_record import StepRecord
from bench.harness.measure.steps import Ran, fit, read_record
from bench.scenarios.coserving.simulate import Figures, compared
from harvester.policy.model.load import StepLoad
from tests.policy.machine import CPU, steps


def recorded(noise: float, seed: int) -> list[Ran]:
    return [Ran(float(number), load, seconds, False) for number, (load, seconds) in enumerate(steps(CPU, 800, noise, seed))]


def test_steps_and_requests_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    record = StepRecord(tmp_path / "one.steps")
    record.engine(100, 16)
    record.planned(StepLoad.prefill(30), {"chat": 8}, 1.0)
    record.answered(1.5, False)
    record.planned(StepLoad.decode(30), {}, 1.501, again_tokens=1)  # in a row: what lies between is a part of it
    record.ended(SimpleNamespace(request_id="chat", num_prompt_tokens=30, num_output_tokens=2), False, 1.55)
    record.answered(1.6, True)
    record.planned(StepLoad.decode(30), {}, 9.0)
    record.answered(9.5, False)
    with (tmp_path / "one.steps").open("a") as file:
        file.write('["step", 9.7, 1')  # of an engine that is writing
    found = read_record(tmp_path / "one.steps")
    assert (found.blocks, found.block_tokens) == (100, 16)
    assert [(step.load, step.ended_early) for step in found.steps] == [
        (StepLoad.prefill(30), False),
        (StepLoad.decode(30), True),
        (StepLoad.decode(30), False),
    ]
    assert [step.again_tokens for step in found.steps] == [0, 1, 0]
    assert [step.seconds for step in found.steps] == pytest.approx([0.5, 0.1, 0.5])
    assert [(row.offline, row.prompt_tokens, row.output_tokens, row.cached_tokens) for row in found.rows] == [(False, 30, 2, 8)]


def test_the_cost_of_a_step_is_found_from_noisy_steps_and_deviates_as_they_did() -> None:
    noisy = fit(recorded(0.2, seed=1))
    others = recorded(0.2, seed=2)
    assert noisy.bias(others) == pytest.approx(1.0, abs=0.04)
    load = StepLoad.prefill(64)
    assert replace(noisy, slower=1.5).cost(3)(load) == pytest.approx(1.5 * noisy.cost(3)(load))
    cost, draw = noisy.cost(0), random.Random(3)
    load = draw.choice(others).load
    ratios = sorted(cost(load) / noisy.model.predict(load) for _ in range(400))
    assert ratios[200] == pytest.approx(1.0, abs=0.05)
    assert ratios[20] == pytest.approx(0.72, abs=0.08)  # exp(-1.645 x 0.2)


def test_a_prediction_is_within_ten_percent_or_it_is_not() -> None:
    predicted, measured = Figures(50.0, 10.0, 21.0, 5.0, 9.0, 0.0), Figures(54.0, 10.0, 30.0, 5.4, 10.0, 0.0)
    found = compared(predicted, measured)
    assert "offline_tokens_per_s" not in found
    assert {name: line["within_10_percent"] for name, line in found.items()} == {
        "steps_per_s": True,
        "ttft_p50_ms": True,
        "ttft_p99_ms": False,
        "tpot_p50_ms": True,
        "tpot_p99_ms": True,
    }
