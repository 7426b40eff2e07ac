"""What the batch benchmark makes of what it saw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.harness.load.batch_client import _is_right, write_input
from bench.harness.load.prober import summary
from bench.harness.measure.job.sharing import jain, sharing
from bench.scenarios.job_path.batch import _goals
from harvester.errors import EngineError
from jobs.batches.line import LineRules


@pytest.mark.parametrize(
    ("values", "index"), [([5, 5, 5, 5], 1.0), ([1, 0, 0, 0], 0.25), ([4, 2], 0.9), ([0, 0], 1.0)], ids=["equal", "one", "half", "none"]
)
def test_jains_index_is_one_for_equal_shares_and_one_nth_for_one_of_n(values: list[float], index: float) -> None:
    assert jain(values) == pytest.approx(index)


def test_only_rows_that_end_while_all_jobs_are_active_are_compared() -> None:
    early = [(float(at), 10) for at in range(10)]
    late = [(float(at), 30) for at in range(6, 20)]
    found = sharing({"early": early, "late": late})
    assert (found["all_active_s"], found["rows_in_it"]) == (3.0, {"least": 3, "most": 3})
    assert found["jain_rows"] == 1.0
    assert found["jain_tokens"] == pytest.approx(0.8)


def test_jobs_one_after_the_other_are_not_compared() -> None:
    with pytest.raises(EngineError, match="not all active at once"):
        sharing({"first": [(0.0, 1), (1.0, 1)], "second": [(2.0, 1), (3.0, 1)]})


def seen(path: str, ms: float, status: int | None = 200) -> dict[str, Any]:
    return {"path": path, "ms": ms, "late_ms": 1.0, "status": status}


def test_answers_are_summed_up_by_path_and_those_refused_or_missing_counted() -> None:
    found = summary([seen("/a", 2.0), seen("/a", 4.0, 503), seen("/b", 9.0, None)], {"/a": "A", "/b": "B"})
    assert found["paths"]["A"] == {"ms": {"p50": 2.0, "p90": 4.0, "p99": 4.0}, "slowest_ms": 4.0, "requests": 2, "failed": 1}
    assert found["paths"]["B"]["failed"] == 1
    assert found["prober_late_ms"]["p99"] == 1.0


def test_every_line_of_an_input_is_a_request_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "input.jsonl"
    write_input(path, "scripted", 50, seed=1)
    rules = LineRules("/v1/chat/completions", ["scripted"])
    requests = [rules.read(number, raw, None) for number, raw in enumerate(path.read_bytes().splitlines(), 1)]
    assert len({request.custom_id for request in requests}) == 50
    assert path.stat().st_size / 50 == pytest.approx(400, rel=0.3)


ANSWER = '{{"custom_id": "row-{}", "response": {{"status_code": {}, "body": {{"choices": [{{"message": {{"content": "row-{}"}}}}]}}}}}}\n'


@pytest.mark.parametrize(
    ("lines", "right"),
    [
        ([(0, 200, 0), (1, 200, 1)], True),
        ([(1, 200, 1), (0, 200, 0)], True),
        ([(0, 200, 0)], False),
        ([(0, 200, 0), (1, 200, 0)], False),
        ([(0, 200, 0), (1, 500, 1)], False),
        ([(0, 200, 0), (1, 200, 1), (1, 200, 1)], False),
    ],
    ids=["whole", "in any order", "one missing", "another's answer", "one failed", "one twice"],
)
def test_an_output_is_right_where_each_request_has_its_own_answer_once(
    tmp_path: Path, lines: list[tuple[int, int, int]], right: bool
) -> None:
    path = tmp_path / "output.jsonl"
    path.write_text("".join(ANSWER.format(*one) for one in lines))
    assert _is_right(path, 2) is right


def api(p99_ms: float, failed: int = 0) -> dict[str, Any]:
    return {"paths": {"/api/jobs": {"ms": {"p99": p99_ms}, "failed": failed, "requests": 5}}, "prober_late_ms": {"p99": 1.0}}


@pytest.mark.parametrize(("slow_ms", "jain_tokens", "met"), [(99.0, 0.99, True), (100.0, 1.0, False), (5.0, 0.98, False)])
def test_a_goal_is_met_by_the_worst_of_all_runs(slow_ms: float, jain_tokens: float, met: bool) -> None:
    alone = [{"exactly_once": True, "api": {"uploading": api(1.0), "working": api(slow_ms)}}]
    goals = _goals(alone, {"jain_rows": 1.0, "jain_tokens": jain_tokens, "api": api(2.0)})
    assert all(goal["met"] for goal in goals.values()) is met


def test_an_api_that_nobody_asked_meets_no_goal() -> None:
    silent: dict[str, Any] = {"paths": {"/api/jobs": {"ms": {"p99": None}, "failed": 0, "requests": 0}}, "prober_late_ms": {"p99": None}}
    alone = [{"exactly_once": True, "api": {"uploading": silent, "working": silent}}]
    goals = _goals(alone, {"jain_rows": 1.0, "jain_tokens": 1.0, "api": silent})
    assert [name for name, goal in goals.items() if not goal["met"]] == ["api_p99_ms_below_100", "no_request_of_the_api_failed"]
