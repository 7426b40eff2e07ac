"""What the brain's parts are shown of a step and told of what comes and goes, and how their answers become the plan."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import pytest

from harvester.policy.brain import Brain
from harvester.policy.kv.policy import CopyState, NoCheckpoints, Turns
from harvester.policy.model.latency import LatencyModel, StepLoad
from harvester.policy.order.offline import OfflineRow
from harvester.policy.order.online import Fcfs, OnlineRequest
from harvester.policy.parts import Parts, PartsConfig, parts_of
from harvester.policy.ran import StepRan
from harvester.policy.step.batch import Batch
from harvester.policy.step.share import FixedShare, Space
from harvester.policy.step.view import StepPlan, StepView
from harvester.policy.view import Copies, EngineView, PolicyConfig, Running
from harvester.policy.waiting import Waiting
from tests.policy.asked import LIMITS, room_for
from tests.policy.machine import a_model
from tests.policy.test_brain import PLAIN, chat, row, seen


class WatchedShare(FixedShare):
    """Keeps the step that it was asked about."""

    view: StepView

    def alone_tokens(self, view: StepView, batch: Batch) -> int | None:
        self.view = view
        return 77

    def beside_chat(self, view: StepView, batch: Batch, config: PolicyConfig, limit_s: float, space: Space) -> StepPlan:
        self.view = view
        return super().beside_chat(view, batch, config, limit_s, space)


class WatchedOrder(Fcfs):
    """Keeps what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.came: list[tuple[OnlineRequest, float]] = []
        self.told: list[tuple[list[str], float, float]] = []

    def arrive(self, request: OnlineRequest, now_s: float) -> None:
        super().arrive(request, now_s)
        self.came.append((request, now_s))

    def ran(self, names: Iterable[str], seconds: float, now_s: float) -> None:
        self.told.append((list(names), seconds, now_s))

    def next_turn_s(self, names: Collection[str], now_s: float, batch: int) -> Mapping[str, float]:
        return dict.fromkeys(names, now_s + batch)


class Swapping(NoCheckpoints):
    """Swaps out who is at these places, and keeps what it was asked."""

    max_waited = 3

    def __init__(self, *places: int) -> None:
        self.places = places
        self.turns_s: Mapping[str, float] = {}
        self.asked: list[tuple[tuple[str, ...], float, bool]] = []
        self.covered: list[CopyState] = []

    def swap_out(self, view: EngineView, ranks: Mapping[str, int], turns_s: Turns) -> tuple[int, ...]:
        self.turns_s = turns_s([one.name for one in view.running if not one.offline])
        return self.places

    def copies(self, view: EngineView, ranks: Mapping[str, int], limit_s: float, alone: bool) -> Copies | None:
        self.asked.append((tuple(one.name for one in view.running), limit_s, alone))
        return Copies({"row": 2}, 5, 6, 7)

    def choose_copies(self, state: CopyState) -> None:
        self.covered.append(state)


def watched(
    model: LatencyModel | None = None, *swaps: int, config: PartsConfig = PLAIN, limits: PolicyConfig = LIMITS
) -> tuple[Brain, WatchedShare, WatchedOrder, Swapping]:
    share, order, kv = WatchedShare(), WatchedOrder(), Swapping(*swaps)
    made: Parts = replace(parts_of(config, model or LatencyModel(), kv), budget=share, online=order)
    return Brain(made, limits), share, order, kv


def test_a_step_is_seen_with_all_that_waits_comes_back_and_is_kept() -> None:
    brain, share, _, _ = watched(config=PartsConfig(admission="worst", budget="fixed", first_slots=2, first_blocks=9))
    following = OfflineRow("next", "job", final_blocks=11)
    brain.arrive(following, 0.0)
    running = (row("r"),)
    waits = (Waiting("a", 160, 10, 9.0), Waiting("b", 16, 1, 4.0))
    view = seen(
        *running,
        waiting=waits,
        loading=3,
        loading_growth=4,
        loading_rows={"back": 40},
        returning_tokens=5,
        returning_context=6,
        max_tokens=512,
        now_s=8.0,
    )
    brain.plan(view)
    assert share.view == StepView(
        running=running,
        online_waiting=2,
        online_waiting_blocks=11,
        offline_next_blocks=11,
        offline_next=[1],
        free_blocks=100,
        total_blocks=200,
        max_seqs=5,
        online_idle_s=math.inf,
        now_s=8.0,
        waiting_due_s=4.0,
        waiting_tokens=176,
        returning_tokens=5,
        returning_context=6,
        max_tokens=512,
        offline_step_s=math.inf,
        loading_growth=4,
        reserve=(2, 9),
        guarantee=None,
        ranks={},
        max_waited=3,
        block_tokens=16,
        offline_rows={"next": following},
        loading_rows={"back": 40},
    )
    brain, share, _, _ = watched()
    plan = brain.plan(seen())
    assert (share.view.online_waiting, share.view.waiting_due_s, share.view.offline_next_blocks, share.view.reserve) == (
        0,
        math.inf,
        0,
        None,
    )
    assert (plan.offline_tokens, plan.budget_tokens, plan.reserve, plan.limit_s, plan.may_end) == (None, 77, (0, 0), math.inf, True)


def test_the_time_without_chat_counts_from_the_last_plan_with_one() -> None:
    brain, share, _, _ = watched()
    brain.arrive(OnlineRequest("a"), 1.0)
    brain.plan(seen(chat("a"), now_s=2.0))
    assert share.view.online_idle_s == 0.0
    brain.finish("a")
    brain.plan(seen(now_s=5.0))
    assert share.view.online_idle_s == 3.0


def test_a_step_of_offline_work_is_as_long_as_arrivals_let_it() -> None:
    brain, share, _, _ = watched(a_model())
    for number in range(2):
        brain.arrive(OnlineRequest(f"a{number}"), 10.0 * number)
    brain.plan(seen(row("r"), now_s=12.0))
    often = share.view.offline_step_s
    brain.plan(seen(row("r"), now_s=500.0))
    assert 0.0 < often < share.view.offline_step_s < math.inf


def test_where_nothing_is_promised_a_stretch_between_safepoints_takes_half_of_what_a_prompt_does_at_most() -> None:
    """A quarter more is allowed, and 0.8 of that is planned: 0.2 of a prompt. An arrival waits for half of a stretch on average."""
    model = a_model()
    promised, *_ = watched(model)
    unpromised = Brain(parts_of(PLAIN, model), replace(LIMITS, max_slowdown=1.25, reserve_s=60.0))
    for brain in (promised, unpromised):
        brain.arrive(OnlineRequest("a", prompt_tokens=300), 10.0)
        brain.plan(seen(chat("a"), now_s=10.0))
        brain.finish("a")
    prefill_s = model.predict(StepLoad.prefill(300))
    assert unpromised.plan(seen(row("r"), now_s=70.0)).detect_s == pytest.approx(0.4 * prefill_s)
    assert unpromised.plan(seen(row("r"), now_s=70.1)).detect_s == math.inf  # long after the last arrival
    assert promised.plan(seen(row("r"), now_s=12.0)).detect_s == math.inf  # an arrival with an SLO is kept within it by the signal


def test_a_step_of_offline_work_is_no_longer_than_its_stretches_where_nothing_is_promised() -> None:
    model = a_model()
    brain, share, _, _ = watched(model, limits=replace(LIMITS, max_slowdown=1.25, reserve_s=60.0))
    brain.arrive(OnlineRequest("a", prompt_tokens=300), 10.0)
    brain.plan(seen(chat("a"), now_s=10.0))
    brain.finish("a")
    for max_segments, parts in ((0, math.inf), (4, 4), (32, 32)):
        plan = brain.plan(seen(row("r"), now_s=12.0, max_segments=max_segments))
        assert share.view.offline_step_s == (parts * plan.detect_s if max_segments else math.inf)


def test_an_order_is_told_what_a_request_will_take_by_the_model_and_the_reserve_what_it_needs() -> None:
    model = a_model()
    brain, share, order, _ = watched(model, config=PartsConfig(online_order="fcfs", budget="fixed"))
    request = OnlineRequest("a", -5, prompt_tokens=300, max_tokens=900, expected_tokens=20, due_s=9.0, blocks=19)
    brain.arrive(request, 1.0)
    prefill_s, decode_s = model.predict(StepLoad.prefill(300)), model.predict(StepLoad.decode(300))
    known = replace(request, prefill_s=prefill_s, token_s=decode_s)
    assert order.came == [(known, 1.0)]
    assert 0.0 < known.prefill_s < known.expected_s
    assert brain.plan(seen(now_s=1.0)).reserve == share.view.reserve == (1, 19)


def test_the_reserve_leaves_out_what_arrivals_share_with_chat_that_runs() -> None:
    brain = Brain(parts_of(replace(PLAIN, reserve="bursts"), a_model()), LIMITS)
    for step in range(40):
        brain.observe(StepRan(StepLoad.decode(5), ("old",), chat_admitted_tokens=400, chat_cached_tokens=400), 0.1, float(step))
    brain.arrive(OnlineRequest("cached", blocks=100), 50.0)
    assert brain.plan(seen(now_s=50.0)).reserve == (1, 100), "cached blocks that nobody holds are among the free ones"
    for step in range(40):
        brain.observe(StepRan(StepLoad.decode(5), ("old",), chat_blocks=40, chat_taken_blocks=10), 0.1, 50.0 + step)
    for number in range(3):
        brain.arrive(OnlineRequest(f"c{number}", blocks=100), 200.0)
    assert brain.plan(seen(now_s=200.0)).reserve == (3, 78), "26 blocks each, rounded up"


def test_an_order_is_told_of_steps_with_those_that_have_not_ended() -> None:
    brain, _, order, _ = watched()
    for name in "ab":
        brain.arrive(OnlineRequest(name), 0.0)
    brain.finish("a")
    brain.observe(StepRan(StepLoad.decode(9), ["a", "b"]), 0.25, 7.0)
    assert order.told == [(["b"], 0.25, 7.0)]
    assert brain.parts.model.reach_tokens == 2, "the model has seen a step of one token"


def test_who_swaps_out_leaves_the_step_waits_again_and_frees_its_blocks() -> None:
    brain, share, _, kv = watched(None, 1)
    for name in ("a", "b", "c"):
        brain.arrive(OnlineRequest(name), 0.0)
    b = Running("b", False, 1, 7, 0, 0, 80, True, due_s=6.0)
    plan = brain.plan(seen(chat("a"), b, row("r"), chat("c"), waiting=(Waiting("d", 5, 1, 9.0),), free_blocks=3, now_s=2.0))
    assert (plan.run, plan.swap_out, plan.preempt, plan.pause, plan.sit_out) == ((0, 3, 2), (1,), (), (), ())
    assert (share.view.free_blocks, share.view.online_waiting, share.view.online_waiting_blocks) == (10, 2, 1 + 6)
    assert (share.view.waiting_tokens, share.view.waiting_due_s) == (5 + 81, 6.0)
    assert kv.asked == [(("a", "r", "c"), plan.limit_s, False)]
    assert kv.turns_s == {"a": 10.0, "b": 10.0, "c": 10.0}
    assert plan.copies == Copies({"row": 2}, 5, 6, 7)
    assert plan.ranks == {"a": 0, "b": 1, "c": 2}


def test_a_stalled_engine_frees_the_newest_row_and_only_a_row() -> None:
    brain, share, _, _ = watched()
    brain.arrive(OnlineRequest("a"), 0.0)
    waits = (Waiting("a", 16, 1, 9.0),)
    plan = brain.plan(seen(row("q"), row("r"), chat("b"), waiting=waits, stalled=True, free_blocks=50))
    assert (plan.preempt, share.view.free_blocks, share.view.online_waiting) == ((1,), 55, 1)
    assert brain.plan(seen(chat("b"), waiting=waits, stalled=True)).preempt == ()
    holder = seen(row("q"), row("r"), chat("b"), waiting=waits, stalled=True, free_blocks=50, item_holders=frozenset({"q"}))
    assert brain.plan(holder).preempt == (0,), "what it holds beside KV may be what is lacking"
    assert brain.plan(seen(row("q"), waiting=waits)).preempt == ()


@pytest.mark.parametrize(("slots", "out"), [(2, ()), (1, (0,))], ids=["a slot for each", "one slot"])
def test_one_whose_turn_it_is_not_sits_out_where_there_are_more_than_slots(slots: int, out: tuple[int, ...]) -> None:
    brain, _, _, _ = watched()
    brain.arrive(OnlineRequest("late"), 0.0)
    brain.arrive(OnlineRequest("paid", -1), 0.0)
    plan = brain.plan(seen(chat("late"), waiting=(Waiting("paid", 16, 1, 9.0),), max_seqs=slots))
    assert (plan.sit_out, plan.run) == (out, () if out else (0,))


def test_what_is_copied_while_a_step_runs_is_chosen_by_its_part() -> None:
    brain, _, _, kv = watched()
    state = CopyState((), 1, 2, room_for(3), 4.0, None)
    brain.choose_copies(state)
    assert kv.covered == [state]
