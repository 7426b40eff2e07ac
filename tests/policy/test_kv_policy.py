"""Who gives KV up for whom, and how many blocks are copied beside a step: one `Checkpoints` over a few steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from harvester.policy.kv.checkpoint import CPU_COST, Holder, Thresholds, limit_blocks, waited_blocks
from harvester.policy.kv.policy import Checkpoints, CopyState
from harvester.policy.kv.victims import in_order_of_loss, victims
from harvester.policy.step.batch import batch_of
from harvester.policy.step.view import StepView
from harvester.policy.view import EngineView, Running
from harvester.policy.waiting import Waiting, WaitingOnline
from tests.policy.asked import room_for

RANKS = {"new": 0, "a": 1, "b": 2, "c": 3}
TURNS = {"new": 0.0, "a": 1.0, "b": 9.0, "c": 5.0}
COST = 0.5


def chat(name: str, blocks: int = 10, unsaved: int = 0) -> Running:
    return Running(name, False, 1, blocks, 0, 0, 16 * blocks, True, full_blocks=blocks, unsaved=unsaved)


def row(name: str) -> Running:
    return Running(name, True, 1, 10, 20, 0, 160, True, full_blocks=10)


def waiting(name: str, blocks: int) -> Waiting:
    return Waiting(name, 16 * blocks, blocks, 1.0)


def view(*running: Running, waits: tuple[Waiting, ...] = (), free: int = 2, loading: bool = False) -> EngineView:
    return EngineView(running, WaitingOnline(waits), free, 60, 8, 0.0, 16, loading_online=loading)


FULL = view(chat("a"), chat("b"), chat("c"), waits=(waiting("new", 12),))


def policy(wait_blocks: int | None = 4) -> Checkpoints:
    """The policy once its first step was planned."""
    made = Checkpoints(Thresholds(), COST, 5.0, wait_blocks)
    made.copies(view(), {}, 1.0, alone=True)
    return made


def stepped(made: Checkpoints, *at_s: float, block_s: float | None = None, holders: bool = True) -> Checkpoints:
    """``made`` after steps that began at ``at_s``, each with a request that has nothing to copy."""
    for now_s in at_s:
        made.choose_copies(CopyState((Holder("r", 1, 1),) if holders else (), 60, 60, room_for(100), now_s, block_s))
    return made


# -- who gives KV up ------------------------------------------------------------------------------------------------------------------


def test_the_one_whose_turn_comes_last_gives_its_kv_up_for_the_first_that_waits() -> None:
    assert policy().swap_out(FULL, RANKS, lambda names: TURNS) == (1,)
    one = view(*FULL.running, waits=(waiting("new", 3),))
    assert policy().swap_out(one, RANKS, lambda names: TURNS) == (1,)
    more = view(*FULL.running, waits=(waiting("new", 13),))
    assert policy().swap_out(more, RANKS, lambda names: TURNS) == (1, 2)


def test_the_first_that_waits_is_the_first_by_rank_and_who_has_no_rank_has_no_turn() -> None:
    waits = (waiting("stranger", 3), waiting("later", 40), waiting("new", 12))
    seen = view(*FULL.running, waits=waits)
    ranks = {**RANKS, "later": 4}
    assert policy().swap_out(seen, ranks, lambda names: {**TURNS, "stranger": 0.0, "later": 0.0}) == (1,)


@pytest.mark.parametrize(
    "seen",
    [
        view(chat("a"), chat("b")),
        view(chat("a"), chat("b"), waits=(waiting("new", 2),)),
        view(row("r"), chat("b"), waits=(waiting("new", 12),)),
    ],
    ids=["nobody waits", "blocks are free", "offline work gives way first"],
)
def test_turns_are_not_asked_for_where_nobody_must_give_up_kv(seen: EngineView) -> None:
    def asked(names: Collection[str]) -> Mapping[str, float]:
        raise AssertionError("an order walks all its requests for this")

    assert policy().swap_out(seen, RANKS, asked) == ()


def test_one_without_a_turn_neither_gives_nor_takes_kv() -> None:
    assert policy().swap_out(FULL, RANKS, lambda names: {name: at for name, at in TURNS.items() if name != "new"}) == ()
    assert policy().swap_out(FULL, RANKS, lambda names: {name: at for name, at in TURNS.items() if name != "b"}) == (2,)


def test_kv_that_is_back_too_late_for_its_turn_stays() -> None:
    """b's 10 blocks take 8 s to come back, and its turn is in 9; with copies of 1 s each it would be late."""
    assert stepped(policy(), 0.0, block_s=0.8).swap_out(FULL, RANKS, lambda names: TURNS) == (1,)
    assert stepped(policy(), 0.0, block_s=1.0).swap_out(FULL, RANKS, lambda names: TURNS) == ()


def test_nobody_gives_up_kv_that_a_step_would_wait_for_longer_than_it_may() -> None:
    seen = view(chat("a"), chat("b", unsaved=4), chat("c"), waits=(waiting("new", 12),))
    assert policy(wait_blocks=4).swap_out(seen, RANKS, lambda names: TURNS) == (2,)
    assert policy(wait_blocks=5).swap_out(seen, RANKS, lambda names: TURNS) == (1,)


def test_offline_requests_lose_their_kv_first_the_newest_first_and_then_online_ones_by_their_turn() -> None:
    names = ["chat-1", "row-1", "chat-2", "row-2", "chat-3"]
    assert in_order_of_loss(names, {"row-1", "row-2"}, {"chat-1": 2, "chat-2": 0, "chat-3": 1}) == [3, 1, 0, 4, 2]
    assert in_order_of_loss(["new", "chat"], (), {"chat": 1}) == [1, 0]


def test_the_row_that_loses_least_is_preempted_and_the_newest_of_those_that_a_step_can_save() -> None:
    def first(*unsaved: int) -> list[int]:
        rows = [row("r")._replace(unsaved=blocks) for blocks in unsaved]
        return sorted(victims(StepView(rows, 1, 1, 0, 0, 60, len(rows), max_waited=4), batch_of(rows)))

    assert [first(1, 3), first(5, 9), first(9, 5, 9)] == [[1], [0], [1]]


# -- copies beside a step -------------------------------------------------------------------------------------------------------------


def limit(slack_s: float, online: bool, step_s: float = 0.1) -> int:
    return limit_blocks(step_s, slack_s, 0.001, online, COST)


@pytest.fixture
def timed() -> Checkpoints:
    """Steps of 0.1 s by the average, copies of 1 ms."""
    return stepped(policy(), 0.0, 1.0, block_s=0.001)


def test_beside_chat_copies_fit_into_what_the_step_may_still_last(timed: Checkpoints) -> None:
    for limit_s in (0.5, 0.1015):
        copies = timed.copies(view(chat("a")), RANKS, limit_s, alone=False)
        assert (copies.allowed, copies.awaited) == (limit(limit_s - 0.1, online=True), limit(limit_s - 0.1, online=False))
    assert limit(0.4, online=True) > limit(0.0015, online=True) > 1
    assert timed.copies(view(chat("a")), RANKS, 0.05, alone=False).allowed == 1


def test_beside_offline_work_alone_nothing_bounds_the_copies_that_are_under_way(timed: Checkpoints) -> None:
    copies = timed.copies(view(row("r")), RANKS, 0.5, alone=True)
    assert (copies.allowed, copies.awaited, copies.max_waited) == (None, None, 4)


def test_a_chat_whose_kv_is_read_back_is_waited_for(timed: Checkpoints) -> None:
    copies = timed.copies(view(chat("a"), loading=True), RANKS, 0.5, alone=False)
    assert copies.allowed == copies.awaited == limit(0.4, online=False) > limit(0.4, online=True)


@pytest.mark.parametrize(
    ("seen", "alone", "online"),
    [(view(chat("a")), False, True), (view(row("r")), True, False), (FULL, False, False), (view(waits=(waiting("new", 2),)), False, True)],
    ids=["chat runs", "offline alone", "chat lacks KV", "chat has its KV free"],
)
def test_what_is_copied_next_is_as_much_as_the_step_before_allowed(timed: Checkpoints, seen: EngineView, alone: bool, online: bool) -> None:
    timed.copies(seen, RANKS, 0.5, alone)
    holders = tuple(Holder(f"r{i}", 100, 0) for i in range(20))
    for _ in range(3):
        timed.choose_copies(CopyState(holders, 0, 60, room_for(10_000), 2.0, None))
    copies = timed.copies(seen, RANKS, 0.5, alone)
    assert sum(copies.grants.values()) == limit(0.4, online)
    assert copies.grants["r0"] > 0, "the first that would lose its KV"


def test_the_room_on_the_host_bounds_the_copies(timed: Checkpoints) -> None:
    timed.copies(view(row("r")), RANKS, 0.5, alone=True)
    for _ in range(3):
        timed.choose_copies(CopyState((Holder("r", 1000, 0),), 0, 60, room_for(7), 2.0, None))
    assert timed.copies(view(row("r")), RANKS, 0.5, alone=True).grants == {"r": 7}


def allowed(made: Checkpoints) -> int | None:
    return made.copies(view(chat("a")), RANKS, 1e9, alone=False).allowed


def test_the_time_between_steps_is_averaged_and_a_pause_is_no_step() -> None:
    steady = allowed(stepped(policy(), 0.0, 1.0, 2.0, block_s=0.0001))
    assert steady == limit_blocks(0.19, 1e9, 0.0001, True, COST)
    assert allowed(stepped(policy(), 0.0, 1.0, 2.0, 7.0, block_s=0.0001)) == steady, "5 s lay between them"
    idle = stepped(stepped(policy(), 0.0, 1.0, block_s=0.0001), 2.0, holders=False)
    assert allowed(stepped(idle, 4.0)) == steady, "nothing ran before the last one"


def test_the_time_of_a_copy_is_averaged_over_the_steps_that_measured_one() -> None:
    made = stepped(stepped(stepped(policy(), 0.0, block_s=0.001), 1.0), 1.0, block_s=0.002)
    assert made.copies(view(chat("a"), loading=True), RANKS, 1e9, alone=False).allowed == limit_blocks(0.09, 1e9, 0.0011, False, COST)


@pytest.mark.parametrize("block_s", [None, 0.001, 0.0001], ids=str)
def test_a_step_waits_for_as_many_blocks_as_a_share_of_the_first_token_allows(block_s: float | None) -> None:
    made = Checkpoints(Thresholds(), CPU_COST, 5.0)
    stepped(made, 0.0, block_s=block_s)
    assert made.copies(view(), {}, 1.0, alone=True).max_waited == made.max_waited == waited_blocks(5.0, block_s)
