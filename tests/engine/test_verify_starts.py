"""Engines of the verification that vLLM starts or refuses: KV blocks for several groups of layers, and what is kept of a refusal."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harvester.config import parse_config
from harvester.engine.embedded import embedded_model
from harvester.engine.launch.profiles import profile_path
from harvester.engine.verify import kept
from harvester.engine.verify.answers import Stock
from harvester.engine.verify.subject import CONTEXT_TOKENS, Subject, few_blocks
from harvester.errors import ConfigError, EngineError, EngineStartError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    from harvester.engine.verify import whole
    from harvester.engine.verify.tokens import pressed_tokens, stock_tokens
    from harvester.engine.vllm.frontend.client import HarvestLLM

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("block_tokens", [16, 32, 128])
@pytest.mark.parametrize("longest_tokens", [150, 190, 240])
def test_a_model_of_one_group_has_kv_for_four_of_the_longest_requests(block_tokens: int, longest_tokens: int) -> None:
    four = 4 * -(-longest_tokens // block_tokens)
    assert few_blocks(CONTEXT_TOKENS // block_tokens, longest_tokens) == max(four, CONTEXT_TOKENS // block_tokens) + 2


@pytest.mark.parametrize(
    ("request_blocks", "longest_tokens", "blocks"),
    [(32 + 6 * 33, 190, 4 * 86 + 2), (32 + 25, 190, 4 * 22 + 2), (1 + 3 * 2, 190, 4 * 3 + 2), (200, 60, 200 + 2)],
    ids=["gemma-3-1b", "gpt-oss-20b", "qwen3-next", "short prompts"],
)
def test_a_model_of_several_groups_has_blocks_of_all_of_them(request_blocks: int, longest_tokens: int, blocks: int) -> None:
    assert few_blocks(request_blocks, longest_tokens) == blocks
    assert blocks - 1 >= request_blocks, "vLLM starts: it wants those of one request, and keeps a block for itself"


@pytest.mark.parametrize(
    ("blocks", "requests", "found", "kv_tokens"),
    [(2240, 10.0, 224, 5120), (1000, 1000 / 57, 57, 8982), (1000, 1000 / 16, 16, 16_000), (0, None, None, 0), (80, None, None, 1280)],
    ids=["seven groups", "two groups", "one group with a window", "not known", "concurrency not known"],
)
def test_an_engine_tells_the_blocks_that_a_request_holds(blocks: int, requests: float | None, found: int | None, kv_tokens: int) -> None:
    cache = SimpleNamespace(block_size=16, num_gpu_blocks=blocks, kv_cache_max_concurrency=requests)
    step = SimpleNamespace(max_num_batched_tokens=128, max_num_seqs=12)
    model = SimpleNamespace(max_model_len=512, get_vocab_size=lambda: 4096)
    llm = SimpleNamespace(vllm_config=SimpleNamespace(scheduler_config=step, cache_config=cache), model_config=model)
    sizes = HarvestLLM.sizes.fget(llm)  # type: ignore[attr-defined]
    assert (sizes.request_blocks, sizes.kv_tokens) == (found, kv_tokens)


def verified(answers: Mapping[Any, Any], state: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], Any]:
    """What the verification says and what a later server keeps on; ``answers``: of each engine, by what is run in it."""

    def run(work: Callable[..., Any], *given: Any, log: Path) -> Any:
        if isinstance(answers[work], Exception):
            raise answers[work]
        return answers[work]

    monkeypatch.setattr(whole, "run_in_process", run)
    subject = Subject(parse_config({"checkpoint": {"enabled": True}}, "test"), str(embedded_model()), embedded=True, cpu=True)
    found = whole.verify(subject, state / "log", lambda said: None, state)
    return found, kept.fitted(subject.config, kept.read(profile_path(state, subject.name, subject.model, subject.config)))


@pytest.mark.parametrize("error", [EngineStartError("vLLM did not start"), ConfigError("refused")], ids=["start", "refused"])
def test_an_engine_that_does_not_start_turns_nothing_off(error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {stock_tokens: Stock([], [], 0.0, 32, 190), pressed_tokens: error, whole.measure: error}
    found, config = verified(answers, tmp_path, monkeypatch)
    assert [one["ok"] for one in found["parts"]] == [None] * 4
    assert not found["ok"], "nothing was found right"
    assert all(str(error) in one["said"] for one in found["parts"])
    assert (config.schedule.safepoints, config.schedule.budget, config.checkpoint.enabled) == ("auto", "slo", True)


def test_an_engine_that_dies_fails_its_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = EngineError("the vLLM engine died")
    answers = {stock_tokens: Stock([], [], 0.0, 32, 190), pressed_tokens: error, whole.measure: error}
    found, config = verified(answers, tmp_path, monkeypatch)
    assert [one["ok"] for one in found["parts"]] == [False] * 4
    assert (config.schedule.safepoints, config.schedule.budget, config.checkpoint.enabled) == ("off", "fixed", False)
