"""The scheduler on a real vLLM scheduler's state, without a model: who is admitted, paused and preempted, step by step.

Each promise to an online arrival stands beside what vLLM's own ``priority`` policy does in the same state: it is why there is a scheduler
of ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harvester.policy.view import PolicyConfig

if TYPE_CHECKING:
    from bench.harness.engine.drive import Drive

pytestmark = pytest.mark.engine

BLOCK = 16
SLOTS = 8
LIMITS = PolicyConfig(reserved_slots=2, reserved_kv=0.1, offline_step_tokens=64, reserve_s=math.inf)
NO_RESERVE = PolicyConfig(reserved_slots=0, reserved_kv=0.0, offline_step_tokens=1000)
WHILE_CHAT = PolicyConfig(reserved_slots=2, reserved_kv=0.1, offline_step_tokens=64, reserve_s=60.0)


def drive_of(model: Path, kind: type, blocks: int, limits: PolicyConfig) -> Drive:
    from bench.harness.engine.drive import Drive

    share = {
        "reserved_slots": limits.reserved_slots,
        "reserved_kv": limits.reserved_kv,
        "offline_step_tokens": limits.offline_step_tokens,
        "reserve_s": limits.reserve_s,
    }
    schedule = {"budget": "fixed", "reserve": "fixed", "safepoints": "off", "online_order": "fcfs", "admission": "worst"}
    return Drive(model, kind, blocks, SLOTS, BLOCK, {"share": share, "schedule": schedule})


@pytest.fixture
def harvest(model: Path) -> Callable[..., Drive]:
    from harvester.engine.vllm.core.scheduler import HarvestScheduler

    return lambda blocks=1000, limits=LIMITS: drive_of(model, HarvestScheduler, blocks, limits)


@pytest.fixture
def stock(model: Path) -> Callable[..., Drive]:
    from vllm.v1.core.sched.scheduler import Scheduler

    return lambda blocks=1000, limits=LIMITS: drive_of(model, Scheduler, blocks, limits)


# -- an online arrival --------------------------------------------------------------------------------------------------------------


def fill_slots(drive: Drive) -> None:
    """More offline work than there are slots, running."""
    for i in range(SLOTS + 4):
        drive.add(f"off-{i}", 40, 500, offline=True)
    for _ in range(5):
        drive.step()


@pytest.mark.parametrize("limits", [LIMITS, NO_RESERVE], ids=["reserve", "no-reserve"])
def test_with_every_slot_it_may_use_held_by_offline_work_an_arrival_runs_in_the_next_step(
    harvest: Callable[..., Drive], limits: PolicyConfig
) -> None:
    drive = harvest(limits=limits)
    fill_slots(drive)
    assert len(drive.running) == SLOTS - limits.reserved_slots
    drive.add("on", 100, 10, offline=False)
    assert drive.step()["on"] == 100


def test_with_every_slot_held_by_low_priority_the_stock_scheduler_lets_an_arrival_wait(stock: Callable[..., Drive]) -> None:
    drive = stock()
    fill_slots(drive)
    assert len(drive.running) == SLOTS
    drive.add("on", 100, 10, offline=False)
    assert not any("on" in drive.step() for _ in range(100))


def fill_kv(drive: Drive) -> None:
    """Offline requests of 12 blocks each in a pool of 60, running."""
    for i in range(SLOTS):
        drive.add(f"off-{i}", 11 * BLOCK, BLOCK, offline=True)
    for _ in range(3):
        drive.step()


@pytest.mark.parametrize("blocks", [4, 20], ids=["within-the-reserve", "beyond-the-reserve"])
@pytest.mark.parametrize("limits", [LIMITS, NO_RESERVE], ids=["reserve", "no-reserve"])
def test_with_the_kv_nearly_full_of_offline_work_an_arrival_runs_in_the_next_step(
    harvest: Callable[..., Drive], limits: PolicyConfig, blocks: int
) -> None:
    drive = harvest(blocks=60, limits=limits)
    fill_kv(drive)
    assert drive.free_blocks < 20
    drive.add("on", blocks * BLOCK, 10, offline=False)
    assert drive.step()["on"] == blocks * BLOCK


def test_with_the_kv_nearly_full_of_low_priority_the_stock_scheduler_lets_an_arrival_wait(stock: Callable[..., Drive]) -> None:
    drive = stock(blocks=60)
    fill_kv(drive)
    drive.add("on", 20 * BLOCK, 10, offline=False)
    assert "on" not in drive.step()


def bring_to_a_step_that_lacks_a_block(drive: Drive) -> None:
    """Three chats that each need a block in the next step, two blocks free, the rest held by offline work."""
    for i in range(3):
        drive.add(f"chat-{i}", 20, 200, offline=False)
    drive.step()
    for i in range(3):
        drive.add(f"off-{i}", 9 * BLOCK + 1, 15, offline=True)  # of 10 blocks from the first step to the last
    drive.step()
    while drive.requests["chat-0"].num_computed_tokens < 2 * BLOCK:
        drive.step()
    assert drive.free_blocks == 2
    assert len(drive.running) == 6


TIGHT_BLOCKS = 1 + 3 * 2 + 3 * 10 + 2  # vLLM keeps one block for itself


def test_in_a_step_that_must_preempt_an_arrival_runs_all_the_same(harvest: Callable[..., Drive]) -> None:
    drive = harvest(blocks=TIGHT_BLOCKS, limits=NO_RESERVE)
    bring_to_a_step_that_lacks_a_block(drive)
    drive.add("on", BLOCK, 10, offline=False)
    tokens = drive.step()
    assert tokens["on"] == BLOCK
    assert {"chat-0", "chat-1", "chat-2"} <= set(tokens)
    assert drive.requests["off-2"].num_preemptions == 1  # the newest, and no other
    assert [drive.requests[f"off-{i}"].num_preemptions for i in range(2)] == [0, 0]


def test_in_a_step_that_must_preempt_the_stock_scheduler_admits_nobody(stock: Callable[..., Drive]) -> None:
    drive = stock(blocks=TIGHT_BLOCKS)
    bring_to_a_step_that_lacks_a_block(drive)
    drive.add("on", BLOCK, 10, offline=False)
    assert "on" not in drive.step()
    assert drive.requests["off-2"].num_preemptions == 1


def test_a_plan_that_lets_nothing_run_while_chat_waits_costs_one_step_and_not_the_chat(
    harvest: Callable[..., Drive], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were the plan's view of the KV wrong, prompts left out of the step would hold for ever what the arrival needs."""
    from harvester.policy import brain
    from harvester.policy.step.view import StepPlan

    drive = harvest(blocks=60, limits=NO_RESERVE)
    fill_kv(drive)
    drive.add("on", 40 * BLOCK, 4, offline=False)
    held = len(drive.running)
    monkeypatch.setattr(brain, "plan_step", lambda view, *_: StepPlan((), tuple(range(len(view.running))), (), None, 0, 0))
    assert drive.step() == {}
    assert len(drive.running) == held
    drive.step()
    assert len(drive.running) == held - 1
    assert any("on" in drive.step() for _ in range(held))


def test_an_arrival_that_preempts_is_told_to_the_workers(harvest: Callable[..., Drive]) -> None:
    drive = harvest(limits=NO_RESERVE)
    fill_slots(drive)
    drive.add("on", 10, 10, offline=False)
    assert drive.schedule().preempted_req_ids == {"off-7"}


# -- offline work -------------------------------------------------------------------------------------------------------------------


def test_offline_work_never_takes_the_reserved_slots(harvest: Callable[..., Drive]) -> None:
    drive = harvest()
    for i in range(30):
        drive.add(f"off-{i}", 40, 5, offline=True)
    most = 0
    while len(drive.finished) < 30:
        drive.step()
        most = max(most, len(drive.running))
    assert most == SLOTS - LIMITS.reserved_slots


def test_without_chat_the_reserve_is_used_and_the_first_arrival_brings_it_back(harvest: Callable[..., Drive]) -> None:
    drive = harvest(limits=WHILE_CHAT)
    for i in range(20):
        drive.add(f"off-{i}", 40, 20, offline=True)
    drive.step()
    assert len(drive.running) == SLOTS
    drive.add("on", 40, 200, offline=False)
    assert drive.step()["on"] == 40
    most = 0
    while len(drive.finished) < 20:
        drive.step()
        if len(drive.finished) >= SLOTS:  # the first batch is gone
            most = max(most, len(drive.running))
    assert most <= SLOTS - WHILE_CHAT.reserved_slots


def test_offline_work_never_grows_into_the_reserved_kv(harvest: Callable[..., Drive]) -> None:
    drive = harvest(blocks=101)  # one of which vLLM keeps for itself
    for i in range(12):
        drive.add(f"off-{i}", 5 * BLOCK, 10 * BLOCK, offline=True)
    least = drive.free_blocks
    while len(drive.finished) < 12:
        drive.step()
        least = min(least, drive.free_blocks)
    assert 10 <= least < 30
    assert all(request.num_preemptions == 0 for request in drive.requests.values())


def test_an_idle_engine_takes_an_offline_request_that_is_larger_than_what_is_left_beside_the_reserve(harvest: Callable[..., Drive]) -> None:
    drive = harvest(blocks=100)
    drive.add("off", 80 * BLOCK, 15 * BLOCK, offline=True)
    drive.add("second", BLOCK, BLOCK, offline=True)
    assert drive.step() == {"off": 80 * BLOCK}


def test_beside_online_work_a_step_holds_a_bounded_number_of_offline_tokens(harvest: Callable[..., Drive]) -> None:
    drive = harvest()
    drive.add("on", 30, 50, offline=False)
    drive.step()
    for i in range(3):
        drive.add(f"off-{i}", 500, 50, offline=True)
    for _ in range(30):
        tokens = drive.step()
        assert tokens.pop("on") == 1
        assert sum(tokens.values()) <= LIMITS.offline_step_tokens


def test_without_online_work_offline_prompts_fill_the_step(harvest: Callable[..., Drive]) -> None:
    drive = harvest()
    drive.add("off-0", 1500, 5, offline=True)
    drive.add("off-1", 1500, 5, offline=True)
    assert sum(drive.step().values()) == 2048


def test_a_paused_offline_prompt_keeps_its_kv_blocks_and_goes_on_where_it_was(harvest: Callable[..., Drive]) -> None:
    drive = harvest()
    drive.add("chat", 30, 50, offline=False)
    drive.step()
    drive.add("off", 500, 5, offline=True)
    drive.step()
    held, computed = drive.blocks("off"), drive.requests["off"].num_computed_tokens
    assert 0 < computed < 500
    drive.add("on", 100, 5, offline=False)
    tokens = drive.step()
    assert "off" not in tokens
    assert tokens["on"] == 100
    assert drive.blocks("off") == held
    assert "off" in drive.running
    assert drive.step()["off"] > 0
    assert drive.requests["off"].num_computed_tokens > computed
    assert drive.blocks("off")[: len(held)] == held
    assert drive.requests["off"].num_preemptions == 0


def test_a_preempted_offline_request_comes_back_and_ends_with_all_its_tokens(harvest: Callable[..., Drive]) -> None:
    drive = harvest(limits=NO_RESERVE)
    fill_slots(drive)
    drive.add("on", 10, 3, offline=False)
    while len(drive.finished) < SLOTS + 5:
        drive.step()
    assert sum(request.num_preemptions for request in drive.requests.values()) == 1
    assert drive.finished == {f"off-{i}": 500 for i in range(SLOTS + 4)} | {"on": 3}


def test_a_step_that_ends_early_preempts_each_request_in_it_and_takes_no_token(harvest: Callable[..., Drive]) -> None:
    from vllm.v1.engine import EngineCoreEventType

    from harvester.engine.shared.steporder import ENDED_EARLY

    drive = harvest(limits=NO_RESERVE)
    for i in range(3):
        drive.add(f"off-{i}", 50, 4, offline=True)
    drive.step()
    output = drive.schedule()
    drive.sent(output)
    result = drive.output(output)
    result.sampled_token_ids = []
    setattr(result, ENDED_EARLY, True)
    drive.take(output, result)
    for request in drive.requests.values():
        assert [event.type for event in request.take_events() or ()] == [EngineCoreEventType.PREEMPTED]
        assert request.num_output_tokens == 1
    while len(drive.finished) < 3:
        drive.step()
    assert drive.finished == {f"off-{i}": 4 for i in range(3)}


def test_a_mixed_load_ends_whole_with_no_block_lost_and_no_online_request_preempted(harvest: Callable[..., Drive]) -> None:
    drive = harvest(blocks=80)
    free = drive.free_blocks
    for i in range(20):
        drive.add(f"off-{i}", 60 + 7 * i, 20 + i, offline=True)
    for i in range(10):
        for _ in range(4):
            drive.step()
        drive.add(f"on-{i}", 30 + 20 * i, 10, offline=False)
    for _ in range(2000):
        if len(drive.finished) == 30:
            break
        drive.step()
    assert drive.finished == {f"off-{i}": 20 + i for i in range(20)} | {f"on-{i}": 10 for i in range(10)}
    assert drive.free_blocks == free
    assert all(drive.requests[f"on-{i}"].num_preemptions == 0 for i in range(10))
    drive.step()  # tells the workers of the last ones that ended
    assert not drive.scheduler.has_requests()


def test_an_aborted_request_leaves_whatever_lane_it_is_in(harvest: Callable[..., Drive]) -> None:
    from vllm.v1.request import RequestStatus

    drive = harvest()
    free = drive.free_blocks
    for i in range(SLOTS):
        drive.add(f"off-{i}", 40, 50, offline=True)
    drive.step()
    drive.add("on", 40, 50, offline=False)
    drive.scheduler.finish_requests([*drive.requests], RequestStatus.FINISHED_ABORTED)
    assert (len(drive.scheduler.waiting), drive.running, drive.free_blocks) == (0, set(), free)
    assert drive.step() == {}


def test_a_step_without_tokens_leaves_no_plan_for_requests_in_another_order(harvest: Callable[..., Drive]) -> None:
    """With pipeline stages vLLM plans while a step is under way, and calls nothing for a step that got no tokens."""
    drive = harvest()
    for name in ("off-0", "off-1"):
        drive.add(name, 40, 500, offline=True)
    for _ in range(3):
        drive.step()
    drive.add("on", 100, 10, offline=False)
    begun = drive.schedule()
    drive.sent(begun)
    assert drive.schedule().total_num_scheduled_tokens == 0
    drive.update(begun)
    views = []
    brain = drive.scheduler._brain
    plan = brain.plan
    brain.plan = lambda view: views.append([row.name for row in view.running]) or plan(view)
    running = [request.request_id for request in drive.scheduler.running]
    drive.schedule()
    assert views == [running]


def test_an_engine_that_asks_for_no_masks_learns_from_its_steps_and_keeps_none(harvest: Callable[..., Drive]) -> None:
    """As vLLM does for pooling models with several steps under way."""
    drive = harvest()
    drive.add("off", 40, 500, offline=True)
    scheduler = drive.scheduler
    observed = []
    observe = scheduler._brain.observe
    scheduler._brain.observe = lambda *given: observed.append(given) or observe(*given)
    for _ in range(20):
        drive.update(drive.schedule())
    assert len(observed) >= 18
    assert len(scheduler._answered) <= 2


def test_one_step_of_asynchronous_scheduling_keeps_the_same_order(model: Path) -> None:
    from harvester.engine.vllm.core.scheduler import AsyncHarvestScheduler

    drive = drive_of(model, AsyncHarvestScheduler, 1000, LIMITS)
    for i in range(SLOTS):
        drive.add(f"off-{i}", 40, 500, offline=True)
    first = drive.schedule()
    drive.add("on", 100, 10, offline=False)
    second = drive.schedule()  # before the first step's output is there
    assert len(first.num_scheduled_tokens) == SLOTS - LIMITS.reserved_slots
    assert second.num_scheduled_tokens["on"] == 100
    assert second.total_num_scheduled_tokens == 100 + SLOTS - LIMITS.reserved_slots
    drive.update(first)
    drive.update(second)


# -- the waiting queue --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def lanes(harvest: Callable[..., Drive]) -> tuple[Any, dict[str, Any]]:
    """A queue in which ``on-1`` came before ``on-2``, and ``off-1`` before ``off-2``."""
    from harvester.engine.shared.settings import NO_SLO
    from harvester.engine.vllm.core.queue import WaitingQueue
    from harvester.engine.vllm.core.reads import row_of, waiting
    from harvester.policy.kv.groups import KvGroups
    from harvester.policy.order.offline import Fair

    drive = harvest()
    for name, tokens in (("off-1", 10), ("off-2", 20), ("on-1", 5), ("on-2", 5)):
        drive.add(name, tokens, 10, offline=name.startswith("off"))
    order, kv = Fair(), KvGroups.one(BLOCK)
    queue = WaitingQueue(order, lambda request: order.add(row_of(request, kv)), lambda request: waiting(request, kv, NO_SLO, 0.0))
    for name in ("on-2", "off-2", "off-1", "on-1"):
        queue.add_request(drive.requests[name])
    queue.rank({"on-1": 0, "on-2": 1})
    return queue, drive.requests


def popped(queue: Any) -> list[str]:
    names = []
    while queue:
        names.append(queue.peek_request().request_id)
        assert queue.pop_request().request_id == names[-1]
    return names


def test_the_queue_gives_online_requests_first_and_no_offline_one_that_is_not_admitted(lanes: tuple[Any, dict[str, Any]]) -> None:
    queue, _ = lanes
    assert popped(queue) == ["on-1", "on-2"]
    assert (bool(queue), len(queue)) == (False, 2)


@pytest.mark.parametrize("admitted", [("off-1", "off-2"), ("off-2", "off-1"), ("off-2",), ()], ids=lambda names: " ".join(names) or "none")
def test_the_queue_gives_the_offline_requests_that_are_admitted_in_their_order(
    lanes: tuple[Any, dict[str, Any]], admitted: tuple[str, ...]
) -> None:
    queue, _ = lanes
    queue.open(admitted)
    assert popped(queue) == ["on-1", "on-2", *admitted]
    assert len(queue) == 2 - len(admitted)


def test_what_is_admitted_and_gone_is_passed_over_and_nothing_is_given_once_the_step_is_over(lanes: tuple[Any, dict[str, Any]]) -> None:
    queue, requests = lanes
    queue.open(("off-1", "off-2"))
    queue.remove_request(requests["off-1"])
    queue.remove_requests([requests["on-1"], requests["on-2"]])
    assert queue.peek_request().request_id == "off-2"
    queue.close()
    assert not queue


def test_online_requests_go_by_their_rank(lanes: tuple[Any, dict[str, Any]]) -> None:
    queue, _ = lanes
    queue.rank({"on-2": 0, "on-1": 1})
    assert popped(queue) == ["on-2", "on-1"]


def test_an_online_request_without_a_rank_waits_until_it_has_one(lanes: tuple[Any, dict[str, Any]]) -> None:
    queue, _ = lanes
    queue.rank({"on-2": 0})
    queue.open(("off-1",))
    assert popped(queue) == ["on-2", "off-1"]
    assert [request.request_id for request in queue] == ["on-1", "off-2"]
    queue.rank({"on-1": 0})
    assert popped(queue) == ["on-1"]


def test_the_queue_counts_and_lists_all_that_wait_whatever_the_gate(lanes: tuple[Any, dict[str, Any]]) -> None:
    queue, _ = lanes
    assert len(queue) == 4
    assert [request.request_id for request in queue] == ["on-1", "on-2", "off-1", "off-2"]


def test_requests_are_removed_from_either_lane_and_unknown_ones_are_no_error(lanes: tuple[Any, dict[str, Any]]) -> None:
    queue, requests = lanes
    queue.remove_request(requests["on-1"])
    queue.remove_requests([requests["off-1"], requests["on-2"], requests["on-1"]])
    assert [request.request_id for request in queue] == ["off-2"]
    queue.remove_requests([])
    assert len(queue) == 1


def test_a_request_put_back_takes_its_old_place(lanes: tuple[Any, dict[str, Any]]) -> None:
    queue, _ = lanes
    first = queue.pop_request()
    queue.prepend_requests([first])
    queue.prepend_request(queue.pop_request())
    assert [request.request_id for request in queue] == ["on-1", "on-2", "off-1", "off-2"]
