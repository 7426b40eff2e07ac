"""The embedded model says what is known to be right, however often its requests are preempted and its steps end at a random layer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.engine.forks import run

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]


@pytest.mark.parametrize(
    "words", [pytest.param((), id="recomputed", marks=pytest.mark.long), pytest.param(("--checkpoints",), id="checkpointed")]
)
def test_answers_are_the_right_ones_under_preemption_and_aborted_steps(words: tuple[str, ...], tmp_path: Path) -> None:
    output, log = tmp_path / "found.json", tmp_path / "log.txt"
    run("answers_child", ["--chaos", "0.6", "--turns", "2", "--output", str(output), *words], log)
    found = json.loads(output.read_text(encoding="utf-8"))
    wrong = [pair for pair in found["answers"] if pair[1] != pair[2]]
    assert wrong == [], f"{len(wrong)} of {len(found['answers'])} answers are wrong"
    assert len(found["answers"]) >= 2 * 0.9 * found["drawn"], "the model is to get nearly all of them right by itself"
    assert found["counts"]["ended_steps"] > 80
    assert (found["counts"]["resumed"] > 100) == bool(words)
