"""Prompts of models with recurrent layers, whose KV blocks are wide: each step that has tokens left computes some of them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from harvester.config import parse_config
from harvester.engine.core import profile
from harvester.engine.embedded.folder import embedded_model
from harvester.engine.shared.settings import pack
from harvester.policy.model.latency import LatencyModel
from harvester.policy.model.load import StepLoad

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    from bench.harness.engine.drive import Drive
    from harvester.engine.vllm.core import bounds
    from harvester.engine.vllm.core.scheduler import AsyncHarvestScheduler, HarvestScheduler

pytestmark = pytest.mark.engine

BLOCK = 544  # tokens, as of Qwen3-Next
PROMPT = 6000  # tokens: eleven blocks and some


class Known(LatencyModel):
    """Every step takes 6 ms and 40 us for each of its tokens."""

    ready = True
    margin = 1.0

    def predict(self, load: StepLoad) -> float:
        return 0.006 + 40e-6 * load.tokens

    def margin_at(self, seconds: float) -> float:
        return 1.0

    def knows(self, load: StepLoad) -> bool:
        return True

    def observe(self, *args: Any) -> None:
        pass


@pytest.fixture
def drive_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Drive]:
    monkeypatch.setattr(profile, "LatencyModel", Known)

    def made(sections: dict[str, Any], kind: type = HarvestScheduler, step_tokens: int = 2048) -> Drive:
        packed = pack(parse_config(sections, "test"))
        drive = Drive(embedded_model(), kind, 2000, 256, BLOCK, packed, model_tokens=8000, step_tokens=step_tokens)
        drive.scheduler.need_mamba_block_aligned_split = True
        return drive

    return made


def computed(drive: Drive, name: str, most: int = 60) -> list[int]:
    """Tokens of the prompt that are computed after each step, until all of them are."""
    found = []
    for _ in range(most):
        drive.step()
        found.append(drive.requests[name].num_computed_tokens)
        if found[-1] >= PROMPT:
            return found
    pytest.fail(f"after {most} steps {found[-1]} tokens of the prompt are computed")


def check(ends: list[int]) -> None:
    """No step without a token, and a recurrent state wherever vLLM caches one: at the end of each block."""
    assert all(first < second for first, second in pairwise([0, *ends]))
    assert set(range(BLOCK, PROMPT, BLOCK)) <= set(ends)


@pytest.mark.parametrize("kind", [HarvestScheduler, AsyncHarvestScheduler])
@pytest.mark.parametrize("late_s", [0.0, 10.0], ids=["in-time", "late"])
def test_a_chat_prompt_is_computed_where_the_slo_leaves_it_less_than_a_block(
    drive_of: Callable[..., Drive], kind: type, late_s: float
) -> None:
    drive = drive_of({"slo": {"ttft_slo_ms": 3000.0, "tpot_slo_ms": 30.0}}, kind)
    for number in range(150):
        drive.add(f"chat-{number}", 20, 4000, offline=False, arrived_s=time.time())
    for _ in range(6):
        drive.step()
    drive.add("chat", PROMPT, 20, offline=False, arrived_s=time.time() - late_s)
    check(computed(drive, "chat"))


def test_a_prompt_of_a_row_is_computed_where_chat_leaves_it_less_than_a_block(drive_of: Callable[..., Drive]) -> None:
    share = {"offline_step_tokens": 400, "reserved_slots": 0, "reserved_kv": 0.0}
    drive = drive_of({"schedule": {"budget": "fixed", "reserve": "fixed"}, "share": share})
    for number in range(150):
        drive.add(f"chat-{number}", 20, 4000, offline=False, arrived_s=time.time())
    for _ in range(6):
        drive.step()
    drive.add("row", PROMPT, 20, offline=True)
    check(computed(drive, "row"))


def test_a_prompt_is_computed_where_decodes_leave_less_than_a_block_of_the_largest_step(drive_of: Callable[..., Drive]) -> None:
    drive = drive_of({}, step_tokens=600)
    for number in range(150):
        drive.add(f"chat-{number}", 20, 4000, offline=False)
    for _ in range(6):
        drive.step()
    drive.add("chat", PROMPT, 20, offline=False)
    check(computed(drive, "chat"))


@pytest.mark.parametrize(("first_tokens", "step_tokens"), [(1900, 2048), (5900, 5800)], ids=str)
def test_a_chat_prompt_at_the_end_of_a_step_that_others_filled_takes_no_more_steps_than_under_vllm(
    drive_of: Callable[..., Drive], monkeypatch: pytest.MonkeyPatch, first_tokens: int, step_tokens: int
) -> None:
    def steps() -> list[int]:
        drive = drive_of({}, step_tokens=step_tokens)
        drive.add("first", first_tokens, 20, offline=False)
        drive.add("chat", PROMPT, 20, offline=False)
        return computed(drive, "chat")

    found = steps()
    monkeypatch.setattr(bounds.Chunks, "tokens", lambda _self, _scheduler, _request, _start, _tokens, split: split())
    assert found == steps()


def test_a_row_prompt_uses_the_end_of_a_step_that_others_filled(drive_of: Callable[..., Drive]) -> None:
    drive = drive_of({}, step_tokens=8000)
    drive.add("first", 7700, 20, offline=True)
    drive.add("row", PROMPT, 20, offline=True)
    assert computed(drive, "row")[0] == 8000 - 14 * BLOCK, "the first one's chunk ends with its last whole block"


def test_a_chat_prompt_that_others_leave_less_than_a_block_in_each_step_waits_for_one_of_them(drive_of: Callable[..., Drive]) -> None:
    """Shorter prompts have their turn first."""
    drive = drive_of({})
    drive.add("chat", PROMPT, 20, offline=False)
    ends = []
    for number in range(3):
        drive.add(f"first-{number}", 1900, 1, offline=False)
        drive.step()
        ends.append(drive.requests["chat"].num_computed_tokens)
    assert ends == [0, 2048 - 268 - 3 * BLOCK, BLOCK], "left: 416 tokens, and then 148 beside the end of one prompt and the next one"


def test_a_chunk_that_holds_a_block_ends_with_one(drive_of: Callable[..., Drive]) -> None:
    drive = drive_of({})
    drive.add("chat", PROMPT, 20, offline=False)
    assert computed(drive, "chat") == [3 * BLOCK, 6 * BLOCK, 9 * BLOCK, 11 * BLOCK, PROMPT], "as under vLLM alone"
