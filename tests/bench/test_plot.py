"""The picture beside a result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.harness import plot
from bench.harness.plot import draw

FIGURES = {"p50": 1.0, "p90": 2.0, "p99": 1234.5}
WINDOW = {"from_s": 0.0, "ttft_p99_ms": 10.0, "tpot_p99_ms": None, "total_tokens_per_s": 100.0}
SYSTEM: dict[str, Any] = {
    "ttft_ms": FIGURES,
    "tpot_ms": dict.fromkeys(FIGURES, None),
    "normalized_ms": {"mean": 20.0, "p95": 40.0},
    "online_tokens_per_s": 10.0,
    "offline_tokens_per_s": 90.0,
    "total_tokens_per_s": 100.0,
    "recomputed_share": 0.25,
    "preemptions": 3,
    "online_requests": 7,
    "slo": {"ttft_ms": 100.0, "tpot_ms": 20.0},
    "windows": [WINDOW, WINDOW | {"from_s": 5.0}],
}


def result(scenario: str) -> dict[str, Any]:
    systems = {"online_only": SYSTEM, "skip <join>": SYSTEM}
    machine = {"cpu": "a CPU", "cores": 2}
    head = {"scenario": scenario, "model": "m", "machine": machine, "commit": None, "seed": 0, "started_at": "2026-01-01"}
    points = [{"cv": cv, "rate": 1.0, "systems": systems, "ratios": {}} for cv in (1.0, 4.0)]
    return (
        head | {"systems": systems, "ratios": {"ours_over_theirs": 0.5, "none": None}} | ({"points": points} if scenario == "burst" else {})
    )


def test_a_scenario_without_a_picture_writes_nothing(tmp_path: Path) -> None:
    assert draw(result("jobs"), tmp_path / "jobs.json") is None
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_nothing_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plot, "find_spec", lambda name: None)
    assert draw(result("coserve"), tmp_path / "c.json") is None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("scenario", ["coserve", "phases", "cycle", "burst", "ablation", "mlfq"])
def test_every_co_serving_scenario_has_a_picture(scenario: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    given = result(scenario)
    given.setdefault("points", [{"rate": 1.0, "systems": given["systems"]}] if scenario == "mlfq" else [])
    if not given["points"]:
        del given["points"]
    drawn = draw(given, tmp_path / f"{scenario}.json")
    assert drawn == tmp_path / f"{scenario}.png"
    assert drawn.read_bytes().startswith(b"\x89PNG")
