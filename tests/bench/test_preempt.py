"""What scenario ``preempt`` says of the steps that it asked to end."""

from __future__ import annotations

import pytest

from bench.scenarios.engine.preempt import Found, figures
from harvester.errors import EngineError

TOKENS = [[4, 5], [6, 7]]


def found(detect_s: list[float], tokens: list[list[int]] | None = None) -> dict[str, Found]:
    quiet = Found(TOKENS, [0.1, 0.3], [], 1e-6, 10, 2.0)
    return {"off": quiet, "on": quiet, "signals": Found(tokens or TOKENS, [0.1, 0.2], detect_s, 1e-6, 10, 2.5)}


def test_a_step_that_was_ended_tells_how_soon() -> None:
    told = figures(found([0.05, 0.05]))
    assert told["steps_ended"] == 2
    assert told["detect_mean_over_step_mean"] == pytest.approx(0.25)
    assert told["tokens_identical"]


def test_other_tokens_are_told() -> None:
    assert not figures(found([0.05], [[4, 5], [6, 8]]))["tokens_identical"]


def test_a_run_in_which_no_step_was_ended_says_nothing_of_ends() -> None:
    with pytest.raises(EngineError, match="no step was ended"):
        figures(found([]))
