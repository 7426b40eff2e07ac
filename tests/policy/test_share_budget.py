"""The plan of a step with a latency model: what is promised bounds it, and offline work gets what is left."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harvester.policy.model.latency import LatencyModel, StepLoad
from harvester.policy.step.batch import batch_of
from harvester.policy.step.plan import plan_step
from harvester.policy.step.share import MIN_CHUNK, PROMPTS_PER_STEP
from harvester.policy.step.slo import limit_s
from harvester.policy.step.view import StepView
from tests.policy.asked import LIMITS, MODEL, chat, planned_load, prompt, row, slo, view
from tests.policy.machine import CPU, a_model

# -- the plan -----------------------------------------------------------------------------------------------------------------------


def test_the_budget_replaces_the_fixed_share_and_grows_with_what_is_promised() -> None:
    running = (row(4000), *[row()] * 20)
    low, middle, high = (plan_step(view(chat(tpot_s), *running), LIMITS, slo(MODEL)).offline_tokens or 0 for tpot_s in (0.03, 0.1, 0.2))
    assert 20 < low < middle < high


def test_a_budgeted_step_stays_within_its_limit_by_the_model_s_bound() -> None:
    plan = plan_step(view(chat(0.05), row(4000), *[row()] * 20), LIMITS, slo(MODEL))
    assert plan.offline_tokens is not None
    assert plan.budget_tokens == 1 + plan.offline_tokens
    load = StepLoad(0, 0.0, 21, 2100, 21) + StepLoad.prefill(plan.offline_tokens - 20, 100)
    assert 0.045 < MODEL.margin_at(0.05) * MODEL.predict(load) <= 0.05


@pytest.mark.parametrize("model", [None, LatencyModel()], ids=["no model", "not ready"])
def test_without_a_model_that_is_ready_the_share_is_fixed(model: LatencyModel | None) -> None:
    plan = plan_step(view(chat(), row(500)), LIMITS, slo(model))
    assert (plan.budget_tokens, plan.offline_tokens) == (65, 64)


def test_without_an_objective_the_share_is_fixed() -> None:
    assert plan_step(view(chat(math.inf), row(500)), LIMITS, slo(MODEL)).offline_tokens == 64


def test_a_first_token_that_is_late_leaves_offline_work_nothing() -> None:
    plan = plan_step(view(row(500), row(), prompt(30, due_s=1.0), now_s=2.0), LIMITS, slo(MODEL))
    assert (plan.run, plan.pause, plan.budget_tokens, plan.offline_slots) == ((2,), (1, 0), 30, 0)


def test_decodes_that_do_not_fit_pause_the_newest_first_and_nothing_joins_them() -> None:
    plan = plan_step(view(chat(0.02), *[row()] * 100, row(500)), LIMITS, slo(MODEL))
    count = len(plan.run) - 1
    assert 0 < count < 100
    assert plan.run == tuple(range(count + 1))
    assert plan.pause == tuple(range(count + 1, 102))
    assert (plan.offline_slots, plan.offline_tokens) == (0, count)


def test_a_decode_too_long_for_any_step_beside_chat_does_not_keep_the_others_out() -> None:
    plan = plan_step(view(chat(0.05), row(context=10_000_000), row(), row(500)), LIMITS, slo(MODEL))
    assert (plan.run, plan.pause) == ((0, 2, 3), (1,))


def test_while_an_online_request_waits_its_prompt_counts_and_offline_prompts_pause() -> None:
    running = (chat(0.08), *[row()] * 300, row(500))
    short, long = (
        plan_step(view(*running, online_waiting=1, waiting_tokens=tokens, waiting_due_s=0.5), LIMITS, slo(MODEL)) for tokens in (50, 300)
    )
    assert len(short.run) > len(long.run) > 1
    assert 301 in short.pause
    assert (short.budget_tokens, short.offline_slots) == (None, 0)


def test_a_step_holds_only_so_many_offline_prompts_beside_chat() -> None:
    plan = plan_step(view(chat(0.2), *[row(50)] * 30), LIMITS, slo(MODEL))
    assert (len(plan.run), len(plan.pause), plan.offline_slots) == (1 + PROMPTS_PER_STEP, 30 - PROMPTS_PER_STEP, 0)
    waiting = view(chat(0.2), *[row(50)] * 3, offline_next=[50] * PROMPTS_PER_STEP)
    assert plan_step(waiting, LIMITS, slo(MODEL)).offline_slots == PROMPTS_PER_STEP - 3


def test_as_many_rows_are_admitted_as_the_tokens_of_the_step_are_of() -> None:
    plan = plan_step(view(chat(0.05), row(50), offline_next=[40] * 16), LIMITS, slo(MODEL))
    assert plan.offline_tokens is not None
    assert plan.offline_slots == math.ceil((plan.offline_tokens - 50) / 40) > 1


def test_a_step_does_not_grow_past_twice_what_the_model_has_seen() -> None:
    model = LatencyModel()
    for _ in range(100):
        model.observe(StepLoad.decode(100), 0.001)
    assert plan_step(view(chat(10.0), row(2000)), replace(LIMITS, offline_step_tokens=7), slo(model)).offline_tokens == 7
    model.observe(StepLoad.prefill(100), 0.001)
    assert plan_step(view(chat(10.0), row(2000)), replace(LIMITS, offline_step_tokens=7), slo(model)).offline_tokens == 199


def test_online_requests_that_decode_run_first_then_prompts_in_the_order_of_their_rank() -> None:
    prompts = [prompt()._replace(name=name) for name in "abc"]
    assert plan_step(view(prompts[0], row(), prompts[1], chat(), prompts[2], ranks={"b": 0, "c": 1, "a": 2}), LIMITS).run == (3, 2, 4, 0, 1)


@pytest.mark.parametrize(
    ("seen", "may_end", "bound"),
    [
        (view(), True, False),
        (view(row(), row(300)), True, False),
        (view(row(), chat()), True, True),
        (view(chat()), False, True),
        (view(row(), chat(), prompt(50)), False, True),
        (view(row(), chat(), online_waiting=1, waiting_tokens=9, waiting_due_s=1.0), False, True),
    ],
    ids=["idle", "offline", "shared", "chat alone", "a prompt runs", "an arrival waits"],
)
def test_a_step_with_offline_work_and_no_online_prompt_may_end_early(seen: StepView, may_end: bool, bound: bool) -> None:
    plan = plan_step(seen, LIMITS, slo(MODEL))
    assert (plan.may_end, plan.offline_tokens is not None) == (may_end, bound)


# -- the reserve --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reserve", "room"),
    [(None, (6, 80)), ((3, 20), (5, 70)), ((0, 0), (8, 90)), ((99, 999), (4, 40))],
    ids=["fixed", "of bursts", "none", "at most half"],
)
def test_the_reserve_of_recent_bursts_replaces_the_fixed_one(reserve: tuple[int, int] | None, room: tuple[int, int]) -> None:
    plan = plan_step(view(reserve=reserve, max_seqs=8, total_blocks=100, free_blocks=90), LIMITS)
    assert (plan.offline_slots, plan.offline_blocks) == room


def test_the_reserve_of_recent_bursts_too_is_given_up_once_no_chat_has_come_for_long() -> None:
    assert plan_step(view(reserve=(3, 20), max_seqs=8, online_idle_s=61.0), LIMITS).offline_slots == 8


# -- by property --------------------------------------------------------------------------------------------------------------------

a_running = st.one_of(
    st.builds(chat, st.floats(0.001, 1.0), st.integers(0, 5000)),
    st.builds(prompt, st.integers(1, 3000), st.floats(0.0, 3.0), st.integers(0, 3000)),
    st.builds(row, st.one_of(st.just(1), st.integers(1, 3000)), st.integers(0, 5000)),
)
a_model_seen = st.sampled_from([MODEL, a_model(CPU, 0.4), LatencyModel()])


@st.composite
def views(draw: st.DrawFn) -> StepView:
    running = [one._replace(name=f"r{place}") for place, one in enumerate(draw(st.lists(a_running, max_size=40)))]
    ranks = {name: rank for rank, name in enumerate(draw(st.permutations([one.name for one in running])))}
    waiting = draw(st.integers(0, 3))
    tokens = draw(st.integers(waiting, 4000)) if waiting else 0
    slots = len(running) + draw(st.integers(0, 20))
    back, most = draw(st.integers(0, 3)), draw(st.sampled_from([16, 2048]))
    given = {"waiting_due_s": draw(st.floats(0.0, 3.0)), "now_s": 1.0, "max_seqs": slots, "max_tokens": most, "ranks": ranks}
    return view(*running, online_waiting=waiting, waiting_tokens=tokens, returning_tokens=back, returning_context=100 * back, **given)


@settings(max_examples=60)
@given(views(), a_model_seen)
def test_every_request_has_one_place_and_online_ones_run_first_those_that_decode_before_prompts(
    seen: StepView, model: LatencyModel
) -> None:
    plan = plan_step(seen, LIMITS, slo(model))
    assert sorted((*plan.run, *plan.pause, *plan.preempt)) == list(range(len(seen.running)))
    decoding = [i for i, r in enumerate(seen.running) if not r.offline and r.step_tokens == 1]
    prompts = [i for i, r in enumerate(seen.running) if not r.offline and r.step_tokens > 1]
    online = [*decoding, *sorted(prompts, key=lambda i: seen.ranks[seen.running[i].name])]
    assert list(plan.run[: len(online)]) == online


@settings(max_examples=80)
@given(views(), st.sampled_from([MODEL, a_model(CPU, 0.4)]))
def test_a_step_with_offline_work_beside_chat_keeps_what_is_promised(seen: StepView, model: LatencyModel) -> None:
    plan = plan_step(seen, LIMITS, slo(model))
    if plan.offline_tokens and limit_s(seen, batch_of(seen.running)) < math.inf:
        limit = limit_s(seen, batch_of(seen.running))
        assert model.margin_at(limit) * model.predict(planned_load(seen, plan, model)) <= limit * (1 + 1e-9)


@given(views(), st.integers(0, 50), st.integers(0, 50))
def test_a_larger_reserve_never_admits_more(seen: StepView, fewer: int, more: int) -> None:
    small, large = (plan_step(replace(seen, reserve=(n, n)), LIMITS, slo(MODEL)) for n in sorted((fewer, more)))
    assert small.offline_slots >= large.offline_slots
    assert small.offline_blocks >= large.offline_blocks


# -- steps of offline work alone ------------------------------------------------------------------------------------------------------


def test_offline_work_alone_has_no_bound_where_no_arrival_is_to_be_expected() -> None:
    assert plan_step(view(row(), row(2000)), LIMITS, slo(MODEL)).budget_tokens is None


def test_offline_work_alone_takes_short_steps_where_arrivals_would_end_long_ones() -> None:
    plan = plan_step(view(row(), row(2000), offline_step_s=0.1), LIMITS, slo(MODEL))
    assert plan.budget_tokens is not None
    assert MIN_CHUNK < plan.budget_tokens < 2048
    load = StepLoad.decode(100) + StepLoad.prefill(plan.budget_tokens - 1, 100)
    assert 0.09 < MODEL.predict(load) <= 0.1
    assert plan.may_end


def test_the_shortest_step_of_offline_work_alone_still_makes_every_token_and_a_small_chunk() -> None:
    plan = plan_step(view(*[row()] * 40, row(2000), offline_step_s=1e-6), LIMITS, slo(MODEL))
    assert plan.budget_tokens == 40 + MIN_CHUNK
