"""Engines of the verification that vLLM starts or refuses: KV blocks for several groups of layers, and what is kept of a refusal."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harvester.config import parse_config
from harvester.engine.embedded import embedded_model
from harvester.engine.launch.profiles import profile_path
from harvester.engine.shared.state import SharedState
from harvester.engine.verify import kept
from harvester.engine.verify.answers import Stock
from harvester.engine.verify.subject import CONTEXT_TOKENS, Subject, few_blocks
from harvester.errors import ConfigError, EngineError, EngineStartError
from tests.fakes.virtual_loop import run_virtually

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    from harvester.engine.verify import tokens, whole
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


SUBJECT = Subject(parse_config({}, "test"), str(embedded_model()), embedded=True, cpu=True)
WORKS: dict[str, Callable[[], object]] = {
    "stock": lambda: stock_tokens(SUBJECT),
    "pressed": lambda: pressed_tokens(SUBJECT, 16, 190),
    "timed": lambda: whole.measure(SUBJECT),
}


class Worked(Exception):
    """The engine was asked for something."""


@pytest.fixture
def slow_engine(monkeypatch: pytest.MonkeyPatch) -> Callable[[float, float], None]:
    """Replace the engines by one that takes so many seconds to start and so many for each thing it is asked, in virtual time."""

    def replace(start_s: float, work_s: float) -> None:
        async def work(*_: object, **__: object) -> None:
            await asyncio.sleep(work_s)
            raise Worked

        @asynccontextmanager
        async def engine(values: object, shared: SharedState | None = None) -> AsyncIterator[Any]:
            await asyncio.sleep(start_s)
            try:
                yield SimpleNamespace(on_workers=work)
            finally:
                if shared is not None:
                    shared.remove()

        monkeypatch.setattr(asyncio, "run", run_virtually)
        for module in (whole, tokens):
            monkeypatch.setattr(module, "engine", engine)
        monkeypatch.setattr(tokens, "prompts", lambda llm: [[1]])
        for name in ("ask", "_turn"):
            monkeypatch.setattr(tokens, name, work)

    return replace


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
def test_an_engine_that_downloads_loads_or_compiles_for_hours_is_waited_for(
    work: Callable[[], object], slow_engine: Callable[[float, float], None]
) -> None:
    slow_engine(7200.0, 60.0)
    with pytest.raises(Worked):
        work()


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
def test_an_engine_that_started_and_hangs_is_given_up_in_one_line(
    work: Callable[[], object], slow_engine: Callable[[float, float], None]
) -> None:
    slow_engine(1.0, 7200.0)
    with pytest.raises(EngineError, match=r"did not do its work within 600 s"):
        work()
