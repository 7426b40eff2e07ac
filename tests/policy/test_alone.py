"""Chat's latency as it would be without batch work: the account of delay, and how much it lets a step grow."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harvester.policy.model.alone import ChatAlone
from harvester.policy.model.latency import LatencyModel
from harvester.policy.step.batch import batch_of
from harvester.policy.step.plan import plan_step
from harvester.policy.step.preempt import PLANNED_SLOWDOWN
from harvester.policy.step.slo import online_work
from harvester.policy.step.view import StepPlan, StepView
from harvester.policy.view import Running
from tests.policy.asked import LIMITS, MODEL, chat, planned_load, prompt, row, slo, view

INF = float("inf")
AUTO = replace(LIMITS, max_slowdown=1.25)


def test_a_first_token_is_delayed_by_what_the_steps_it_waited_through_held_of_batch_work() -> None:
    account = ChatAlone()
    account.arrive("a", 0.05, 10.0)
    account.ran(0.1, 0.06, [], 0, 10.1)
    account.ran(0.05, 0.05, ["a"], 0, 10.2)  # the 0.05 s between the two steps are charged to nobody
    assert account.times.ttft_s == pytest.approx(0.2)
    assert account.times.ttft_alone_s == pytest.approx(0.16)


def test_who_came_in_the_middle_of_a_step_is_delayed_by_its_part_of_it() -> None:
    account = ChatAlone()
    account.ran(0.4, 0.0, [], 0, 10.0)
    account.arrive("a", 0.05, 9.9)
    account.ran(0.1, 0.1, ["a"], 0, 10.1)
    assert account.times.ttft_alone_s == pytest.approx(0.1)


def test_who_comes_behind_others_takes_over_their_delay_as_far_as_it_waits_for_them() -> None:
    for prefill_s, taken_over_s in ((0.5, 0.2), (0.1, 0.1)):
        account = ChatAlone()
        account.arrive("first", prefill_s, 10.0)
        account.ran(0.4, 0.2, [], 0, 10.4)
        account.arrive("second", 0.1, 10.4)
        account.ran(0.5, 0.5, ["second"], 0, 10.9)
        assert account.times.ttft_s - account.times.ttft_alone_s == pytest.approx(taken_over_s)


def test_a_new_queue_begins_without_the_delay_of_the_one_before() -> None:
    account = ChatAlone()
    account.arrive("first", 1.0, 10.0)
    account.ran(0.4, 0.2, ["first"], 0, 10.4)
    account.arrive("second", 1.0, 11.0)
    account.ran(0.1, 0.1, ["second"], 0, 11.1)
    assert account.times.ttft_s - account.times.ttft_alone_s == pytest.approx(0.2)


def test_gaps_are_counted_once_for_each_request_that_made_a_token() -> None:
    account = ChatAlone()
    account.ran(0.02, 0.01, [], 3, 10.0)
    assert (account.times.gaps, account.times.gap_s, account.times.gap_alone_s) == (3, pytest.approx(0.06), pytest.approx(0.03))


def test_one_that_was_aborted_is_awaited_no_more() -> None:
    account = ChatAlone(1.25)
    account.arrive("a", 0.05, 10.0)
    account.ran(0.1, 0.0, [], 0, 10.1)
    assert account.debt_s(10.1) == pytest.approx(0.1)
    account.finish("a")
    assert account.debt_s(10.1) == 0.0


def test_a_share_that_steps_did_not_use_is_saved_and_one_that_they_exceeded_is_owed_up_to_a_bound() -> None:
    account, found = ChatAlone(1.25, planned=0.8), []
    for seconds in (0.1, 0.1, 0.145, 0.2, 0.2, 0.1):
        account.ran(seconds, 0.1, [], 1, 1.0)
        found.append(account.saved_s)
    assert found == pytest.approx([0.02, 0.03, 0.005, -0.03, -0.03, -0.01])
    account.ran(0.1, 0.0, [], 0, 2.0)
    assert account.saved_s == 0.0, "a step without chat ends what was saved"


@given(st.lists(st.tuples(st.floats(0.001, 1.0), st.floats(0.0, 1.0)), min_size=1, max_size=20))
def test_without_jobs_nobody_would_have_waited_longer(steps: list[tuple[float, float]]) -> None:
    account, now_s = ChatAlone(), 0.0
    account.arrive("a", 0.1, 0.0)
    for seconds, share in steps:
        now_s += seconds
        account.ran(seconds, share * seconds, [], 1, now_s)
    account.ran(0.1, 0.1, ["a"], 0, now_s + 0.1)
    times = account.times
    assert 0.0 <= times.ttft_alone_s <= times.ttft_s * (1 + 1e-9)
    assert 0.0 <= times.gap_alone_s <= times.gap_s * (1 + 1e-9)


# -- steps beside chat that is promised no number ------------------------------------------------------------------------------------


def planned(seen: StepView) -> tuple[StepPlan, float]:
    """The plan of the step, and seconds of its online work alone. The model has seen such steps of chat alone."""
    model, alone = deepcopy(MODEL), online_work(seen, batch_of(seen.running), AUTO, MODEL).load
    for _ in range(LatencyModel.KIND_STEPS):
        model.observe(alone, MODEL.predict(alone))
    return plan_step(seen, AUTO, slo(model)), MODEL.predict(alone)


def grown(*online: object, **fields: object) -> tuple[float, float]:
    """Seconds of the step with batch work, and of its online work alone."""
    seen = view(*online, *[row()] * 60, row(2000), **fields)  # type: ignore[arg-type]
    plan, alone_s = planned(seen)
    return MODEL.predict(planned_load(seen, plan)), alone_s


@pytest.mark.parametrize("model", [LatencyModel(), MODEL], ids=["not ready", "of other steps"])
def test_chat_runs_alone_until_it_is_known_what_it_takes_alone(model: LatencyModel) -> None:
    seen = view(prompt(800, INF), *[row()] * 60, row(2000))
    plan = plan_step(seen, AUTO, slo(model))
    assert (plan.run, plan.offline_tokens) == ((0,), 0)
    numbered = replace(AUTO, max_slowdown=None, ttft_s=0.5)
    assert plan_step(view(chat(0.1), *[row()] * 60), numbered, slo(model)).offline_tokens, "with a number there is no such question"


@pytest.mark.parametrize("online", [[chat(INF)] * 8, [chat(INF), prompt(500, INF)]], ids=["gaps", "a prompt"])
def test_a_step_beside_chat_without_an_slo_grows_by_a_share_of_itself(online: list[object]) -> None:
    seconds, alone_s = grown(*online)
    assert alone_s * 1.05 < seconds <= alone_s * (1 + 0.25 * PLANNED_SLOWDOWN) * 1.0001


def test_what_chat_is_behind_is_taken_from_what_a_step_may_grow_by() -> None:
    free_s, alone_s = grown(prompt(800, INF))
    owing_s, _ = grown(prompt(800, INF), debt_s=0.1 * alone_s)
    assert owing_s <= free_s - 0.05 * alone_s
    assert grown(prompt(800, INF), debt_s=alone_s)[0] == pytest.approx(alone_s)


def test_chat_with_numbers_is_not_held_to_the_factor() -> None:
    seconds, alone_s = grown(*[chat(0.1)] * 8)
    assert seconds > 2 * alone_s


def test_a_prompt_that_waits_without_an_slo_binds_the_step_too() -> None:
    waits = {"online_waiting": 1, "waiting_tokens": 400, "waiting_due_s": INF, "waiting_unpromised": True}
    seconds, alone_s = grown(*[chat(10.0)] * 8, **waits)
    assert seconds <= alone_s * (1 + 0.25 * PLANNED_SLOWDOWN) * 1.0001


@pytest.mark.parametrize(
    ("online", "context", "saved", "runs"),
    [
        pytest.param(chat(INF), 12_000, 0.0, False, id="nothing saved"),
        pytest.param(chat(INF), 12_000, 0.2, False, id="too little saved"),
        pytest.param(chat(INF), 12_000, 0.3, True, id="enough saved"),
        pytest.param(chat(INF), 12_000, 9.0, True, id="by longer steps"),
        pytest.param(chat(INF), 40_000, 9.0, False, id="more than half a step"),
        pytest.param(prompt(8, INF), 100_000, 0.3, False, id="a first token is awaited"),
    ],
)
def test_a_row_that_fits_in_no_step_beside_chat_runs_by_what_the_steps_before_have_saved(
    online: Running, context: int, saved: float, runs: bool
) -> None:
    """``saved``: in times of the step's time alone. A row with a context of 4,000 tokens would fit by itself."""
    _, alone_s = planned(view(online))
    plan, _ = planned(view(online, row(context=context), saved_s=saved * alone_s))
    assert (1 in plan.run, 1 in plan.pause) == (runs, not runs)
