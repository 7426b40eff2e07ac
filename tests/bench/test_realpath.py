"""The job path with a model: what is made of the runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.harness.measure.job.finished import Finished
from bench.harness.servers.run_batch import finished
from bench.scenarios.job_path.real_path import _report
from harvester.errors import EngineError


def ran(name: str, seconds: float, answer: str = "a") -> Finished:
    return Finished(name, seconds, 30.0, prompt_tokens=900, output_tokens=100, steps=10, answers={0: answer, 1: "b"})


def test_the_ratio_is_the_median_of_the_pairs() -> None:
    stock = [ran("run_batch", seconds) for seconds in (10.0, 20.0, 10.0)]
    ours = [ran("harvester", seconds) for seconds in (12.5, 10.0, 10.0)]
    found = _report({"run_batch": stock, "harvester": ours})
    assert found["pairs"] == [0.8, 2.0, 1.0]
    assert found["ratios"] == {"harvester_to_run_batch": 1.0}
    assert found["systems"]["harvester"]["offline_tokens_per_s"] == round(3000 / 32.5, 1)


def test_answers_that_differ_are_counted() -> None:
    found = _report({"run_batch": [ran("run_batch", 10.0)], "harvester": [ran("harvester", 10.0, "c")]})
    assert found["systems"]["harvester"]["answers_equal_to_run_batch"] == 0.5


def line(row_id: int, status: int = 200) -> str:
    body = {"choices": [{"message": {"content": "a"}}], "usage": {"prompt_tokens": 9, "completion_tokens": 1}}
    return json.dumps({"custom_id": str(row_id), "error": None, "response": {"status_code": status, "body": body}}) + "\n"


def test_a_run_of_the_peer_in_which_a_row_has_no_answer_is_refused(tmp_path: Path) -> None:
    output = tmp_path / "output.jsonl"
    output.write_text(line(0) + line(1))
    assert finished(output, 2, 1.0, 0.0, 5).tokens == 20
    with pytest.raises(EngineError, match="answered 2 of 3 rows"):
        finished(output, 3, 1.0, 0.0, 5)
    output.write_text(line(0) + line(1, 500))
    with pytest.raises(EngineError, match="row 1"):
        finished(output, 2, 1.0, 0.0, 5)
