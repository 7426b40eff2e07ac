"""Which steps of vLLM's scheduler count as a gap between two tokens of a chat."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from harvester.engine.embedded.folder import embedded_model

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    from bench.harness.engine.drive import Drive
    from harvester.engine.vllm.core.scheduler import AsyncHarvestScheduler, HarvestScheduler

pytestmark = pytest.mark.engine


def drive_of(kind: type) -> Drive:
    return Drive(embedded_model(), kind, 1000, 8, 16, {"share": {}, "schedule": {"safepoints": "off"}}, step_tokens=64)


def counted(drive: Drive) -> tuple[int, int]:
    times = drive.scheduler._brain.chat_times
    return times.first_tokens, times.gaps


@pytest.mark.parametrize("kind", [HarvestScheduler, AsyncHarvestScheduler])
def test_the_chunks_of_a_prompt_are_no_gaps(kind: type) -> None:
    drive = drive_of(kind)
    drive.add("chat", 150, 4, offline=False)
    seen = []
    while "chat" not in drive.finished:
        drive.step()
        seen.append(counted(drive))
    assert seen == [(0, 0), (0, 0), (1, 0), (1, 1), (1, 2), (1, 3)]


def test_a_token_that_follows_one_in_flight_is_a_gap() -> None:
    drive = drive_of(AsyncHarvestScheduler)
    drive.add("chat", 20, 4, offline=False)
    flying: list[Any] = [drive.schedule()]
    for _ in range(3):
        flying.append(drive.schedule())  # while the first token is not known yet
        drive.update(flying.pop(0))
    drive.update(flying.pop())
    assert drive.finished == {"chat": 4}
    assert counted(drive) == (1, 3)


def test_a_chat_that_lost_its_kv_has_one_gap_until_its_next_token() -> None:
    drive = drive_of(HarvestScheduler)
    drive.add("chat", 150, 6, offline=False)
    for _ in range(4):
        drive.step()
    assert counted(drive) == (1, 1)
    scheduler = drive.scheduler
    scheduler._preempt_request(scheduler.running.pop(), 0.0)
    assert scheduler.kv_cache_manager.reset_prefix_cache()
    seen = []
    while "chat" not in drive.finished:
        drive.step()
        seen.append(counted(drive))
    assert seen == [(1, 1), (1, 1), (1, 2), (1, 3), (1, 4), (1, 5)]
