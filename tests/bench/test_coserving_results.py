"""What a co-serving scenario writes down: counters, summaries, ratios, switches."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench.__main__ import _set
from bench.harness.compare import Setting, offline_system, over, ratios
from bench.harness.engine.tally import Tally
from bench.harness.knobs import QUICK, Knobs, knobs
from bench.harness.measure.counters import Counters, total
from bench.harness.measure.latency import Online, Slo
from bench.harness.measure.peer import PeerRun, best_peer
from bench.harness.measure.rounds import rounds_of
from bench.harness.measure.stretch import Span, Stretch, summary_of
from bench.harness.measure.work import Work, work_between
from bench.harness.models import SHAPE
from bench.harness.options import Options
from bench.harness.sweep import best_priority, settings, sweep_line
from bench.harness.weights import tensor_shapes
from bench.scenarios.catalog import SCENARIOS
from bench.scenarios.coserving.ablation import NOTHING, SWITCHES, variants
from bench.scenarios.coserving.burst import points
from bench.scenarios.coserving.coserve import spread
from bench.scenarios.order.mlfq import rates_at
from harvester.config import parse_config
from harvester.core import PRIORITY_OFFLINE, PRIORITY_ONLINE
from harvester.engine.embedded import embedded_model
from harvester.errors import EngineError, UsageError
from harvester.model_config import ScheduleConfig

CONTRACT = {
    "ttft_ms",
    "tpot_ms",
    "online_tokens_per_s",
    "offline_tokens_per_s",
    "total_tokens_per_s",
    "online_requests",
    "recomputed_tokens",
    "recomputed_share",
    "preemptions",
}


def stretch(*tokens: int, requests: list[Online] | None = None, offline: bool = True, work: Work | None = None) -> Stretch:
    """A system whose counters stood at ``tokens``, ten seconds between two samples."""
    samples = [Counters(100.0 + 10 * index, count, 0, 0, index) for index, count in enumerate(tokens)]
    found = requests if requests is not None else [Online(0.0, 0.0, 90, [(1.0, 1), (2.0, 10)], True, 2.0)]
    return Stretch(10.0 * (len(tokens) - 1), 10.0, found, samples, work or Work(10, 2000, 500), offline)


def test_a_counter_is_summed_over_its_labels_and_not_mistaken_for_another() -> None:
    lines = [
        "# TYPE a_total counter",
        'a_total{engine="0"} 3.0',
        'a_total{engine="1"} 4.0',
        'a_total_created{engine="0"} 9.0',
        "ba_total 5.0",
    ]
    text = "\n".join([*lines, "a_total 1.0"])
    assert total(text, "a_total") == 8.0
    assert total(text, "c_total") == 0.0


def test_work_is_the_difference_of_the_lines_before_two_times(tmp_path: Path) -> None:
    file = tmp_path / "counts"
    lines = [{"at_s": at, "steps": at, "tokens": 10 * at, "recomputed": at // 4} for at in (2, 4, 8)]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert work_between(file, 3.0, 8.0) == Work(6, 60, 2)
    assert work_between(file, 1.0, 5.0) == Work(4, 40, 1)
    assert work_between(tmp_path / "none", 1.0, 5.0) == Work(0, 0, 0)


@pytest.mark.parametrize(
    ("steps", "recomputed"),
    [
        ([(0, 100), (100, 1), (101, 1)], 0),
        ([(0, 100), (0, 100), (100, 1)], 100),
        ([(0, 100), (64, 60)], 36),
        ([(0, 100), (0, 40), (40, 70)], 100),
    ],
    ids=["straight", "ended early", "partly cached", "in chunks"],
)
def test_a_position_scheduled_twice_is_recomputed(steps: list[tuple[int, int]], recomputed: int, tmp_path: Path) -> None:
    """``steps``: tokens computed before the step, and in it."""
    tally, request = Tally(tmp_path / "counts"), SimpleNamespace()
    for index, (before, tokens) in enumerate(steps):
        request.num_computed_tokens = before + tokens
        tally.count({"a": tokens}, {"a": request}, float(index))
    assert work_between(tmp_path / "counts", -1.0, 9.0) == Work(len(steps), sum(tokens for _, tokens in steps), recomputed)


def test_offline_work_is_counted_once_however_often_it_is_computed(tmp_path: Path) -> None:
    tally = Tally(tmp_path / "counts")
    offline, online = (SimpleNamespace(num_computed_tokens=0, priority=priority) for priority in (PRIORITY_OFFLINE, PRIORITY_ONLINE))
    found = []
    for index, (before, tokens) in enumerate([(0, 100), (0, 60), (60, 60), (120, 1)]):
        offline.num_computed_tokens = online.num_computed_tokens = before + tokens
        found.append(tally.count({"job": tokens, "chat": tokens}, {"job": offline, "chat": online}, float(index)))
        tally.cost(0.5)
    assert found == [{}, {"job": 60, "chat": 60}, {"job": 40, "chat": 40}, {}]
    assert work_between(tmp_path / "counts", -1.0, 9.0) == Work(4, 442, 200, 121, 1.5), "a line has the cost of the steps before it"


def test_totals_are_written_now_and_then_and_lose_nothing(tmp_path: Path) -> None:
    tally, request = Tally(tmp_path / "counts"), SimpleNamespace(num_computed_tokens=10)
    for index in range(101):
        tally.count({"a": 10, "gone": 1}, {"a": request}, index / 100)
    assert len((tmp_path / "counts").read_text().splitlines()) == 5
    assert work_between(tmp_path / "counts", 0.0, 1.0) == Work(100, 1000, 1000)


def test_offline_tokens_are_what_the_counters_have_beyond_the_online_requests() -> None:
    found = stretch(1000, 1600, 3000)
    assert found.rates() == {"online_tokens_per_s": 5.0, "offline_tokens_per_s": 95.0, "total_tokens_per_s": 100.0}
    assert found.rates(0, 1) == {"online_tokens_per_s": 10.0, "offline_tokens_per_s": 50.0, "total_tokens_per_s": 60.0}
    assert found.rates(1, 2) == {"online_tokens_per_s": 0.0, "offline_tokens_per_s": 140.0, "total_tokens_per_s": 140.0}


def test_without_offline_work_there_are_no_offline_tokens() -> None:
    assert stretch(0, 101, offline=False).rates() == {"online_tokens_per_s": 10.0, "offline_tokens_per_s": 0.0, "total_tokens_per_s": 10.1}


def test_a_summary_holds_what_every_result_promises() -> None:
    summary = stretch(0, 1000, 2000).summary(Slo(2000, 2000))
    assert summary.keys() >= CONTRACT
    assert offline_system(Span(100.0, 5.0), 2048).keys() >= CONTRACT
    for kind in ("ttft_ms", "tpot_ms"):
        assert list(summary[kind]) == ["p50", "p90", "p99"]
    assert summary["recomputed_share"] == 0.25
    assert summary["preemptions"] == 2
    assert [line["total_tokens_per_s"] for line in summary["windows"]] == [100.0, 100.0]
    assert json.loads(json.dumps(summary)) == summary


def test_a_load_without_tokens_has_no_slo() -> None:
    with pytest.raises(EngineError, match="--seconds"):
        stretch(0, 10, requests=[]).p99()


def system(ttft: float, tpot: float, total_tokens: float, offline: float) -> dict[str, Any]:
    return {"ttft_ms": {"p99": ttft}, "tpot_ms": {"p99": tpot}, "total_tokens_per_s": total_tokens, "offline_tokens_per_s": offline}


def test_ratios_are_named_after_what_is_divided() -> None:
    systems = {
        "online_only": system(100, 20, 500, 0),
        "vllm_priority": system(1100, 90, 2000, 1500),
        "harvester": system(110, 22, 1900, 1400),
    }
    assert ratios(systems, Span(3800, 5), Span(4000, 5)) == {
        "p99_ttft_harvester_over_online_only": 1.1,
        "p99_ttft_vllm_priority_over_harvester": 10.0,
        "p99_tpot_harvester_over_online_only": 1.1,
        "p99_tpot_vllm_priority_over_harvester": 4.091,
        "total_tokens_harvester_over_vllm_priority": 0.95,
        "offline_tokens_harvester_over_vllm_priority": 0.933,
        "total_tokens_harvester_over_online_only": 3.8,
        "offline_tokens_idle_harvester_over_offline_only": 0.95,
    }


@pytest.mark.parametrize(("above", "below"), [(None, 1.0), (1.0, None), (1.0, 0.0)])
def test_a_ratio_that_cannot_be_is_none(above: float | None, below: float | None) -> None:
    assert over(above, below) is None


def test_the_peer_s_setting_is_the_fastest_of_those_that_reach_the_throughput() -> None:
    def measured(ttft_s: float, tokens: int) -> Stretch:
        return stretch(0, tokens, requests=[Online(0.0, 0.0, 1, [(ttft_s, 1), (ttft_s + 0.1, 2)], True, ttft_s + 0.1)])

    found = {Setting(512, 24): measured(0.2, 9000), Setting(2048, 24): measured(0.5, 9700), Setting(4096, 64): measured(0.9, 10000)}
    assert best_priority(found) == Setting(2048, 24)


def test_a_setting_that_answered_no_chat_is_no_peer() -> None:
    assert best_peer({"answered": PeerRun(970.0, 300.0), "silent": PeerRun(1000.0, None)}) == "answered"


def test_a_setting_under_which_no_request_got_a_token_has_a_line() -> None:
    line = sweep_line(Setting(512, 64), stretch(0, 100, requests=[Online(0.0, 0.0, 9, [], False, 12.0)]))
    assert line["ttft_p99_ms"] == 12000
    assert line["tpot_p99_ms"] is None
    assert line["offline_tokens_per_s"] == 10.0


def test_the_sweep_has_settings_that_leave_slots_free() -> None:
    swept = settings(32)
    assert {setting.concurrency for setting in swept} == {24}
    assert len(set(swept)) == len(swept) == 4


def test_ablation_turns_one_part_on_at_a_time_until_the_default_and_then_one_switch_at_a_time() -> None:
    every = variants(quick=False)
    found = {name: every[name] for name in ("none", "+budget", "+reserve", "+safepoints", "+mlfq")}
    assert list(every) == [*found, *SWITCHES]
    for name, switch in SWITCHES.items():
        assert every[name] == found["+mlfq"] | switch
        assert ScheduleConfig(**every[name]) != ScheduleConfig()
    pairs = zip(list(found.values())[:-1], list(found.values())[1:], strict=True)
    assert all(len([key for key in NOTHING if before[key] != after[key]]) == 1 for before, after in pairs)
    assert ScheduleConfig(**found["+mlfq"]) == ScheduleConfig()
    assert list(variants(quick=True)) == ["none", "+mlfq"]
    for schedule in every.values():
        parse_config({"schedule": schedule}, "test")


@pytest.mark.parametrize("quick", [True, False])
def test_burst_begins_at_the_base_point_and_meets_none_twice(quick: bool) -> None:
    found = points(quick)
    assert found[0] == (1.0, 1.0)
    assert len(set(found)) == len(found)
    assert all(cv == 1.0 or part == 1.0 for cv, part in found)


def test_knobs_come_from_the_scenario_then_from_the_user() -> None:
    assert knobs(Options(quick=True)) == QUICK
    assert knobs(Options(seconds=7.0)).seconds == 7.0
    assert knobs(Options(set={"rate": 3.0}), Knobs(slots=4)) == Knobs(slots=4, rate=3.0)


@pytest.mark.parametrize("given", [{"ratee": 1.0}, {"rate": 0.0}, {"cv": -1.0}], ids=["unknown", "zero", "negative"])
def test_a_wrong_knob_is_named(given: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(given))):
        knobs(Options(set=given))


def test_a_knob_is_read_from_the_command_line() -> None:
    assert _set(["rate=2", "cv=0.5"]) == {"rate": 2.0, "cv": 0.5}
    for word in ("rate", "rate=fast", "=1x"):
        with pytest.raises(UsageError, match="NAME=NUMBER"):
            _set([word])


def test_orders_are_compared_by_the_rate_that_each_bears_at_one_latency() -> None:
    means = {"fcfs": (10.0, 30.0, 90.0), "skip_join_mlfq": (10.0, 10.0, 30.0), "naive_mlfq": (10.0, 12.0, 14.0)}
    lines = [
        {"rate": rate, "systems": {name: {"normalized_ms": {"mean": mean[index]}} for name, mean in means.items()}}
        for index, rate in enumerate((1.0, 2.0, 4.0))
    ]
    assert rates_at(lines) == {
        "rate_at_2x_latency_skip_join_mlfq_over_fcfs": 2.0,
        "rate_at_2x_latency_skip_join_mlfq_over_naive_mlfq": None,
        "rate_at_5x_latency_skip_join_mlfq_over_fcfs": None,
        "rate_at_5x_latency_skip_join_mlfq_over_naive_mlfq": None,
    }


@pytest.mark.parametrize("name", ["coserve", "phases", "cycle", "burst", "ablation", "mlfq"])
def test_each_scenario_is_listed_and_can_be_loaded(name: str) -> None:
    assert callable(SCENARIOS[name].load())


def test_the_bench_model_has_28_million_weights() -> None:
    config = json.loads((embedded_model() / "config.json").read_text(encoding="utf-8")) | SHAPE
    assert sum(int(np.prod(shape)) for shape in tensor_shapes(config).values()) == pytest.approx(28e6, rel=0.02)


def test_rounds_of_one_system_are_one_summary() -> None:
    """Percentiles of all requests, rates as means, counters as sums, windows one after the other."""
    slow = [Online(0.0, 0.0, 90, [(3.0, 1), (4.0, 10)], True, 4.0)]
    found = summary_of([stretch(0, 1000, 3000), stretch(0, 3000, 5000, requests=slow, work=Work(5, 2000, 0))], Slo(2000.0, 2000.0))
    assert found["online_requests"] == 2
    assert found["ttft_ms"] == {"p50": 1000.0, "p90": 3000.0, "p99": 3000.0}
    assert found["total_tokens_per_s"] == 200.0
    assert (found["recomputed_tokens"], found["recomputed_share"], found["engine_steps"]) == (500, 0.125, 15)
    assert [line["from_s"] for line in found["windows"]] == [0.0, 10.0, 20.0, 30.0]
    assert (found["slo"]["windows"], found["slo"]["windows_within"]) == (2, 1)
    assert found["preemptions"] == 4


def test_ratios_have_a_spread_over_requests_and_rounds() -> None:
    slow = [Online(0.0, 0.0, 90, [(3.0, 1), (4.0, 10)], True, 4.0)]
    chat, ours = [stretch(0, 1000), stretch(0, 2000)], [stretch(0, 3000), stretch(0, 3000, requests=slow)]
    found = spread({"online_only": chat, "vllm_priority": chat, "harvester": ours}, seed=0)
    assert found["p99_ttft_harvester_over_online_only"] == {"ratio": 3.0, "from": 1.0, "to": 3.0}
    assert found["p99_ttft_vllm_priority_over_harvester"]["ratio"] == 0.3333
    assert found["total_tokens_harvester_over_vllm_priority"] == {"ratio": 2.25, "rounds": [3.0, 1.5]}


@pytest.mark.parametrize("value", [0.0, 1.5])
def test_rounds_are_a_whole_number(value: float) -> None:
    with pytest.raises(UsageError, match="rounds"):
        rounds_of({"rounds": value}, 2)
    assert rounds_of({}, 2) == 2
