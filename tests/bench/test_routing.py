"""When scenario ``routing`` judges what it measured, and when it says why not."""

from __future__ import annotations

from bench.harness.measure.counters import Counters
from bench.harness.measure.latency import Online
from bench.harness.measure.stretch import Stretch
from bench.harness.measure.work import Work
from bench.scenarios.engine.routing import LEAST, PREDICTED, line


def played(ttft_s: float, late_s: float = 0.001, refused: bool = False) -> Stretch:
    requests = [
        Online(float(number), number + late_s, 10, [(number + late_s + ttft_s, 1)], True, number + late_s + ttft_s, refused)
        for number in range(10)
    ]
    return Stretch(10.0, 10.0, requests, [Counters(0.0, 0, 0, 0, 0), Counters(10.0, 0, 0, 0, 0)], Work(1, 1, 0), False)


def test_two_ingresses_are_compared_where_all_was_sent_in_time() -> None:
    found = line(0.7, 2.0, {LEAST: [played(0.4)], PREDICTED: [played(0.1)]})
    assert found["verdict"] == "judged"
    assert found["ratios"] == {
        "p50_ttft_predicted_ttft_over_least_connections": 0.25,
        "p99_ttft_predicted_ttft_over_least_connections": 0.25,
    }


def test_a_rate_at_which_the_client_was_late_is_not_judged_and_says_why() -> None:
    found = line(0.7, 2.0, {LEAST: [played(0.4), played(0.4, late_s=2.5)], PREDICTED: [played(0.1)] * 2})
    assert found["verdict"].startswith("not judged: least_connections: half of the requests were sent 2.5 s late or more")
    assert (found["ratios"], found["spread"]) == ({}, {})
    assert found["systems"][LEAST]["client_late_ms"]["p99"] == 2500.0, "what was seen is shown all the same"


def test_a_rate_at_which_one_was_refused_is_not_judged() -> None:
    found = line(0.7, 2.0, {LEAST: [played(0.4)], PREDICTED: [played(0.1, refused=True)]})
    assert found["verdict"].startswith("not judged: predicted_ttft: 10 requests were refused")
