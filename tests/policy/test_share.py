"""The plan of a step: what offline work may take beside chat, by example and by property."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harvester.policy.step.plan import plan_step
from harvester.policy.step.view import StepPlan, StepView
from harvester.policy.view import PolicyConfig, Running

LIMITS = PolicyConfig(reserved_slots=2, reserved_kv=0.1, offline_step_tokens=64)


def online(step_tokens: int = 1, blocks: int = 2, blocks_step: int = 0) -> Running:
    return Running("chat", offline=False, step_tokens=step_tokens, blocks_now=blocks, blocks_final=0, blocks_step=blocks_step)


def offline(step_tokens: int = 1, blocks: int = 10, final: int = 10, blocks_step: int = 0) -> Running:
    return Running("row", offline=True, step_tokens=step_tokens, blocks_now=blocks, blocks_final=final, blocks_step=blocks_step)


def view(
    *running: Running, waiting: int = 0, waiting_blocks: int = 0, next_blocks: int = 0, free: int = 50, total: int = 100, max_seqs: int = 8
) -> StepView:
    return StepView(tuple(running), waiting, waiting_blocks, next_blocks, free, total, max_seqs)


# -- by example ---------------------------------------------------------------------------------------------------------------------


def test_an_idle_engine_opens_all_but_the_reserve() -> None:
    assert plan_step(view(free=99), LIMITS) == StepPlan((), (), (), None, 6, 89, may_end=True)


def test_an_idle_engine_admits_one_request_even_where_everything_is_reserved() -> None:
    plan = plan_step(view(free=99, max_seqs=2, next_blocks=70), PolicyConfig(reserved_slots=2, reserved_kv=0.99, offline_step_tokens=1))
    assert (plan.offline_slots, plan.offline_blocks) == (1, 70)


@pytest.mark.parametrize(("idle_s", "room"), [(0.0, (6, 89)), (60.0, (6, 89)), (60.1, (8, 99))], ids=["chat", "just after", "long after"])
def test_the_reserve_is_given_up_once_no_chat_has_come_for_long(idle_s: float, room: tuple[int, int]) -> None:
    plan = plan_step(replace(view(free=99), online_idle_s=idle_s), LIMITS)
    assert (plan.offline_slots, plan.offline_blocks) == room


def test_offline_work_alone_runs_without_a_bound_on_its_tokens() -> None:
    plan = plan_step(view(offline(2000), offline(1)), LIMITS)
    assert (plan.run, plan.pause, plan.preempt, plan.budget_tokens) == ((0, 1), (), (), None)


def test_offline_work_is_admitted_only_beside_the_reserve_and_what_others_will_grow_to() -> None:
    plan = plan_step(view(offline(blocks=10, final=25), free=90), LIMITS)
    assert (plan.offline_slots, plan.offline_blocks) == (5, 90 - 15 - 10)


def test_of_the_offline_requests_those_give_way_that_lose_the_least_and_of_equal_ones_the_newest() -> None:
    running = [offline()._replace(unsaved=lost) for lost in (3, 0, 5, 0)]
    assert plan_step(view(*running, waiting=1, waiting_blocks=8, free=0), LIMITS).preempt == (3,)
    assert plan_step(view(*running, waiting=1, waiting_blocks=25, free=0), LIMITS).preempt == (0, 1, 3)


def test_blocks_of_requests_that_are_read_back_are_kept_for_them() -> None:
    assert plan_step(replace(view(free=90), loading_growth=20), LIMITS).offline_blocks == 90 - 20 - 10


def test_a_step_with_online_work_bounds_offline_tokens_and_serves_online_first_then_decodes_then_prompts() -> None:
    plan = plan_step(view(offline(500), offline(1), online(1), online(30)), LIMITS)
    assert (plan.run, plan.budget_tokens) == ((2, 3, 1, 0), 31 + 64)
    assert (plan.pause, plan.preempt) == ((), ())


def test_while_an_online_request_waits_offline_prompts_pause_and_nothing_offline_is_admitted() -> None:
    plan = plan_step(view(offline(500), offline(1), online(1), waiting=1, waiting_blocks=1), LIMITS)
    assert (plan.run, plan.pause, plan.preempt) == ((2, 1), (0,), ())
    assert (plan.offline_slots, plan.offline_blocks, plan.budget_tokens) == (0, 0, None)


def test_while_an_online_request_waits_only_as_many_offline_decodes_run_as_the_share_allows() -> None:
    plan = plan_step(view(*[offline()] * 5, waiting=1, max_seqs=8), replace(LIMITS, offline_step_tokens=3))
    assert (plan.run, plan.pause) == ((0, 1, 2), (3, 4))


def test_an_arrival_that_finds_no_slot_takes_the_newest_offline_request_s() -> None:
    assert plan_step(view(offline(), offline(), online(), offline(), waiting=1, max_seqs=4), LIMITS).preempt == (3,)


def test_an_arrival_that_finds_no_slot_among_online_requests_waits() -> None:
    assert plan_step(view(*[online()] * 4, waiting=2, max_seqs=4), LIMITS).preempt == ()


def test_an_arrival_that_finds_no_kv_takes_as_many_offline_requests_blocks_as_it_needs() -> None:
    plan = plan_step(view(*[offline(blocks=10)] * 4, waiting=1, waiting_blocks=25, free=6), LIMITS)
    assert plan.preempt == (2, 3)


def test_an_arrival_also_finds_the_blocks_that_the_running_ones_take_in_the_same_step() -> None:
    running = (online(blocks_step=1), online(blocks_step=1), offline(), offline())
    assert plan_step(view(*running, waiting=1, waiting_blocks=2, free=4), LIMITS).preempt == ()
    assert plan_step(view(*running, waiting=1, waiting_blocks=2, free=3), LIMITS).preempt == (3,)


def test_blocks_that_a_paused_prompt_would_take_are_not_looked_for() -> None:
    running = (offline(500, blocks_step=30), offline())
    assert plan_step(view(*running, waiting=1, waiting_blocks=2, free=2), LIMITS).preempt == ()


# -- by property --------------------------------------------------------------------------------------------------------------------

step_tokens = st.one_of(st.just(1), st.integers(0, 500))
a_running = st.one_of(
    st.builds(online, step_tokens, st.integers(0, 20), st.integers(0, 3)),
    st.builds(
        lambda tokens, now, more, step: offline(tokens, now, now + more, step),
        step_tokens,
        st.integers(0, 20),
        st.integers(0, 20),
        st.integers(0, 3),
    ),
)
a_limit = st.builds(PolicyConfig, st.integers(0, 8), st.floats(0.0, 0.5), st.integers(1, 12))


@st.composite
def views(draw: st.DrawFn) -> StepView:
    running = tuple(draw(st.lists(a_running, max_size=10)))
    waiting = draw(st.integers(0, 4))
    waiting_blocks = draw(st.integers(waiting, 40)) if waiting else 0
    free = draw(st.integers(0, 60))
    total = sum(r.blocks_now for r in running) + free + 1
    return StepView(running, waiting, waiting_blocks, draw(st.integers(0, 40)), free, total, len(running) + draw(st.integers(0, 6)))


def offline_among(view: StepView, places: tuple[int, ...]) -> list[int]:
    return [i for i in places if view.running[i].offline]


@given(views(), a_limit)
def test_every_running_request_is_run_paused_or_preempted_and_only_one_of_them(view: StepView, limits: PolicyConfig) -> None:
    plan = plan_step(view, limits)
    assert sorted((*plan.run, *plan.pause, *plan.preempt)) == list(range(len(view.running)))


@given(views(), a_limit)
def test_an_online_request_always_runs_before_any_offline_one_in_a_step_that_it_shares(view: StepView, limits: PolicyConfig) -> None:
    plan = plan_step(view, limits)
    places = [i for i, request in enumerate(view.running) if not request.offline]
    assert sorted(plan.run[: len(places)]) == places


@given(views(), a_limit)
def test_nothing_is_preempted_or_paused_unless_an_online_request_waits(view: StepView, limits: PolicyConfig) -> None:
    plan = plan_step(view, limits)
    if view.online_waiting == 0:
        assert (plan.preempt, plan.pause) == ((), ())


@given(views(), a_limit)
def test_a_step_has_room_for_every_online_token(view: StepView, limits: PolicyConfig) -> None:
    plan = plan_step(view, limits)
    tokens = sum(request.step_tokens for request in view.running if not request.offline)
    assert plan.budget_tokens is None or plan.budget_tokens == tokens + limits.offline_step_tokens


@given(views(), a_limit)
def test_offline_tokens_beside_waiting_online_work_stay_within_the_share(view: StepView, limits: PolicyConfig) -> None:
    plan = plan_step(view, limits)
    if view.online_waiting:
        assert sum(view.running[i].step_tokens for i in offline_among(view, plan.run)) <= limits.offline_step_tokens


@given(views(), a_limit)
def test_admitted_offline_requests_leave_the_reserved_slots_free(view: StepView, limits: PolicyConfig) -> None:
    plan = plan_step(view, limits)
    if view.running and plan.offline_slots:
        assert view.max_seqs - len(view.running) - plan.offline_slots >= limits.reserved_slots
    elif plan.offline_slots > 1:
        assert view.max_seqs - plan.offline_slots >= limits.reserved_slots


@given(views(), a_limit)
def test_admitted_offline_requests_leave_the_reserved_kv_free_when_all_have_grown(view: StepView, limits: PolicyConfig) -> None:
    plan = plan_step(view, limits)
    if plan.offline_blocks and (view.running or plan.offline_blocks > view.offline_next_blocks):
        growth = sum(request.blocks_final - request.blocks_now for request in view.running if request.offline)
        assert view.free_blocks - growth - plan.offline_blocks >= int(limits.reserved_kv * view.total_blocks)


@given(views(), a_limit)
def test_an_idle_engine_with_nobody_waiting_always_admits_one_however_large(view: StepView, limits: PolicyConfig) -> None:
    plan = plan_step(replace(view, running=(), online_waiting=0, online_waiting_blocks=0), limits)
    assert plan.offline_slots >= 1
    assert plan.offline_blocks >= view.offline_next_blocks


@given(views(), a_limit)
def test_nothing_offline_is_admitted_while_an_online_request_waits(view: StepView, limits: PolicyConfig) -> None:
    plan = plan_step(view, limits)
    if view.online_waiting:
        assert (plan.offline_slots, plan.offline_blocks) == (0, 0)


@given(views(), a_limit)
def test_the_newest_offline_requests_are_preempted_first(view: StepView, limits: PolicyConfig) -> None:
    plan = plan_step(view, limits)
    kept = offline_among(view, (*plan.run, *plan.pause))
    assert not plan.preempt or max(kept, default=-1) < min(plan.preempt)


def lacks(view: StepView, preempted: tuple[int, ...]) -> bool:
    """Whether the waiting online requests would miss a slot or a block. Paused prompts count as nothing, decodes as if all ran."""
    stay = [request for i, request in enumerate(view.running) if i not in preempted]
    slots = view.max_seqs - len(stay)
    freed = sum(view.running[i].blocks_now for i in preempted)
    taken = sum(request.blocks_step for request in stay if not request.offline or request.step_tokens <= 1)
    return view.online_waiting > slots or view.online_waiting_blocks + taken > view.free_blocks + freed


@given(views(), a_limit)
def test_waiting_online_requests_find_room_or_nothing_offline_is_left(view: StepView, limits: PolicyConfig) -> None:
    plan = plan_step(view, limits)
    if view.online_waiting and lacks(view, plan.preempt):
        assert offline_among(view, (*plan.run, *plan.pause)) == []


@given(views(), a_limit)
def test_no_more_is_preempted_than_is_needed(view: StepView, limits: PolicyConfig) -> None:
    plan = plan_step(view, limits)
    if plan.preempt:
        assert lacks(view, plan.preempt[1:])  # the oldest of them was needed too


@pytest.mark.parametrize("fewer", [0, 1, 2])
def test_a_larger_reserve_never_admits_more(fewer: int) -> None:
    admitted = [plan_step(view(offline()), replace(LIMITS, reserved_slots=slots)).offline_slots for slots in (fewer, fewer + 1)]
    assert admitted[0] >= admitted[1]
