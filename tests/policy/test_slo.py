"""The brain against a fake engine: whatever the profile or the machine, it is throughput that pays and not what chat was promised."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from harvester.policy.model.latency import LatencyModel
from tests.policy.fake_engine import LIMITS, FakeEngine
from tests.policy.machine import CPU, a_model

TPOT_S = 0.05


class Believer(LatencyModel):
    """One that takes its predictions for the truth."""

    @property
    def margin(self) -> float:
        return 1.0

    def margin_at(self, seconds: float) -> float:
        return 1.0


@cache
def profile(factor: float) -> dict[str, Any]:
    """Of a machine that takes ``factor`` times as long as the one that will run."""
    return a_model(tuple(factor * value for value in CPU), 0.05, count=400).state()


def served(model: LatencyModel | None, noise: float = 0.05, steps: int = 600) -> FakeEngine:
    engine = FakeEngine(CPU, model, TPOT_S, noise=noise)
    engine.run(steps)
    return engine


@cache
def at_home() -> FakeEngine:
    """An engine that ran with its own profile."""
    return served(LatencyModel.from_state(profile(1.0)))


@cache
def with_fixed_share() -> FakeEngine:
    return served(None)


def test_with_its_own_profile_chat_is_on_time_and_offline_work_gets_more_than_the_fixed_share_gave() -> None:
    budgeted, fixed = at_home(), with_fixed_share()
    assert budgeted.late_share() < 0.01
    assert max(budgeted.ttfts_s) < budgeted.ttft_s
    assert budgeted.offline_tokens_per_s() > 1.2 * fixed.offline_tokens_per_s()


@pytest.mark.parametrize("factor", [1 / 4, 4.0], ids=["4 times too fast", "4 times too slow"])
def test_a_wrong_profile_costs_throughput_and_not_the_slo(factor: float) -> None:
    right, wrong = at_home(), served(LatencyModel.from_state(profile(factor)))
    assert wrong.late_share() < 0.01
    assert wrong.offline_tokens_per_s() > 0.9 * right.offline_tokens_per_s()


def test_a_model_without_a_profile_learns_while_it_serves() -> None:
    engine = served(LatencyModel())
    assert engine.late_share() < 0.01
    assert engine.offline_tokens_per_s() > 1.2 * with_fixed_share().offline_tokens_per_s()


def test_a_noisy_machine_costs_throughput_and_not_the_slo() -> None:
    noisy, steady = served(LatencyModel.from_state(profile(1.0)), noise=0.3), served(LatencyModel.from_state(profile(1.0)), noise=0.02)
    assert noisy.late_share() < 0.02
    assert noisy.offline_tokens_per_s() < 0.95 * steady.offline_tokens_per_s()


def test_without_the_margin_chat_would_be_late() -> None:
    assert served(Believer.from_state(profile(1.0)), noise=0.3).late_share() > 0.1


def test_a_machine_that_becomes_twice_as_slow_is_late_for_some_steps_only() -> None:
    engine = served(LatencyModel.from_state(profile(1.0)))
    engine.pace, engine.gaps_s = 2.0, []
    engine.run(1000)
    assert engine.late_share() < 0.01


def test_without_chat_offline_work_has_no_bound() -> None:
    engine = FakeEngine(CPU, LatencyModel.from_state(profile(1.0)), TPOT_S, online_seqs=0)
    engine.run(50)
    assert engine.model is not None
    assert engine.model.reach_tokens > 8 * LIMITS.offline_step_tokens
