"""A real engine with little KV: rows admitted by what they are expected to hold are answered token for token as by the worst case."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from bench.harness.models import small_model
from bench.scenarios.admission.real import Round, Row, run_engine
from harvester.engine.processes.in_subprocess import run_in_process

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1600)]

KV_MIB = 10  # for 2,560 tokens of the small model; vLLM wants KV for the longest request, of 2,048
SHORT, LONG = 30, 40  # rows


def rows() -> list[Row]:
    """Short answers first, from which the engine expects short ones, then long ones."""
    draw = random.Random(3)
    answers = [draw.randint(2, 6) for _ in range(SHORT)] + [draw.randint(60, 120) for _ in range(LONG)]
    return [([draw.randrange(100, 4000) for _ in range(draw.randint(10, 60))], answer) for answer in answers]


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Round]:
    """What an engine with this admission made of all rows; each runs once."""
    found: dict[str, Round] = {}

    def once(admission: str) -> Round:
        if admission not in found:
            folder = tmp_path_factory.mktemp(admission)
            model = str(small_model(folder / "models"))
            found[admission] = run_in_process(run_engine, admission, model, folder, KV_MIB, rows(), 0.0, None, log=folder / "log.txt")
        return found[admission]

    return once


def test_no_row_is_lost_and_each_has_the_tokens_that_it_has_by_the_worst_case(answered: Callable[[str], Round]) -> None:
    worst, expected = answered("worst").tokens, answered("expected").tokens
    assert {number: len(tokens) for number, tokens in expected.items()} == {number: answer for number, (_, answer) in enumerate(rows())}
    assert expected == worst


def test_more_rows_run_at_once_and_what_is_computed_again_is_counted(answered: Callable[[str], Round]) -> None:
    worst, expected = answered("worst"), answered("expected")
    assert (worst.preemptions, worst.work.recomputed) == (0, 0)
    assert expected.preemptions > 0
    assert expected.work.recomputed >= expected.preemptions
    assert expected.work.offline == worst.work.offline
    assert expected.work.steps < 0.6 * worst.work.steps
