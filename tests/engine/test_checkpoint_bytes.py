"""Every byte of KV that a request reads is its own, whatever happens to its blocks; and nothing is left behind."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tests.fakes.kv_drive import BLOCK, KvDrive
from tests.fakes.lagging_device import LaggingDevice

pytestmark = pytest.mark.engine

PATIENCE = 20  # at most so many times the requests that nearly always suffice


@pytest.fixture(scope="module")
def model() -> Path:
    from harvester.engine.embedded import embedded_model

    return embedded_model()


@pytest.fixture
def drive(model: Path) -> Iterator[Callable[..., KvDrive]]:
    made: list[KvDrive] = []

    def make(blocks: int, host_blocks: int = 200, depth: int = 1, device: LaggingDevice | None = None, **chances: Any) -> KvDrive:
        made.append(KvDrive(model, blocks, host_blocks, depth=depth, device=device, **chances))
        return made[-1]

    yield make
    for one in made:
        one.close()


def work_off(
    drive: KvDrive,
    requests: int,
    max_tokens: int = 5 * BLOCK,
    output: int = 40,
    online_every: int = 6,
    enough: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Work off requests, half of them with a prefix in common, some of them online, the others offline.

    Adds more than ``requests`` until each event named in ``enough`` has happened that often by `KvDrive.happened`. How often an event
    happens depends on how fast the thread copies.
    """
    rng = random.Random(1)
    shared = [rng.randrange(1000) for _ in range(max_tokens)]
    given, most = 0, requests
    while given < most or drive.live:
        while given < most and len(drive.live) < 12:
            prompt = shared[: rng.randrange(max_tokens) * (given % 2)] + [rng.randrange(1000) for _ in range(rng.randrange(1, max_tokens))]
            drive.add(prompt, rng.randrange(1, output), offline=given % online_every != online_every - 1)
            given += 1
        drive.step()
        if given == most < PATIENCE * requests and lacking(drive, enough):
            most += 1
    drive.settle()
    assert not lacking(drive, enough), f"in {given} requests: {drive.happened()}"


def lacking(drive: KvDrive, enough: Mapping[str, int]) -> set[str]:
    happened = drive.happened()
    return {event for event, times in enough.items() if happened[event] < times}


CHANCES = {
    "preempted": {"preempt": 0.1},
    "preempted and steps that end early": {"preempt": 0.1, "end": 0.3},
    "cancelled": {"preempt": 0.1, "cancel": 0.01},
    "spoilt host memory": {"preempt": 0.1, "spoil": 0.5},
    "reset": {"preempt": 0.1, "reset": 0.05},
    "everything": {"preempt": 0.1, "end": 0.2, "cancel": 0.005, "spoil": 0.2, "reset": 0.02},
}

ENOUGH = {"preempt": 301, "end": 41, "cancel": 10, "spoil": 2, "reset": 2, "read back": 100}


@pytest.mark.parametrize("lags", [False, True], ids=["a thread copies", "a device copies"])
@pytest.mark.parametrize(("host_blocks", "depth"), [(200, 1), (12, 2)], ids=["host memory enough", "host memory short, two in flight"])
@pytest.mark.parametrize("chances", CHANCES.values(), ids=CHANCES)
def test_no_request_reads_kv_that_is_not_its_own(
    drive: Callable[..., KvDrive], chances: dict[str, float], host_blocks: int, depth: int, lags: bool
) -> None:
    one = drive(60, host_blocks, depth, LaggingDevice(random.Random(2)) if lags else None, **chances)
    work_off(one, 300, enough={event: ENOUGH[event] for event in ("read back", *chances)})
    assert one.planner.pool.used == 0


def test_long_prompts_in_chunks_with_a_prefix_in_common_read_their_own_kv_when_steps_end_early(drive: Callable[..., KvDrive]) -> None:
    one = drive(60, 400, preempt=0.1, end=0.5)
    work_off(one, 150, 14 * BLOCK, enough={"end": 101})
    assert one.planner.pool.used == 0


def test_what_is_read_back_behind_a_prefix_that_was_never_written_is_thrown_away(
    drive: Callable[..., KvDrive], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that lost its KV is given a prefix that another one computes in the same step, and reads the rest; then that step ends."""
    one = drive(20)
    one.in_step(monkeypatch, 0.001)  # all of it is on the host before it is lost
    prefix = [7] * (4 * BLOCK)
    lost = one.add([*prefix, *range(5 * BLOCK)], 40, offline=True, job="first")
    request = one.live[lost]
    for _ in range(2 * BLOCK):
        one.step()
    one.scheduler.running.remove(request)
    one.scheduler._preempt_request(request, 0.0)
    assert one.scheduler.kv_cache_manager.reset_prefix_cache()  # what is on the host stays
    one.add([*prefix, *range(1000, 1000 + BLOCK)], 4, offline=True, job="second")
    one.chances["end"] = 1.0
    for _ in range(10):
        if request.status.name != "WAITING_FOR_REMOTE_KVS":
            one.step()
    assert request.status.name == "WAITING_FOR_REMOTE_KVS"
    assert request.num_computed_tokens == 0, "it was given a prefix that is not there"
    one.chances["end"] = 0.0
    one.settle()  # there is KV for one such request and a half: nothing is kept for one that begins anew
    assert one.finished == 2


def test_a_prefix_that_another_request_was_to_compute_in_a_step_that_ends_is_not_saved(
    drive: Callable[..., KvDrive], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two are admitted in a step, one with the prefix that the other computes in it, and loses its KV before that step has ended early."""
    one = drive(60, depth=2)
    one.in_step(monkeypatch, 0.001)
    prefix = [7] * (2 * BLOCK)
    first, second = (one.live[one.add([*prefix, *range(1000 * n, 1000 * n + BLOCK)], 4, offline=True)] for n in (1, 2))
    one.chances["end"] = 1.0
    one.step()
    assert first.num_in_flight_tokens == 3 * BLOCK
    assert second.num_in_flight_tokens == BLOCK, "the prefix is not its own work"
    one.scheduler.running.remove(second)
    one.scheduler._preempt_request(second, 0.0)
    one.step()
    assert one.ended == 1
    one.chances["end"] = 0.0
    one.cancel(first.request_id)  # the second one looks for the prefix on the host
    one.settle()
    assert one.finished == 1


def test_online_requests_swap_their_kv_by_turns_and_read_their_own(drive: Callable[..., KvDrive], monkeypatch: pytest.MonkeyPatch) -> None:
    from harvester.engine.shared.state import Count

    one = drive(30)
    one.in_step(monkeypatch, 0.001)  # how much is copied is then not the machine's affair
    work_off(one, 300, output=80, online_every=1)
    assert one.shared.count(Count.SWAPPED) > 0
    assert one.shared.count(Count.UNCOVERED_TOKENS) < 0.1 * one.shared.count(Count.LOST_TOKENS)
    assert one.planner.pool.used == 0


@pytest.mark.parametrize("wait_blocks", [100, 2], ids=["what is missing is saved at once", "more is missing than a step waits for"])
def test_a_chat_whose_first_token_is_late_finds_kv_though_nothing_was_copied_ahead(
    drive: Callable[..., KvDrive], monkeypatch: pytest.MonkeyPatch, wait_blocks: int
) -> None:
    """Long answers hold all KV, and no step has slack for copies: the chat waits for the copies that make room."""
    from harvester.policy.kv import policy

    one = drive(30)
    one.in_step(monkeypatch, 0.01)
    limits: Any = policy
    limit_blocks = limits.limit_blocks
    monkeypatch.setattr(policy, "limit_blocks", lambda *given, online, cost: 0 if online else limit_blocks(*given, False, cost))
    one.scheduler._brain.parts.kv._wait_blocks = wait_blocks
    for _ in range(4):
        one.add([one.rng.randrange(1000) for _ in range(5 * BLOCK)], 8 * BLOCK, offline=False)
    while one.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() > 1:
        one.step()
    for number in range(8):
        one.scheduler._brain.parts.online.ran(list(one.live), 0.01, one.now_s() + 0.01 * number)
    assert all(one.planner.saved(name) == 0 for name in one.live)
    chat = one.live[one.add([one.rng.randrange(1000) for _ in range(3 * BLOCK)], 4, offline=False)]
    for _ in range(12):
        one.step()
    assert chat.num_output_tokens == 4
    one.settle()
    assert one.finished == 5


def test_ten_thousand_requests_leave_nothing_on_the_host_and_nothing_in_flight(drive: Callable[..., KvDrive]) -> None:
    one = drive(60, 100, preempt=0.02, cancel=0.002, end=0.05, spoil=0.01)
    work_off(one, 10_000, BLOCK, 12)
    planner = one.planner
    assert (planner.pool.used, planner.pool.owners) == (0, 0)
    for kept in (planner.jobs, planner.requests, planner._tails, planner._victims, planner._being_loaded):
        assert not kept
    assert not one.copier.transfers.jobs
    assert not one.scheduler._checkpoints._lost
    assert one.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == 59
