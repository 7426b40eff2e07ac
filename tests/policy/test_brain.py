"""The brain's verbs, by example; and its plans, in any simulated run."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harvester.policy.brain import Brain
from harvester.policy.kv.checkpoint import CUDA_COST, Thresholds
from harvester.policy.kv.policy import Checkpoints, NoCheckpoints
from harvester.policy.model.latency import LatencyModel, StepLoad
from harvester.policy.model.prediction import MIN_ANSWERS
from harvester.policy.order.econo import RANGE_TOKENS
from harvester.policy.order.offline import OfflineRow
from harvester.policy.order.online import OnlineRequest
from harvester.policy.parts import ADMISSIONS, BUDGETS, OFFLINE_ORDERS, ONLINE_ORDERS, PartsConfig, parts_of
from harvester.policy.ran import StepRan
from harvester.policy.view import EngineView, Plan, PolicyConfig, Running
from harvester.policy.waiting import Waiting, WaitingOnline
from harvester.sim.engine import SimEngine
from harvester.sim.loop import Simulation
from harvester.sim.trace import Request
from tests.policy.asked import LIMITS

PLAIN = PartsConfig(online_order="fcfs", budget="fixed", reserve="fixed")


def a_brain(config: PartsConfig = PLAIN) -> Brain:
    return Brain(parts_of(config, LatencyModel()), LIMITS)


def seen(*running: Running, waiting: tuple[Waiting, ...] = (), **fields: Any) -> EngineView:
    given_ = {"free_blocks": 100, "total_blocks": 200, "max_seqs": 8, "now_s": 1.0, "block_tokens": 16, **fields}
    return EngineView(running, WaitingOnline(waiting), **given_)


def chat(name: str) -> Running:
    return Running(name, False, 1, 5, 0, 0, 80, True)


def row(name: str) -> Running:
    return Running(name, True, 1, 5, 9, 0, 80, True)


# -- verbs ----------------------------------------------------------------------------------------------------------------------------


def test_online_requests_are_ranked_by_priority_and_then_by_the_order() -> None:
    brain = a_brain()
    for name, priority in (("first", 0), ("second", 0), ("paid", -10)):
        brain.arrive(OnlineRequest(name, priority), 0.0)
    assert brain.plan(seen(chat("first"))).ranks == {"paid": 0, "first": 1, "second": 2}


def answered(brain: Brain, kind: str, tokens: int | None) -> None:
    """As many answers of one kind as a prediction needs."""
    for number in range(MIN_ANSWERS):
        brain.arrive(OnlineRequest(f"{kind}{number}", kind=kind, max_tokens=900), 0.0)
        brain.finish(f"{kind}{number}", tokens)


def test_an_answer_is_expected_to_be_as_long_as_those_that_ended_unless_its_length_is_known() -> None:
    brain = a_brain(replace(PLAIN, online_order="econo"))
    answered(brain, "brief", RANGE_TOKENS)
    answered(brain, "wordy", 4 * RANGE_TOKENS)
    answered(brain, "gone", None)
    for name, kind, known in (("a", "brief", None), ("b", "wordy", None), ("c", "brief", 2 * RANGE_TOKENS)):
        brain.arrive(OnlineRequest(name, kind=kind, max_tokens=900, expected_tokens=known, due_s=99.0), 0.0)
    assert brain.plan(seen()).ranks == {"b": 0, "c": 1, "a": 2}
    assert brain.predictor.accuracy().judged == MIN_ANSWERS  # the wordy ones, predicted from all answers


def test_an_order_that_says_so_takes_the_kv_of_its_last_where_running_requests_lack_blocks() -> None:
    taken = {}
    for order in ("edf", "fcfs"):
        brain = a_brain(replace(PLAIN, online_order=order))
        for name, due_s in (("late", 9.0), ("soon", 1.0)):
            brain.arrive(OnlineRequest(name, due_s=due_s), 0.0)
        grows = [chat(name)._replace(blocks_step=1) for name in ("late", "soon")]
        taken[order] = brain.plan(seen(*grows, free_blocks=1)).swap_out
    assert taken == {"edf": (0,), "fcfs": ()}


def test_an_online_request_that_is_told_of_again_keeps_its_place() -> None:
    brain = a_brain()
    for name in ("a", "b", "a"):
        brain.arrive(OnlineRequest(name), 0.0)
    assert brain.online == 2
    assert brain.plan(seen()).ranks == {"a": 0, "b": 1}


def test_what_has_finished_is_forgotten_and_what_is_not_known_is_passed_over() -> None:
    brain = a_brain(PartsConfig())
    brain.arrive(OnlineRequest("chat"), 0.0)
    brain.arrive(OfflineRow("row", "job"), 0.0)
    for name in ("chat", "row", "row", "stranger"):
        brain.finish(name)
    brain.observe(StepRan(StepLoad.decode(5), ["chat"], {"job": 1}), 0.1, 1.0)
    assert (brain.online, len(brain.offline), brain.plan(seen()).ranks, brain.plan(seen()).admit) == (0, 0, {}, ())


def test_a_chunk_of_a_prompt_is_no_gap_between_tokens() -> None:
    brain = a_brain()
    brain.arrive(OnlineRequest("a", prompt_tokens=5000), 0.0)
    brain.answered(StepRan(StepLoad.prefill(2048), ("a",)), 0.06, 0.1)
    assert (brain.chat_times.first_tokens, brain.chat_times.gaps) == (0, 0)
    brain.answered(StepRan(StepLoad.prefill(904), ("a",), first_tokens=("a",)), 0.06, 0.2)
    brain.answered(StepRan(StepLoad.decode(5000), ("a",), gaps=1), 0.01, 0.21)
    times = brain.chat_times
    assert (times.first_tokens, times.gaps, times.gap_s) == (1, 1, 0.01)


def test_a_row_is_admitted_until_it_is_taken_and_again_when_it_has_lost_its_kv() -> None:
    brain = a_brain()
    for name in "ab":
        brain.arrive(OfflineRow(name, "job", final_blocks=9), 0.0)
    assert brain.plan(seen()).admit == ("a", "b")
    brain.offline.take("b")
    assert brain.plan(seen()).admit == ("a",)
    brain.arrive(OfflineRow("b", "job", begun=True, final_blocks=9), 1.0)
    assert brain.plan(seen()).admit == ("b", "a")


def test_the_job_that_was_served_less_goes_next() -> None:
    brain = a_brain()
    for name, job in (("a", "one"), ("b", "two")):
        brain.arrive(OfflineRow(name, job), 0.0)
    brain.observe(StepRan(StepLoad.decode(5), (), {"one": 50}), 0.1, 1.0)
    assert brain.plan(seen()).admit == ("b", "a")


def test_no_row_is_admitted_while_an_online_request_waits_and_the_newest_gives_way_to_it() -> None:
    brain = a_brain()
    brain.arrive(OfflineRow("new", "job"), 0.0)
    brain.arrive(OnlineRequest("chat"), 0.0)
    plan = brain.plan(seen(row("a"), row("b"), waiting=(Waiting("chat", 160, 10, 9.0),), free_blocks=6))
    assert (plan.admit, plan.preempt, plan.may_end) == ((), (1,), False)


def test_an_engine_that_could_run_nothing_takes_the_kv_of_the_newest_row() -> None:
    brain = a_brain()
    brain.arrive(OnlineRequest("chat"), 0.0)
    plan = brain.plan(seen(row("a"), row("b"), waiting=(Waiting("chat", 16, 1, 9.0),), stalled=True))
    assert (plan.run, plan.preempt) == ((0,), (1,))


def test_an_online_request_whose_turn_it_is_not_gives_its_slot_and_keeps_its_kv() -> None:
    brain = a_brain(replace(PLAIN, online_order="fixed"))
    for name, tokens in (("long", 500), ("short", 5)):
        brain.arrive(OnlineRequest(name, prompt_tokens=tokens), 0.0)
    plan = brain.plan(seen(chat("long"), waiting=(Waiting("short", 5, 1, 9.0),), max_seqs=1))
    assert (plan.run, plan.sit_out, plan.preempt) == ((), (0,), ())


def test_no_more_sit_out_than_prompts_that_the_step_has_tokens_for() -> None:
    brain = a_brain(replace(PLAIN, online_order="fixed"))
    for number in range(16):
        brain.arrive(OnlineRequest(f"old{number}", prompt_tokens=500), 0.0)
        brain.arrive(OnlineRequest(f"new{number}", prompt_tokens=400), 0.0)
    waiting = tuple(Waiting(f"new{number}", 400, 1, 9.0) for number in range(16))
    plan = brain.plan(seen(*[chat(f"old{number}") for number in range(16)], waiting=waiting, max_seqs=16, max_tokens=512))
    assert plan.sit_out == (14, 15)


def test_more_sit_out_where_most_of_the_waiting_prompts_was_found_cached() -> None:
    brain = a_brain(replace(PLAIN, online_order="fixed"))
    for number in range(16):
        brain.arrive(OnlineRequest(f"old{number}", prompt_tokens=500), 0.0)
        brain.arrive(OnlineRequest(f"new{number}", prompt_tokens=400), 0.0)
    for _ in range(50):
        brain.observe(StepRan(StepLoad.decode(5), ("old0",), chat_admitted_tokens=400, chat_cached_tokens=300), 0.1, 1.0)
    waiting = tuple(Waiting(f"new{number}", 400, 1, 9.0) for number in range(16))
    plan = brain.plan(seen(*[chat(f"old{number}") for number in range(16)], waiting=waiting, max_seqs=16, max_tokens=512))
    assert plan.sit_out == (10, 11, 12, 13, 14, 15), "a sixth gets what five leave of the step"


def test_a_step_with_offline_work_may_end_for_an_arrival_unless_it_holds_an_online_prompt() -> None:
    brain = a_brain()
    plan = brain.plan(seen(row("a")))
    assert (plan.may_end, plan.alone) == (True, True)
    brain.arrive(OnlineRequest("chat"), 0.0)
    plan = brain.plan(seen(row("a"), chat("chat")))
    assert (plan.may_end, plan.alone) == (True, False)
    assert not brain.plan(seen(chat("chat"))).may_end
    assert not brain.plan(seen(row("a"), chat("chat")._replace(step_tokens=9, decoding=False))).may_end


# -- plans ----------------------------------------------------------------------------------------------------------------------------


class Watched(Brain):
    """A brain that is asked twice, and whose plans are checked."""

    def plan(self, view: EngineView) -> Plan:
        plan = super().plan(view)
        assert super().plan(view) == plan
        self._check_places(view, plan)
        waiting = iter([one.name for one in self.parts.offline.rows()])
        assert all(name in waiting for name in plan.admit), "in their order, without those too large for now"
        assert not (plan.admit and view.waiting)
        assert list(plan.ranks.values()) == list(range(len(plan.ranks)))
        assert {one.name for one in view.running if not one.offline} <= plan.ranks.keys()
        assert sum(one.name in plan.ranks for one in view.waiting) >= min(len(view.waiting), view.max_seqs)
        assert plan.budget_tokens is None or plan.budget_tokens >= 0
        assert plan.offline_tokens is None or plan.offline_tokens >= 0
        if plan.may_end:
            assert not view.waiting
            assert all(view.running[place].offline or view.running[place].decoding for place in plan.run)
        if plan.alone:
            assert all(view.running[place].offline for place in plan.run)
        return plan

    def _check_places(self, view: EngineView, plan: Plan) -> None:
        groups = (plan.run, plan.pause, plan.sit_out, plan.preempt, plan.swap_out)
        assert sorted(place for group in groups for place in group) == list(range(len(view.running)))
        for group, offline in ((plan.pause, True), (plan.sit_out, False), (plan.preempt, True), (plan.swap_out, False)):
            assert all(view.running[place].offline is offline for place in group)


def cost(load: StepLoad) -> float:
    return 0.01 + 0.0005 * load.tokens


def crowd(seed: int, slo_s: float) -> list[Request]:
    """Two dozen requests within a second, most of them longer than a simulated engine has KV for beside others."""
    draw = Random(seed)
    return [
        Request(
            f"r{number}",
            draw.uniform(0.0, 1.0),
            draw.randint(1, 90),
            answer := draw.randint(1, 40),
            draw.choice(("", "j", "k")),
            max_tokens=answer + draw.randint(0, 9),
            priority=draw.choice((0, 0, 0, -10)),
            ttft_s=slo_s,
            tpot_s=slo_s / 2,
        )
        for number in range(24)
    ]


@pytest.mark.parametrize("checkpoints", [False, True], ids=["no checkpoints", "checkpoints"])
@settings(max_examples=8, deadline=None)
@given(
    st.integers(0, 2**32),
    st.builds(
        PartsConfig,
        st.sampled_from([*ONLINE_ORDERS]),
        st.sampled_from([*OFFLINE_ORDERS]),
        st.sampled_from([*ADMISSIONS]),
        st.sampled_from([*BUDGETS]),
    ),
    st.integers(9, 24),
    st.integers(2, 6),
    st.sampled_from([0.05, 1.0]),
)
def test_a_plan_parts_what_runs_and_changes_nothing_when_it_is_asked_for_again(
    checkpoints: bool, seed: int, config: PartsConfig, blocks: int, slots: int, slo_s: float
) -> None:
    requests = crowd(seed, slo_s)
    kv = Checkpoints(Thresholds(0.9, 0.5), CUDA_COST, 1.0, wait_blocks=4) if checkpoints else NoCheckpoints()
    engine = SimEngine(cost, blocks, slots, 64, host_blocks=60 if checkpoints else 0, block_copy_s=0.001, layers=3)
    brain = Watched(parts_of(config, learnt(), kv), PolicyConfig(1, 0.1, 32, ttft_s=slo_s))
    simulation = Simulation(engine, brain)
    assert len(simulation.run(requests)) == len(requests)
    simulation.check()
    assert (brain.online, len(brain.offline)) == (0, 0)


def learnt() -> LatencyModel:
    model = LatencyModel()
    for tokens in range(1, 65):
        for load in (StepLoad.prefill(tokens), StepLoad(0, 0.0, tokens, 0, tokens)):
            model.observe(load, cost(load))
    return model
