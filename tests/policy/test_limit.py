"""How long a step with chat may take, what offline work may add to it, and where prompts of chat are cut."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from harvester.policy.model.latency import LatencyModel, StepLoad
from harvester.policy.step.batch import batch_of
from harvester.policy.step.plan import plan_step
from harvester.policy.step.slo import FULL_STEP, MIN_PROMPT_CHUNK, limit_s, online_load, online_work
from harvester.policy.step.view import StepView
from harvester.policy.view import Running
from tests.policy.asked import LIMITS, MODEL, chat, drafting, planned_load, prompt, row, slo, view
from tests.policy.machine import GPU, a_model

SHARED = replace(LIMITS, max_ttft_delay_fraction=0.1, ttft_s=1.0)


# -- the limit of a step ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "seconds"),
    [
        (view(chat(0.1), chat(0.05)), 0.05),
        (view(prompt(100, due_s=7.0), now_s=6.7), 0.3),
        (view(prompt(3000, due_s=7.0), prompt(1000, due_s=8.0), now_s=6.7), 0.15),
        (view(chat(0.1), prompt(100, due_s=7.0), now_s=6.98), 0.02),
        (view(chat(0.1), online_waiting=1, waiting_tokens=50, waiting_due_s=7.0, now_s=6.98), 0.02),
        (view(chat(0.1), waiting_due_s=7.0, now_s=6.98), 0.1),
        (view(prompt(100, due_s=7.0), now_s=7.5), -0.5),
        (view(Running("chat", False, 1, 2, 0, 0, decoding=True)), math.inf),
    ],
    ids=["least TPOT", "time left", "shared by two steps", "less left than TPOT", "waiting", "nobody waits", "late", "no objective"],
)
def test_a_step_may_take_what_is_promised(seen: StepView, seconds: float) -> None:
    assert limit_s(seen, batch_of(seen.running)) == pytest.approx(seconds)


def test_the_online_load_is_all_that_runs_and_waits_within_what_a_step_holds() -> None:
    seen = view(chat(context=70), row(), prompt(100, context=50), online_waiting=2, waiting_tokens=900, max_tokens=600)
    waiting = StepLoad.prefill(499) + StepLoad(seqs=1)
    assert online_load(seen, batch_of(seen.running)) == StepLoad.decode(70) + StepLoad.prefill(100, 50) + waiting


# -- what offline work may add to the time of a first token --------------------------------------------------------------------------


def beside(*running: Running, max_ttft_delay_fraction: float = 0.1, ttft_s: float = 1.0, **fields: object) -> tuple[StepLoad, float]:
    """What the plan of such a step computes, and the seconds of its online work alone."""
    seen = view(*running, *[row()] * 30, row(2000), **fields)
    plan = plan_step(seen, replace(SHARED, max_ttft_delay_fraction=max_ttft_delay_fraction, ttft_s=ttft_s), slo(MODEL))
    return planned_load(seen, plan), MODEL.predict(online_work(seen, batch_of(seen.running), LIMITS, MODEL).load)


@pytest.mark.parametrize("max_ttft_delay_fraction", [0.02, 0.05, 0.1])
def test_beside_chat_that_decodes_a_step_grows_by_half_a_share_of_the_first_tokens_time(max_ttft_delay_fraction: float) -> None:
    load, alone_s = beside(*[chat(tpot_s=10.0)] * 8, max_ttft_delay_fraction=max_ttft_delay_fraction, ttft_s=5.0)
    added_s = 2.5 * max_ttft_delay_fraction
    assert alone_s + 0.8 * added_s < MODEL.predict(load) <= alone_s + added_s * 1.0001


def test_beside_chat_that_decodes_a_short_step_grows_to_use_the_time_of_a_step_and_never_past_the_whole_share() -> None:
    alone_s = beside(chat(tpot_s=10.0))[1]
    for ttft_s, added_s in ((0.5 * alone_s / 0.1, 0.5 * alone_s), (4 * alone_s / 0.1, FULL_STEP * alone_s)):
        load, _ = beside(chat(tpot_s=10.0), ttft_s=ttft_s)
        assert alone_s + 0.7 * added_s < MODEL.predict(load) <= alone_s + added_s * 1.0001


def test_a_step_with_a_prompt_of_chat_grows_as_long_as_one_without_and_no_longer() -> None:
    without, _ = beside(chat(tpot_s=10.0))
    long_s = MODEL.predict(without)
    short, alone_s = beside(chat(tpot_s=10.0), prompt(8, due_s=50.0))
    assert alone_s < 0.9 * long_s
    assert 0.9 * long_s < MODEL.predict(short) <= long_s * 1.001
    full, alone_s = beside(chat(tpot_s=10.0), prompt(4000, due_s=50.0))
    assert alone_s > long_s
    assert MODEL.predict(full) == pytest.approx(alone_s)


def test_no_share_of_a_first_tokens_time_is_no_offline_work_beside_chat() -> None:
    load, alone_s = beside(chat(tpot_s=10.0), max_ttft_delay_fraction=0.0)
    assert MODEL.predict(load) == pytest.approx(alone_s)


# -- prompts of chat beside chat that decodes ----------------------------------------------------------------------------------------


def test_a_prompt_is_cut_where_it_would_break_the_tpot_of_those_that_decode() -> None:
    seen = view(*[chat(0.1)] * 4, online_waiting=1, waiting_tokens=2000, waiting_due_s=60.0)
    plan = plan_step(seen, LIMITS, slo(MODEL))
    assert plan.budget_tokens is not None
    load = StepLoad.prefill(plan.budget_tokens - 4) + StepLoad(0, 0.0, 4, 400, 4)
    assert 0.08 < MODEL.margin_at(0.1) * MODEL.predict(load) <= 0.101


@pytest.mark.parametrize(("of_tpot", "cut"), [(0.95, False), (1.03, False), (1.1, True)])
def test_a_prompt_is_cut_only_where_the_step_would_be_a_twentieth_longer_than_the_tpot(of_tpot: float, cut: bool) -> None:
    arrives = {"online_waiting": 1, "waiting_tokens": 600, "waiting_due_s": 60.0}
    whole = view(*[chat(1.0)] * 4, **arrives)
    step_s = MODEL.predict(online_load(whole, batch_of(whole.running)))
    seen = view(*[chat(step_s * MODEL.margin_at(step_s) / of_tpot)] * 4, **arrives)
    assert (plan_step(seen, LIMITS, slo(MODEL)).budget_tokens is not None) == cut


def test_a_prompt_that_runs_is_cut_behind_the_tokens_of_those_that_decode() -> None:
    seen = view(prompt(2000, due_s=60.0), *[chat(0.1)] * 4)
    plan = plan_step(seen, LIMITS, slo(MODEL))
    assert plan.run == (1, 2, 3, 4, 0)
    assert plan.budget_tokens is not None
    assert plan.budget_tokens < 2000


@pytest.mark.parametrize("due_s", [0.3, -1.0], ids=["soon", "late already"])
def test_a_prompt_whose_first_token_would_come_late_is_cut_only_where_further_steps_add_little_to_it(due_s: float) -> None:
    few, many = ([chat(0.1)] * count for count in (4, 200))
    arrives = {"online_waiting": 1, "waiting_tokens": 1500, "waiting_due_s": due_s}
    cut = [plan_step(view(*decoding, **arrives), SHARED, slo(MODEL)).budget_tokens is not None for decoding in (few, many)]
    assert cut == [True, False]


def test_the_piece_of_a_prompt_does_not_shrink_with_the_number_of_those_that_wait() -> None:
    """A step computes a few of them, however many there are."""
    machine = a_model(GPU, 0.05)

    def chunk(waiting: int) -> int:
        seen = view(*[chat(0.05)] * 100, online_waiting=waiting, waiting_tokens=500 * waiting, waiting_due_s=60.0)
        return online_work(seen, batch_of(seen.running), LIMITS, machine).prompt_tokens or 0

    assert chunk(2000) == chunk(20) > 1000


def test_the_smallest_piece_of_a_prompt_goes_on_beside_any_tpot() -> None:
    seen = view(*[chat(1e-6)] * 4, online_waiting=1, waiting_tokens=2000, waiting_due_s=60.0)
    assert plan_step(seen, LIMITS, slo(MODEL)).budget_tokens == 4 + MIN_PROMPT_CHUNK


def test_the_drafts_of_those_that_decode_are_never_cut() -> None:
    chats = [drafting(3, tpot_s=0.03)] * 60
    seen = view(*chats)
    assert MODEL.predict(online_load(seen, batch_of(seen.running))) > 0.03, "a longer step than the TPOT allows"
    online = online_work(seen, batch_of(seen.running), LIMITS, MODEL)
    assert (online.prompt_tokens, online.load) == (None, online.decodes)
    assert plan_step(seen, LIMITS, slo(MODEL)).budget_tokens == 4 * 60
    plan = plan_step(view(*chats, prompt(2000, due_s=60.0)), LIMITS, slo(MODEL))
    assert plan.run == tuple(range(61))
    assert plan.budget_tokens == 4 * 60 + MIN_PROMPT_CHUNK


def test_drafts_are_a_part_of_what_a_step_holds() -> None:
    seen = view(chat(), *[drafting(9)] * 3, prompt(50), max_tokens=25)
    load = online_load(seen, batch_of(seen.running))
    assert (load.tokens, load.seqs) == (25, 4)
    assert load == StepLoad.decode(100) + StepLoad.prefill(10, 100) + StepLoad.prefill(10, 100) + StepLoad.prefill(4, 100)


# -- chat whose KV is back ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tpot_s", [10.0, 1e-6], ids=["offline work fits", "none does"])
@pytest.mark.parametrize("model", [MODEL, None], ids=["budget", "fixed"])
def test_chat_whose_kv_is_back_has_its_token_in_the_step_whatever_offline_work_has(tpot_s: float, model: LatencyModel | None) -> None:
    running = (*[chat(tpot_s)] * 3, *[row()] * 30)
    without, plan = (plan_step(view(*running, returning_tokens=tokens, returning_context=500), SHARED, slo(model)) for tokens in (0, 2))
    assert plan.budget_tokens is not None
    assert plan.budget_tokens == 3 + 2 + (plan.offline_tokens or 0)
    assert (plan.offline_tokens or 0) <= (without.offline_tokens or 0)


def test_prompts_get_no_tokens_where_those_that_decode_and_return_take_all_of_the_step() -> None:
    seen = view(*[chat()] * 16, prompt(50), online_waiting=1, waiting_tokens=9, returning_tokens=2, returning_context=500, max_tokens=16)
    assert online_load(seen, batch_of(seen.running)).prefill_tokens == 0


def test_a_step_to_which_chat_comes_back_is_not_one_of_offline_work_alone() -> None:
    plan = plan_step(view(row(), row(300), returning_tokens=1, returning_context=500), SHARED, slo(MODEL))
    assert not plan.may_end
    assert plan.offline_tokens is not None
    assert plan.budget_tokens == 1 + (plan.offline_tokens or 0)
