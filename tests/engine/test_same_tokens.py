"""A real engine whose steps of offline work end at random layers, hundreds of times, answers token for token what stock vLLM answers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.child import Mode, child, forms

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1600)]

COMPILED: dict[str, Any] = {"enforce_eager": False}
TWO_RANKS: dict[str, Any] = {"tensor_parallel_size": 2}
MODES: dict[str, tuple[Mode, float, int]] = {  # probability that a step ends, and how many are to end at least
    "eager": (Mode(), 0.7, 400),
    "eager, two steps in flight": (Mode(depth=2), 0.7, 400),
    "compiled": (Mode(COMPILED), 0.6, 300),
    "compiled, two steps in flight": (Mode(COMPILED, depth=2), 0.6, 300),
    "tensor parallel": (Mode(TWO_RANKS, ranks=2), 0.5, 300),
    "tensor parallel, two steps in flight": (Mode(TWO_RANKS, depth=2, ranks=2), 0.5, 300),
    "runner V2, two steps in flight": (Mode(depth=2, words=("--short",), runner_v2=True), 0.6, 10),
}


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> list[list[list[int]]]:
    tokens: list[list[list[int]]] = child("tokens_child", tmp_path_factory.mktemp("stock"), "--stock")["tokens"]
    return tokens


@pytest.mark.parametrize("name", forms(MODES, "eager, two steps in flight"))
def test_tokens_are_those_of_stock_vllm_however_often_steps_end_early(
    name: str, stock: list[list[list[int]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    mode, chaos, least = MODES[name]
    found = child("tokens_child", tmp_path_factory.mktemp("ours"), "--chaos", str(chaos), "--least", str(least), mode=mode)
    assert found["ended"] >= least
    for turn, ours in enumerate(found["tokens"]):
        theirs = stock[min(turn, len(stock) - 1)]
        different = [number for number, tokens in enumerate(ours) if not tokens or tokens != theirs[number][: len(tokens)]]
        assert different == [], f"turn {turn}: {len(different)} of {len(ours)} answers differ"
