"""The papers' systems by themselves: lengths, costs, and what must hold of every run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench.harness.options import Options
from bench.papers.engine.run import played
from bench.papers.loads import DATASETS, Load, drawn, mean_lengths
from bench.papers.machines import PAPER, TODAY, Setting, rules_of
from bench.papers.measure import sustained
from bench.papers.scenario import run
from bench.papers.systems import SYSTEMS
from bench.papers.systems.system import System
from harvester.policy.model.load import StepLoad

OPT = PAPER["opt-13b"]
SHORT = Load(DATASETS["sharegpt"].for_seconds(120.0), 4.0)  # above what any system sustains
TABLE_2 = {"alpaca": (19.31, 58.41), "sharegpt": (161.31, 337.99), "bookcorpus": (1952.11, 681.2)}


@pytest.mark.parametrize("name", DATASETS)
def test_lengths_have_the_means_of_the_papers_table(name: str) -> None:
    assert mean_lengths(DATASETS[name]) == pytest.approx(TABLE_2[name], rel=0.04)


@pytest.mark.parametrize("setting", [*PAPER.values(), *TODAY.values()], ids=lambda setting: setting.name)
@pytest.mark.parametrize(
    "load", [StepLoad(1, 0.5), StepLoad(700, 90_000.0), StepLoad(0, 0.0, 30, 12_000, 30), StepLoad(300, 5e4, 200, 40_000, 202)]
)
def test_the_compiled_costs_are_those_of_the_roofline(setting: Setting, load: StepLoad) -> None:
    costs = setting.costs()
    linear_s = max(costs["token_s"] * load.tokens, costs["weights_s"])
    step_s = costs["fixed_s"] + linear_s + costs["pair_s"] * load.prefill_attention + costs["context_s"] * load.decode_context
    assert step_s == pytest.approx(setting.cost(load), rel=1e-6)


@pytest.mark.parametrize("name", [name for name, system in SYSTEMS.items() if isinstance(system, System)])
def test_all_requests_end_in_their_order_of_time_and_all_kv_comes_back(name: str) -> None:
    system = SYSTEMS[name]
    assert isinstance(system, System)
    requests, _ = drawn(system.told(SHORT), OPT)
    rules = rules_of(OPT, **system.rules(OPT, SHORT.dataset))
    engine = played(requests, rules, system.decoupled)
    found = np.asarray(requests).view(np.recarray)
    assert engine.free_blocks == rules["total_blocks"]
    assert engine.reserve_blocks == engine.queued_blocks == 0
    assert (found.arrival_s < found.first_s).all()
    assert (found.first_s <= found.end_s).all()
    assert (found.emitted == found.output).all()
    assert engine.kv_s <= engine.busy_s


def test_no_request_is_answered_faster_than_its_steps_take() -> None:
    figures = SYSTEMS["distserve"].simulate(SHORT, OPT)
    assert figures.tbt_s > OPT.cost(StepLoad.decode(1))
    assert figures.ttft_s > OPT.cost(StepLoad.prefill(16))


def test_predictions_that_are_right_never_outgrow_what_was_given() -> None:
    assert SYSTEMS["econoserve_oracle"].simulate(SHORT, OPT).preemptions == 0.0
    assert SYSTEMS["econoserve_d"].simulate(replace(SHORT, padding=0.0), OPT).preemptions > 0.0


def test_the_curve_computes_less_again_than_greedy_admission_and_shortest_first_answers_sooner() -> None:
    greedy, curve, shortest = (SYSTEMS[name].simulate(SHORT, OPT) for name in ("vllm", "curve", "curve_shortest"))
    assert curve.recomputed < 0.1 * greedy.recomputed
    assert shortest.normalized_s < 0.5 * curve.normalized_s


def test_a_request_that_no_engine_holds_is_refused() -> None:
    requests, _ = drawn(SHORT, OPT)
    with pytest.raises(ValueError, match="KV blocks"):
        played(requests, rules_of(OPT, total_blocks=8))


def test_the_sustained_rate_is_where_the_measure_passes_the_bound() -> None:
    tried: list[float] = []

    def measure(rate: float) -> float:
        tried.append(rate)
        return rate**2

    assert sustained(measure, 9.0, 0.5) == pytest.approx(3.0, rel=0.01)
    assert sustained(measure, 9.0, 50.0) == pytest.approx(3.0, rel=0.01)
    assert len(tried) < 40


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_short_form_of_the_scenario_has_every_figure() -> None:
    found = run(Options(quick=True))
    assert found["ratios"]["sharegpt_rate_curve_shortest_over_vllm"] > 1.2
    assert found["ratios"]["alpaca_rate_curve_shortest_over_orca"] > 5
    assert found["econoserve"]["goals"]["ssr"]["curve_shortest"] > found["econoserve"]["goals"]["ssr"]["vllm"]
    rates = found["fastserve"]["rates"]["opt-13b"]["sharegpt"]
    assert rates["fastserve"]["p95"] > rates["fastserve_fcfs"]["p95"]
    chat = found["conserve"]["parts"]["systems"]
    assert chat["vllm_pp"]["ttft_p99_ms"] > 2 * chat["and_checkpoints"]["ttft_p99_ms"]
