"""What scenario ``overload`` makes of the requests that it sent: its control, its own lateness, its verdicts."""

from __future__ import annotations

from typing import Any

import pytest

from bench.scenarios.coserving.overload import LOADS, Asked, judged, report

SLO_MS = 2000.0


def asked(count: int = 20, status: int = 200, seconds: float = 0.1, late_s: float = 0.0) -> list[Asked]:
    return [Asked(status, seconds, late_s, 1.0 if status == 429 else None) for _ in range(count)]


def systems(**changed: dict[str, Any]) -> dict[str, Any]:
    overload = [*asked(), *asked(9, 429, 0.01)]
    found = {f"{times:g}x": report(overload if times == max(LOADS) else asked(), SLO_MS) for times in LOADS}
    found |= {"hostile": report(asked(), SLO_MS) | {"answer": 200}}
    return {name: line | changed.get(name, {}) for name, line in found.items()}


def missed(found: dict[str, Any]) -> list[str]:
    _, goals = judged(found)
    return [name for name, goal in goals.items() if not goal["met"]]


def test_a_report_tells_how_late_the_client_was() -> None:
    found = report([*asked(98, late_s=0.002), *asked(2, late_s=0.5)], SLO_MS)
    assert found["client_late_ms"] == {"p50": 2.0, "p90": 2.0, "p99": 500.0}


def test_half_the_sustained_load_is_the_control_of_the_hostile_request() -> None:
    slow = report(asked(seconds=0.3), SLO_MS) | {"answer": None}
    ratios, _ = judged(systems(hostile=slow))
    assert ratios["ttft_p50_hostile_over_half_load"] == 3.0
    assert ratios["ttft_p99_over_slo_0.5x"] == 0.05


def test_a_sound_run_misses_nothing() -> None:
    assert missed(systems()) == []


@pytest.mark.parametrize(
    ("name", "line", "goal"),
    [
        ("0.5x", report([*asked(), *asked(1, 429, 0.01)], SLO_MS), "refused_at_half_load"),
        ("10x", report([*asked(), *asked(9, 429, 0.01), *asked(1, 0)], SLO_MS), "failed"),
        ("3x", report(asked(late_s=0.2), SLO_MS), "client_late_p50_ms"),
        ("1x", report(asked(seconds=3.1), SLO_MS), "ttft_p99_over_slo"),
        ("10x", report(asked(), SLO_MS), "refused_p99_ms"),
        ("3x", report([*asked(), *asked(9, 429, 0.1)], SLO_MS), "refused_p99_ms"),
        ("hostile", report([*asked(), *asked(1, 429, 0.01)], SLO_MS), "failed_or_refused_beside_a_hostile_request"),
        ("hostile", {"answer": 429}, "failed_or_refused_beside_a_hostile_request"),
    ],
    ids=[
        "a control that is refused",
        "a failure",
        "a late client",
        "slow",
        "nobody refused",
        "slowly refused",
        "harm",
        "no hostile request ran",
    ],
)
def test_each_verdict_can_fail(name: str, line: dict[str, Any], goal: str) -> None:
    assert missed(systems(**{name: line})) == [goal]


def test_without_a_first_token_there_is_no_verdict_of_met() -> None:
    ratios, goals = judged(systems(hostile=report(asked(status=0), SLO_MS)))
    assert ratios["ttft_p50_hostile_over_half_load"] is None
    assert not goals["ttft_p99_over_slo"]["met"]
