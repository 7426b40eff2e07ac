"""The brain on a simulated engine: whatever the profile or the machine, errors cost throughput and not chat's SLO."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

import pytest

from harvester.policy.brain import Brain
from harvester.policy.model.latency import LatencyModel, StepLoad, predict_with
from harvester.policy.parts import PartsConfig, parts_of
from harvester.policy.view import PolicyConfig
from harvester.sim.engine import SimEngine
from harvester.sim.loop import Simulation
from harvester.sim.trace import Request
from harvester.sim.track import Outcome
from tests.policy.machine import CPU, a_model

LIMITS = PolicyConfig(reserved_slots=4, reserved_kv=0.1, offline_step_tokens=64)
TTFT_S = 2.0
TPOT_S = 0.05


class Believer(LatencyModel):
    """A latency model without a margin: it takes its predictions for the truth."""

    @property
    def margin(self) -> float:
        return 1.0

    def margin_at(self, seconds: float) -> float:
        return 1.0


@cache
def profile(factor: float) -> dict[str, Any]:
    """The profile of a machine that takes ``factor`` times as long as the one that will run."""
    return a_model(tuple(factor * value for value in CPU), 0.05, count=400).state()


class Served:
    """Chat at ``chats_per_s`` beside rows without end, on a machine whose steps take ``pace`` times what `CPU` says, with ``noise``."""

    def __init__(
        self, model: LatencyModel, budget: str = "slo", noise: float = 0.05, seconds: float = 20.0, chats_per_s: float = 9.0
    ) -> None:
        self.model, self.pace, self.seconds = model, 1.0, 0.0
        self._random, self._noise, self._chats_per_s = Random(1), noise, chats_per_s
        brain = Brain(parts_of(PartsConfig(budget=budget, reserve="fixed"), model), LIMITS)
        self._simulation = Simulation(SimEngine(self._cost, 4096, max_seqs=64, max_tokens=1024), brain)
        self._ended: list[Outcome] = []
        draw = self._random.randint
        self._simulation.run((Request(f"row{i}", 0.0, draw(100, 900), draw(20, 100), "job") for i in range(900)), until_s=0.0)
        self.run(seconds)

    def run(self, seconds: float) -> None:
        """Go on for so long."""
        begin_s, self.seconds = self.seconds, self.seconds + seconds
        times = sorted(self._random.uniform(begin_s, self.seconds) for _ in range(round(seconds * self._chats_per_s)))
        draw = self._random.randint
        chat = [Request(f"{at_s}", at_s, draw(20, 60), draw(20, 80), ttft_s=TTFT_S, tpot_s=TPOT_S) for at_s in times]
        self._ended += self._simulation.run(chat, until_s=self.seconds)

    @property
    def _all(self) -> list[Outcome]:
        return [*self._ended, *self._simulation.going]

    def late_share(self, since_s: float = 0.0) -> float:
        """Share of the gaps between two tokens of a chat answer that exceed the objective."""
        chat = [outcome for outcome in self._all if not outcome.request.offline]
        gaps = [later - at_s for one in chat for at_s, later in zip(one.token_s, one.token_s[1:], strict=False) if at_s >= since_s]
        assert len(gaps) > 1000
        return sum(gap > TPOT_S for gap in gaps) / len(gaps)

    def ttfts_s(self) -> list[float]:
        return [outcome.ttft_s for outcome in self._all if not outcome.request.offline and outcome.token_s]

    def offline_tokens_per_s(self) -> float:
        return sum(o.tokens_between(0.0, self.seconds) for o in self._all if o.request.offline) / self.seconds

    def _cost(self, load: StepLoad) -> float:
        return predict_with(CPU, load) * self.pace * self._random.lognormvariate(0.0, self._noise)


@cache
def at_home() -> Served:
    """An engine that ran with its own profile."""
    return Served(LatencyModel.from_state(profile(1.0)))


@cache
def with_fixed_share() -> Served:
    return Served(LatencyModel(), budget="fixed")


def test_with_its_own_profile_chat_is_on_time_and_offline_work_gets_more_than_the_fixed_share_gave() -> None:
    budgeted, fixed = at_home(), with_fixed_share()
    assert budgeted.late_share() < 0.01
    assert max(budgeted.ttfts_s()) < TTFT_S
    assert budgeted.offline_tokens_per_s() > 1.1 * fixed.offline_tokens_per_s()


@pytest.mark.parametrize("factor", [1 / 4, 4.0], ids=["4 times too fast", "4 times too slow"])
def test_a_wrong_profile_costs_throughput_and_not_the_slo(factor: float) -> None:
    right, wrong = at_home(), Served(LatencyModel.from_state(profile(factor)))
    assert wrong.late_share() < 0.01
    assert wrong.offline_tokens_per_s() > 0.9 * right.offline_tokens_per_s()


def test_a_model_without_a_profile_learns_while_it_serves() -> None:
    engine = Served(LatencyModel())
    assert engine.late_share() < 0.01
    assert engine.offline_tokens_per_s() > 1.1 * with_fixed_share().offline_tokens_per_s()


def test_a_noisy_machine_costs_throughput_and_not_the_slo() -> None:
    noisy, steady = Served(LatencyModel.from_state(profile(1.0)), noise=0.3), Served(LatencyModel.from_state(profile(1.0)), noise=0.02)
    assert noisy.late_share() < 0.02
    assert noisy.offline_tokens_per_s() < 0.95 * steady.offline_tokens_per_s()


def test_without_the_margin_chat_would_be_late() -> None:
    assert Served(Believer.from_state(profile(1.0)), noise=0.3).late_share() > 0.1


def test_a_machine_that_becomes_twice_as_slow_is_late_for_some_steps_only() -> None:
    engine = Served(LatencyModel.from_state(profile(1.0)))
    engine.pace, changed_s = 2.0, engine.seconds
    engine.run(40.0)
    assert engine.late_share(since_s=changed_s) < 0.01


def test_without_chat_offline_work_has_no_bound() -> None:
    engine = Served(LatencyModel.from_state(profile(1.0)), seconds=10.0, chats_per_s=0.0)
    assert engine.model.reach_tokens > 8 * LIMITS.offline_step_tokens
