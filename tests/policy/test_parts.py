"""What every form of every part must hold to. A form that is added to a table of `harvester.policy.parts` is tested here by its name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from harvester.policy.admission.rule import MAX_PASSED, MAX_PASSED_OF_JOB, Admission, reserved
from harvester.policy.kv.checkpoint import CPU_COST, Holder, Thresholds
from harvester.policy.kv.policy import Checkpoints, CopyState, KvPolicy, NoCheckpoints
from harvester.policy.model.latency import LatencyModel
from harvester.policy.order.offline import OfflineRow
from harvester.policy.order.online import OnlineRequest
from harvester.policy.parts import ADMISSIONS, BUDGETS, OFFLINE_ORDERS, ONLINE_ORDERS, RESERVES, TABLES, PartsConfig, parts_of
from harvester.policy.step.batch import batch_of
from harvester.policy.step.view import Guarantee, Owed, StepView
from harvester.policy.view import EngineView, Running
from harvester.policy.waiting import Waiting, WaitingOnline
from tests.policy.asked import LIMITS, MODEL, chat, prompt, room_for, row, rows_of, view

SETTINGS = settings(max_examples=15, stateful_step_count=25, deadline=None)
CONFIG = PartsConfig(mlfq_levels=5, first_slots=3, first_blocks=20)


@pytest.mark.parametrize("part", TABLES)
def test_a_name_that_is_in_no_table_is_refused_with_those_that_are(part: str) -> None:
    other: dict[str, Any] = {part: "none"}
    with pytest.raises(ValueError, match=rf"unknown {part} 'none'; use one of: {', '.join(TABLES[part])}"):
        parts_of(replace(PartsConfig(), **other), LatencyModel())


# -- the order among online requests -------------------------------------------------------------------------------------------------


class OnlineOrders(RuleBasedStateMachine):
    """Any run of arrivals, steps and ends."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.order = ONLINE_ORDERS[name](CONFIG)
        self.now_s = 0.0
        self.held: dict[str, int] = {}  # with their priority
        self.gone: list[str] = []

    @rule(
        priority=st.sampled_from([0, 0, -3]),
        tokens=st.integers(1, 500),
        prefill_s=st.floats(0.0, 2.0),
        answer_s=st.floats(0.0, 5.0),
        slo_s=st.floats(0.1, 9.0),
    )
    def arrives(self, priority: int, tokens: int, prefill_s: float, answer_s: float, slo_s: float) -> None:
        name = f"r{len(self.held) + len(self.gone)}"
        told, due_s = tokens if tokens % 2 else None, self.now_s + slo_s
        new = OnlineRequest(name, priority, tokens, "", tokens, told, prefill_s, answer_s / tokens, due_s, slo_s / tokens)
        self.order.arrive(new, self.now_s)
        self.held[name] = priority

    @rule(most=st.integers(1, 5), seconds=st.floats(0.001, 1.0))
    def steps(self, most: int, seconds: float) -> None:
        batch = list(self.order.order(self.now_s))[:most]
        self.now_s += seconds
        self.order.ran([*batch, *self.gone[-1:]], seconds, self.now_s)  # one that has ended may be among them

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def finishes(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.held)))
        self.order.finish(name)
        del self.held[name]
        self.gone.append(name)

    @precondition(lambda self: self.gone)
    @rule()
    def one_that_has_ended_is_not_known(self) -> None:
        with pytest.raises(KeyError):
            self.order.finish(self.gone[0])

    @rule(seconds=st.floats(0.0, 20.0))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @invariant()
    def everyone_held_is_in_the_order_once_and_asking_changes_nothing(self) -> None:
        order = list(self.order.order(self.now_s))
        assert sorted(order) == sorted(self.held)
        ranks = [self.held[name] for name in order]
        assert ranks == sorted(ranks)
        some = [name for name in sorted(self.held) if len(name) % 2 or name[-1] in "13579"]
        assert list(self.order.among([*some, "stranger"], self.now_s)) == [name for name in order if name in some]
        turns_s = self.order.next_turn_s(some, self.now_s, 2)
        assert turns_s.keys() <= set(some)
        assert all(seconds >= 0.0 for seconds in turns_s.values())
        assert list(self.order.order(self.now_s)) == order


@pytest.mark.parametrize("name", ONLINE_ORDERS)
def test_an_online_order_serves_everyone_it_was_told_of(name: str) -> None:
    run_state_machine_as_test(lambda: OnlineOrders(name), settings=SETTINGS)  # type: ignore[arg-type]  # it takes what makes one, too


# -- the order of offline rows --------------------------------------------------------------------------------------------------------

GUARANTEES = st.none() | st.builds(Guarantee, st.sampled_from([0.1, 0.5]))


class OfflineOrders(RuleBasedStateMachine):
    """Any run of rows that come, are admitted, lose their KV and end."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.order = OFFLINE_ORDERS[name](CONFIG)
        self.waits: dict[str, OfflineRow] = {}
        self.runs: dict[str, OfflineRow] = {}
        self.newest: dict[str, Guarantee | None] = {}  # by job
        self.count = 0

    @rule(
        job=st.sampled_from("abc"), weight=st.floats(0.1, 9.0), guarantee=GUARANTEES, slice_id=st.integers(0, 2), shared=st.integers(0, 2)
    )
    def comes(self, job: str, weight: float, guarantee: Guarantee | None, slice_id: int, shared: int) -> None:
        self.count += 1
        new = OfflineRow(f"r{self.count}", job, False, weight, guarantee, 100, slice_id, (shared,), float(self.count))
        self._add(new)

    @precondition(lambda self: self.waits)
    @rule(data=st.data())
    def is_admitted(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.waits)))
        self.order.take(name)
        self.order.take(name)  # it does not wait any more
        self.runs[name] = self.waits.pop(name)

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def loses_its_kv(self, data: st.DataObject) -> None:
        self._add(self.runs.pop(data.draw(st.sampled_from(sorted(self.runs))))._replace(begun=True))

    @precondition(lambda self: self.waits or self.runs)
    @rule(data=st.data())
    def ends(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted({**self.waits, **self.runs})))
        self.order.end(name)
        self.order.end(name)  # it is not known any more
        gone = self.waits.pop(name, None) or self.runs.pop(name)
        if gone.job not in {one.job for one in (*self.waits.values(), *self.runs.values())}:
            del self.newest[gone.job]

    @rule(job=st.sampled_from("abcd"), tokens=st.floats(0.0, 1e4))
    def is_served(self, job: str, tokens: float) -> None:
        self.order.charge(job, tokens)

    def _add(self, new: OfflineRow) -> None:
        self.order.add(new)
        self.waits[new.name] = new
        if not new.begun:
            self.newest[new.job] = new.guarantee

    @invariant()
    def those_that_wait_are_the_rows_and_a_job_goes_on_with_what_it_has_begun(self) -> None:
        rows = list(self.order.rows())
        assert sorted(rows) == sorted(self.waits.values())
        assert len(self.order) == len(rows)
        assert list(self.order.rows()) == rows
        assert list(self.order.rows({"a", "c"})) == [one for one in rows if one.job == "b"]
        for job in "abc":
            begun = [one.begun for one in rows if one.job == job]
            assert begun == sorted(begun, reverse=True)

    @invariant()
    def it_knows_the_jobs_of_its_rows_and_what_they_are_guaranteed(self) -> None:
        held = {**self.waits, **self.runs}
        assert {name: one.job for name, one in self.order.known.items()} == {name: one.job for name, one in held.items()}
        given_ = [guarantee for guarantee in self.newest.values() if guarantee is not None]
        assert self.order.guarantee() == max(given_, key=lambda one: one.share, default=None)
        late, waits = self.order.late(), {one.job for one in self.waits.values()}
        assert {one.job: one.share for one in late} == {
            job: one.share for job, one in self.newest.items() if one is not None and job in waits
        }
        assert [one.held for one in late] == [sum(row.job == one.job for row in self.runs.values()) for one in late]
        assert late == sorted(late, key=lambda one: one.held / one.share)
        check = getattr(self.order, "check", None)
        if check is not None:
            check()


@pytest.mark.parametrize("name", OFFLINE_ORDERS)
def test_a_job_that_is_passed_while_its_rows_are_read_has_no_more(name: str) -> None:
    order, passed = OFFLINE_ORDERS[name](CONFIG), set[str]()
    for number, job in enumerate("aaab"):
        order.add(OfflineRow(f"{job}{number}", job, arrival_s=float(number)))
    rows = order.rows(passed)
    assert next(rows).name == "a0"
    passed.add("a")
    assert [one.name for one in rows] == ["b3"]


@pytest.mark.parametrize("name", OFFLINE_ORDERS)
def test_an_offline_order_holds_exactly_the_rows_that_wait(name: str) -> None:
    run_state_machine_as_test(lambda: OfflineOrders(name), settings=SETTINGS)  # type: ignore[arg-type]  # it takes what makes one, too


# -- admission ------------------------------------------------------------------------------------------------------------------------


def waiting_row(name: int, prompt: int, emitted: int, more: int) -> OfflineRow:
    """``more``: tokens that it may make beyond those that it has made."""
    blocks, final = (-(-tokens // 16) for tokens in (prompt + emitted, prompt + emitted + more))
    return OfflineRow(
        f"r{name}",
        "job",
        emitted > 0,
        final_blocks=final,
        blocks=blocks,
        tokens=prompt + emitted,
        prompt_tokens=prompt,
        max_tokens=emitted + more,
    )


ROWS = st.builds(waiting_row, st.integers(0, 10**6), st.integers(1, 700), st.integers(0, 300), st.integers(1, 400))
SMALL_ROWS = st.builds(waiting_row, st.integers(0, 10**6), st.integers(1, 20), st.integers(0, 8), st.integers(1, 20))


def admits(admission: Admission, rows: list[OfflineRow], seen: StepView) -> tuple[str, ...]:
    """The rows admitted, asked for as the brain does."""
    seen = replace(seen, offline_next_blocks=admission.blocks(rows[0]) if rows else 0)
    batch = batch_of(seen.running)
    return admission.admitted(rows_of(rows), admission.space(seen, batch, LIMITS), seen, batch, LIMITS)


def an_admission(name: str, ended: list[int]) -> Admission:
    """An admission that has seen rows of the job end with these numbers of tokens."""
    admission = ADMISSIONS[name](CONFIG)
    for tokens in ended:
        admission.ended(waiting_row(0, 50, 0, 400), tokens)
    return admission


ENDED = st.lists(st.integers(1, 400), max_size=30)


@pytest.mark.parametrize("name", ADMISSIONS)
@given(one=ROWS, ended=ENDED, kept=st.none() | st.tuples(st.integers(0, 99), st.integers(0, 9999)))
def test_an_idle_engine_always_admits_a_row(name: str, one: OfflineRow, ended: list[int], kept: tuple[int, int] | None) -> None:
    admission = an_admission(name, ended)
    assert admits(admission, [one], view(max_seqs=4, free_blocks=100, total_blocks=100, reserve=kept)) == (one.name,)


@pytest.mark.parametrize("name", ADMISSIONS)
@given(running=st.integers(1, 8), free=st.integers(0, 500), slots=st.integers(0, 9), blocks=st.integers(0, 400))
def test_admission_gives_no_more_than_is_free_beside_the_reserve(name: str, running: int, free: int, slots: int, blocks: int) -> None:
    seen = view(*[row()] * running, max_seqs=8, free_blocks=free, total_blocks=1000, reserve=(slots, blocks))
    found = ADMISSIONS[name](CONFIG).space(seen, batch_of(seen.running), LIMITS)
    kept = reserved(seen, LIMITS)
    assert found[0] <= max(0, 8 - running - kept[0])
    assert found[1] <= max(0, free - kept[1])


@pytest.mark.parametrize("name", ADMISSIONS)
@given(rows=st.lists(SMALL_ROWS, max_size=6), ended=ENDED, slots=st.integers(-2, 5), blocks=st.integers(-2, 12))
def test_the_rows_that_are_admitted_are_the_first_and_fit(
    name: str, rows: list[OfflineRow], ended: list[int], slots: int, blocks: int
) -> None:
    admission, seen = an_admission(name, ended), view(row(), free_blocks=500, total_blocks=1000)
    found = admission.admitted(rows_of(rows), (slots, blocks), seen, batch_of(seen.running), LIMITS)
    assert found == tuple(one.name for one in rows[: len(found)])
    assert len(found) <= max(0, slots)
    assert not found or sum(admission.blocks(one) for one in rows[: len(found)]) <= blocks
    assert admission.admitted(rows_of(rows), (slots, blocks), seen, batch_of(seen.running), LIMITS) == found


@pytest.mark.parametrize("name", ADMISSIONS)
@given(
    rows=st.lists(ROWS, min_size=1, max_size=6, unique_by=lambda one: one.name),
    lacking=st.sampled_from([10, 51, 91]),
    free=st.integers(0, 100),
)
def test_a_guarantee_never_admits_fewer_rows_and_no_more_than_is_free(name: str, rows: list[OfflineRow], lacking: int, free: int) -> None:
    seen = view(chat(), max_seqs=8, free_blocks=free, total_blocks=102, reserve=(4, 40))
    admission = ADMISSIONS[name](CONFIG)
    first = Owed(frozenset(one.name for one in rows), lacking, sum(admission.blocks(one) for one in rows))
    less, more = (admits(admission, rows, replace(seen, owed=given_)) for given_ in (None, first))
    assert sum(one.blocks for one in rows if one.name in more) <= free
    assume(less == tuple(one.name for one in rows[: len(less)]))  # a row that fits only with the guarantee may keep out those behind it
    assert more[: len(less)] == less


@pytest.mark.parametrize("name", ADMISSIONS)
@given(rows=st.lists(SMALL_ROWS, max_size=6, unique_by=lambda one: one.name), running=st.integers(0, 7), free=st.integers(0, 100))
def test_a_guarantee_opens_nothing_for_rows_of_other_jobs(name: str, rows: list[OfflineRow], running: int, free: int) -> None:
    seen = view(*[chat()] * running, max_seqs=8, free_blocks=free, total_blocks=102, reserve=(4, 40))
    owed = Owed(frozenset(["r-late"]), 91, 91)  # its row waits for chat
    assert admits(ADMISSIONS[name](CONFIG), rows, replace(seen, owed=owed)) == admits(ADMISSIONS[name](CONFIG), rows, seen)


@pytest.mark.parametrize("name", ADMISSIONS)
def test_a_row_too_large_beside_chat_keeps_no_other_out(name: str) -> None:
    admission = ADMISSIONS[name](CONFIG)
    large, small = waiting_row(1, 1400, 0, 100), waiting_row(2, 40, 0, 20)
    seen = view(chat(), max_seqs=8, free_blocks=100, total_blocks=102, reserve=(4, 40))
    assert admits(admission, [large, small], seen) == (small.name,)
    small = small._replace(job="a")
    many, others = [large._replace(job="a")] * MAX_PASSED_OF_JOB, [large._replace(job=f"j{number % 99}") for number in range(MAX_PASSED)]
    assert admits(admission, [*many, small], seen) == (), "nobody looks through thousands of them in each step"
    assert admits(admission, [*many, small._replace(job="other")], seen) == (small.name,)
    assert admits(admission, [*others, small], seen) == ()
    flex = [one._replace(job="") for one in (*many, small)]
    assert admits(admission, flex, seen) == (small.name,), "they are of many clients"
    idle = view(max_seqs=8, free_blocks=102, total_blocks=102)
    assert admits(admission, [large, small], idle)[0] == large.name, "it comes when chat is gone"


# -- budget ---------------------------------------------------------------------------------------------------------------------------


def crowd(chats: int, prompts: int, rows: int, chunks: int, waiting: int) -> StepView:
    running = [*[chat()] * chats, *[prompt(40)] * prompts, *[row()] * rows, *[row(300)] * chunks]
    return view(*running, online_waiting=waiting, waiting_tokens=50 * waiting, waiting_due_s=1.0, online_waiting_blocks=4 * waiting)


CROWDS = st.builds(crowd, st.integers(1, 9), st.integers(0, 3), st.integers(0, 40), st.integers(0, 4), st.integers(0, 2))


@pytest.mark.parametrize("model", [MODEL, LatencyModel()], ids=["a model", "none yet"])
@pytest.mark.parametrize("name", BUDGETS)
@settings(max_examples=50, deadline=None)
@given(seen=CROWDS, limit_s=st.floats(-0.1, 0.2), more_s=st.floats(0.0, 0.1))
def test_a_budget_is_never_negative_and_more_time_never_makes_it_smaller(
    name: str, model: LatencyModel, seen: StepView, limit_s: float, more_s: float
) -> None:
    budget, batch, space = BUDGETS[name](CONFIG, model), batch_of(seen.running), (3, 400)
    less, more = (budget.beside_chat(seen, batch, LIMITS, until_s, space) for until_s in (limit_s, limit_s + more_s))
    assert 0 <= (less.offline_tokens or 0) <= (more.offline_tokens or 0)
    for plan in (less, more):
        assert sorted((*plan.run, *plan.pause)) == batch.kept
        assert set(batch.online) <= set(plan.run)
        assert plan.budget_tokens is None or plan.budget_tokens >= 0
        assert min(plan.offline_slots, plan.offline_blocks) >= 0
        assert plan.offline_slots <= space[0]


@pytest.mark.parametrize("model", [MODEL, LatencyModel()], ids=["a model", "none yet"])
@pytest.mark.parametrize("name", BUDGETS)
@given(rows=st.integers(0, 40), chunks=st.integers(0, 4), best_s=st.floats(1e-4, 9.0) | st.just(math.inf))
def test_offline_work_alone_is_never_left_without_tokens(name: str, model: LatencyModel, rows: int, chunks: int, best_s: float) -> None:
    seen = view(*[row()] * rows, *[row(300)] * chunks, offline_step_s=best_s)
    tokens = BUDGETS[name](CONFIG, model).alone_tokens(seen, batch_of(seen.running))
    assert tokens is None or rows < tokens <= 2048


# -- reserve --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RESERVES)
@given(
    arrivals=st.lists(st.tuples(st.floats(0.0, 90.0), st.integers(1, 50)), max_size=9), quiet_s=st.lists(st.floats(0.0, 300.0), max_size=5)
)
def test_a_reserve_only_shrinks_while_nobody_comes(name: str, arrivals: list[tuple[float, int]], quiet_s: list[float]) -> None:
    reserve, now_s = RESERVES[name](CONFIG), 0.0
    for gap_s, blocks in arrivals:
        now_s += gap_s
        reserve.arrival(now_s, blocks)
    kept = reserve.reserve(now_s)
    for seconds in quiet_s:
        now_s += seconds
        found = reserve.reserve(now_s)
        assert found == reserve.reserve(now_s)
        assert (kept is None) == (found is None)
        if kept is not None and found is not None:
            assert 0 <= found[0] <= kept[0]
            assert 0 <= found[1] <= kept[1]
        kept = found


# -- KV -------------------------------------------------------------------------------------------------------------------------------

KV_POLICIES: dict[str, Callable[[], KvPolicy]] = {
    "none": NoCheckpoints,
    "checkpoints": lambda: Checkpoints(Thresholds(), CPU_COST, 5.0),
    "reactive": lambda: Checkpoints(Thresholds(1e-9, 0.0), CPU_COST, 5.0, wait_blocks=1000),
}


def held(number: int, offline: bool, blocks: int, saved: int) -> Running:
    unsaved = max(0, blocks - saved)
    return Running(f"r{number}", offline, 1, blocks, 2 * blocks, 0, 16 * blocks, True, full_blocks=blocks, unsaved=unsaved)


HELD = st.lists(st.tuples(st.booleans(), st.integers(1, 30), st.integers(0, 30)), max_size=8)


@pytest.mark.parametrize("name", KV_POLICIES)
@settings(max_examples=60, deadline=None)
@given(HELD, st.integers(0, 60), st.integers(0, 40), st.integers(0, 60), st.integers(0, 50), st.booleans())
def test_only_online_requests_swap_out_and_only_what_is_held_and_not_saved_is_copied(
    name: str, rows: list[tuple[bool, int, int]], need: int, free: int, room: int, copied_ms: int, alone: bool
) -> None:
    policy = KV_POLICIES[name]()
    running = [held(number, *one) for number, one in enumerate(rows)]
    waiting = WaitingOnline([Waiting("new", 16 * need, need, 1.0)] if need else [])
    ranks = {one: place for place, one in enumerate(["new", *(r.name for r in running if not r.offline)])}
    seen = EngineView(running, waiting, free, free + sum(one.blocks_now for one in running), 8, 0.0, 16)
    holders = tuple(Holder(r.name, r.full_blocks, r.full_blocks - r.unsaved, r.offline) for r in running)
    unsaved = {r.name: r.unsaved for r in running}
    for step in range(4):
        policy.choose_copies(CopyState(holders, free, max(1, seen.total_blocks), room_for(room), 0.1 * step, copied_ms / 1e3 or None))
        chosen = policy.swap_out(seen, ranks, lambda names: {one: float(place) for one, place in ranks.items()})
        assert len(set(chosen)) == len(chosen)
        assert not any(running[place].offline for place in chosen)
        assert need or not chosen
        assert chosen == policy.swap_out(seen, ranks, lambda names: {one: float(place) for one, place in ranks.items()})
        copies = policy.copies(seen, ranks, 0.05, alone)
        assert (copies is None) == (name == "none")
        assert policy.max_waited >= 0
        if copies is not None:
            assert all(0 < blocks <= unsaved[one] for one, blocks in copies.grants.items())
            assert sum(copies.grants.values()) <= room
            assert copies.allowed is None or copies.allowed >= 0


def test_without_an_order_that_can_tell_turns_nobody_swaps_out() -> None:
    policy = KV_POLICIES["reactive"]()
    seen = EngineView([held(0, False, 9, 9)], WaitingOnline([Waiting("new", 160, 10, 1.0)]), 0, 9, 8, 0.0, 16)
    policy.copies(seen, {}, 0.05, False)
    assert policy.swap_out(seen, {"new": 0, "r0": 1}, lambda names: {}) == ()
    assert policy.swap_out(seen, {"new": 0, "r0": 1}, lambda names: {"new": 0.0, "r0": 9.0}) == ()  # 9 blocks are not 10
