"""Tiny models of each kind that vLLM runs on a CPU answer as under vLLM alone, while steps of offline work end at random layers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.child import forms
from tests.engine.forks import run

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

# How many steps must have ended early; None: none may, for a step that is done twice would leave another state.
ENDED: dict[str, int | None] = {"sliding": 20, "latent": 15, "lora": 15, "recurrent": None, "drafts": None}
SHORT = ("sliding", "embed")
CLOSE = 1e-3  # of a normed embedding


def child(folder: Path, models: Path, *words: str) -> Any:
    output, log = folder / "found.json", folder / "log.txt"
    run("kinds_child", [*words, "--models", str(models), "--output", str(output)], log)
    return json.loads(output.read_text("utf-8"))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Callable[[str], list[Any]]:
    """Answers of stock vLLM to a case; one process asks for all of the short or all of the long ones."""
    found: dict[str, list[Any]] = {}

    def answers(case: str) -> list[Any]:
        if case not in found:
            cases = SHORT if case in SHORT else [name for name in ENDED if name not in SHORT]  # `drafts` comes last: see `stock` there
            found.update(child(tmp_path_factory.mktemp("stock"), models, "--stock", *cases))
        return found[case]

    return answers


@pytest.mark.parametrize("case", forms(ENDED, *SHORT))
def test_answers_are_those_of_stock_vllm(case: str, stock: Callable[[str], list[Any]], models: Path, tmp_path: Path) -> None:
    least, right = ENDED[case], stock(case)
    found = child(tmp_path, models, case, "--least", str(least or 0))
    assert found["ended"] >= least if least is not None else found["ended"] == 0
    assert any("safepoints are off" in line for line in found["told"]) == (least is None), "what is off is said"
    assert len({str(answer) for answer in right}) == len(right)  # each prompt has an answer of its own
    for turn, answers in enumerate(found["answers"]):
        different = [number for number, pair in enumerate(zip(answers, right, strict=True)) if pair[0] != pair[1]]
        assert different == [], f"turn {turn}: {len(different)} of {len(answers)} answers differ"


def test_a_pooling_model_gives_the_embeddings_of_stock_vllm_to_requests_and_rows(
    stock: Callable[[str], list[Any]], models: Path, tmp_path: Path
) -> None:
    found = child(tmp_path, models, "embed")
    assert found["ended"] == 0
    for answers in found["answers"]:
        for ours, theirs in zip(answers, stock("embed"), strict=True):
            assert _apart(ours, theirs) < CLOSE
    _check_rows(found["texts"])


def _check_rows(found: dict[str, Any]) -> None:
    """Rows of a job, alone and beside a client's requests, have the vectors that the client gets, and those of the library."""
    right = found["transformers"]
    assert len({str(vector) for vector in right}) == len(right), "each text has a vector of its own"
    assert found["gives"] == ["embedding"]
    for rows, asked in (("rows", "asked"), ("rows beside", "asked beside")):
        for row, answer, vector in zip(found[rows], found[asked], right, strict=True):
            assert row["status"] == "ok", row["error_message"]
            assert _apart(row["values"]["embedding"], vector) < CLOSE
            assert _apart(answer["data"][0]["embedding"], vector) < CLOSE
            assert row["usage"]["prompt_tokens"] == answer["usage"]["prompt_tokens"] > 0
            assert row["usage"]["output_tokens"] == 0
    assert (found["long"]["status"], found["long"]["error_code"]) == ("error", "text_too_long")


def _apart(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))
