"""The figures of the scenario ``orders``, and what its simulated form says of each order."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench.harness.knobs import Knobs
from bench.harness.load.arrivals import Arrival
from bench.harness.measure.latency import Online
from bench.scenarios.catalog import SCENARIOS
from bench.scenarios.order import one_engine
from bench.scenarios.order.capacity import capacity_per_s, check_sent_in_time
from bench.scenarios.order.orders_sim import LENGTHS, SYSTEMS, Setting, simulate
from bench.scenarios.order.prediction import predictors
from bench.scenarios.order.served import Served, SloTimes, figures
from harvester.errors import EngineError, UsageError

TIMES = SloTimes(prompt_s=1.0, token_s=0.5)


@dataclass
class Steady:
    """A request of 100 tokens, worked off evenly from ``began_s`` on."""

    began_s: float
    seen_until_s: float

    def tokens_before(self, second: float) -> float:
        took_s = self.seen_until_s - self.began_s
        return 100 * min(1.0, max(0.0, second - self.began_s) / took_s)


def test_what_a_machine_serves_is_told_from_the_time_in_which_all_slots_were_wanted() -> None:
    load = [Arrival(0.0, 60, 40)] * 6
    even = [Steady(0.0, 2.0), Steady(0.0, 2.0), Steady(2.0, 4.0), Steady(2.0, 4.0), Steady(4.0, 6.0), Steady(4.0, 6.0)]
    assert capacity_per_s(even, load, 2) == 1.0
    straggler = [*even[:-1], Steady(4.0, 60.0)]  # its slot alone was busy then
    assert capacity_per_s(straggler, load, 2) == 1.0


def test_figures_are_of_seconds_a_token_of_the_whole_answer_and_of_the_longest_wait() -> None:
    served = [Served(5, 2, 1.0, 4.0), Served(9, 4, 3.0, 7.0), Served(7, 10, 2.0, 5.0)]
    found = figures(served, TIMES)
    assert found["normalized_s"] == {"mean": pytest.approx((2.0 + 1.75 + 0.5) / 3, abs=1e-5), "p95": 2.0, "p99": 2.0}
    assert (found["longest_wait_s"], found["who_waited"]) == (3.0, {"prompt_tokens": 9, "output_tokens": 4})
    assert found["mean_wait_s"] == {"shortest_quarter": 1.0, "longest_quarter": 2.0}


@pytest.mark.parametrize(
    ("whole_s", "ended", "ssr"), [(4.0, True, 1.0), (4.1, True, 0.0), (4.0, False, 0.0)], ids=["kept", "late", "no end"]
)
def test_an_answer_keeps_its_slo_within_twice_what_it_takes_alone(whole_s: float, ended: bool, ssr: float) -> None:
    found = figures([Served(5, 2, 1.0, whole_s, ended)], TIMES)
    assert (found["ssr"], found["unfinished"]) == (ssr, int(not ended))


def test_where_prompts_tell_the_length_the_regression_finds_it_and_the_bands_come_near() -> None:
    draw = Random(1)
    lengths = [(prompt, prompt // 2 + 1) for prompt in (draw.randint(8, 4000) for _ in range(4000))]
    found = predictors(lengths, 0)
    errors = {name: one["median_share"] for name, one in found["predictors"].items()}
    assert errors["regression, log on log"] < 0.05 < errors["quantiles by band of prompts"] < 0.3 < errors["median of all"]
    assert found["explained_by_prompt"] > 0.9


def test_where_prompts_tell_nothing_no_predictor_finds_an_order() -> None:
    generator = np.random.default_rng(2)
    lengths = list(zip(generator.integers(8, 4000, 4000).tolist(), generator.integers(1, 900, 4000).tolist(), strict=True))
    assert all(abs(one["rank"]) < 0.1 for one in predictors(lengths, 0)["predictors"].values())


def test_every_system_gets_the_same_requests_but_for_what_is_predicted_of_them() -> None:
    setting = Setting()
    traces = [
        [(one.arrival_s, one.prompt_tokens, one.output_tokens) for one in setting.trace(3.0, 20.0, 5, system.sigma)]
        for system in SYSTEMS.values()
    ]
    assert traces[0]
    assert all(trace == traces[0] for trace in traces)


def test_the_drawn_lengths_have_the_papers_means() -> None:
    draw = Random(3)
    pairs = [LENGTHS.draw(draw) for _ in range(20_000)]
    prompt, output = (sum(pair[i] for pair in pairs) / len(pairs) for i in (0, 1))
    assert prompt == pytest.approx(161.31, rel=0.03)
    assert output == pytest.approx(337.99, rel=0.10)


def test_beyond_what_first_come_first_served_holds_the_shortest_first_keep_more_slos_and_a_long_one_waits_longest() -> None:
    setting = Setting()
    first, shortest = (simulate(SYSTEMS[name], setting, 3.6, 60.0, [1]) for name in ("fcfs", "sjf"))
    assert shortest["ssr"] > first["ssr"] + 0.2
    assert shortest["normalized_s"]["mean"] < first["normalized_s"]["mean"]
    assert shortest["who_waited"]["output_tokens"] > 500
    assert shortest["mean_wait_s"]["shortest_quarter"] < first["mean_wait_s"]["shortest_quarter"]


def test_a_scenario_without_a_simulated_form_says_which_have_one() -> None:
    with pytest.raises(UsageError, match="no form in virtual time; these have: orders"):
        SCENARIOS["coserve"].load(simulated=True)
    assert callable(SCENARIOS["orders"].load(simulated=True))


def test_values_of_a_request_are_laid_over_its_body() -> None:
    from bench.harness.load.online_client import Player

    plan = {"url": "http://x", "model": "m", "seed": 0, "vocabulary": [1, 9], "requests": []}
    own = Arrival(0.0, 4, 2, {"max_tokens": 256}).body
    assert b'"max_tokens": 256' in Player(plan, None).body(4, 2, own)  # type: ignore[arg-type]  # nothing is sent


def test_no_order_finds_the_prompts_of_the_one_before_it_in_the_prefix_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []

    def stretch(*given: Any, seed: int, **named: Any) -> Any:
        seeds.append(seed)
        return SimpleNamespace(requests=[])

    monkeypatch.setattr(one_engine, "stretch", stretch)
    nothing: Any = None
    engine = one_engine.OneEngine(nothing, nothing, Knobs(), seed=3)
    for order in ("fcfs", "mlfq", "fcfs"):
        engine.play([], 1.0, 1.0, order)
    assert len(set(seeds)) == 3


def test_a_client_that_waited_for_a_core_has_measured_nothing() -> None:
    def sent(late_s: float) -> Online:
        return Online(at_s=1.0, sent_s=1.0 + late_s, prompt_tokens=1, tokens=(), ended=True, seen_until_s=9.0)

    check_sent_in_time([sent(0.002), sent(0.09), sent(4.0)], "haproxy")
    with pytest.raises(EngineError, match=r"haproxy: half of the requests were sent 0\.2 s late or more"):
        check_sent_in_time([sent(0.002), sent(0.2), sent(4.0)], "haproxy")
