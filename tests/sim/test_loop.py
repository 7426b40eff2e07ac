"""The simulated engine: what vLLM's bounds and harvester's plans make of a trace."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.scenarios.order.peer_orders import Batches, ShortestRemaining
from harvester.policy.kv.checkpoint import CUDA_COST, Thresholds
from harvester.policy.kv.policy import Checkpoints
from harvester.policy.model.latency import LatencyModel, StepLoad
from harvester.policy.order.online import OnlineOrder
from harvester.policy.parts import PartsConfig
from harvester.policy.step.view import Guarantee
from harvester.policy.view import PolicyConfig
from harvester.sim.cost import GPUS, MODELS, Machine, kv_blocks, roofline
from harvester.sim.engine import SimEngine
from harvester.sim.loop import Simulation
from harvester.sim.measure import percentile, summarize
from harvester.sim.trace import SHAREGPT, Drawn, Fixed, LogNormal, Request, gamma, offline_job, promised
from tests.sim.brains import PLAIN, a_brain, an_engine, patient

# -- an engine ----------------------------------------------------------------------------------------------------------------------


def test_a_request_takes_one_step_for_its_prompt_and_one_for_each_further_token() -> None:
    [outcome] = Simulation(an_engine(), a_brain()).run([Request("a", 5.0, 10, 4)])
    assert outcome.token_s == (6.0, 7.0, 8.0, 9.0)
    assert (outcome.latency_s, outcome.normalized_s, outcome.ttft_s, outcome.gaps_s) == (4.0, 1.0, 1.0, [1.0, 1.0, 1.0])


def test_a_prompt_longer_than_a_step_is_cut_into_chunks() -> None:
    [outcome] = Simulation(an_engine(max_tokens=64), a_brain()).run([Request("a", 0.0, 150, 1)])
    assert outcome.ttft_s == 3.0


def test_requests_share_a_step_up_to_the_slots() -> None:
    outcomes = Simulation(an_engine(max_seqs=2), a_brain()).run([Request(name, 0.0, 4, 3) for name in "abc"])
    assert [(outcome.request.id, outcome.latency_s) for outcome in outcomes] == [("a", 3.0), ("b", 3.0), ("c", 6.0)]


def test_a_request_waits_while_those_before_it_hold_the_kv() -> None:
    outcomes = Simulation(an_engine(total_blocks=3), a_brain()).run([Request("a", 0.0, 30, 2), Request("b", 0.0, 30, 2)])
    assert [(outcome.latency_s, outcome.preemptions) for outcome in outcomes] == [(2.0, 0), (4.0, 0)]


def test_growth_beyond_the_kv_pushes_out_the_last_which_is_computed_again() -> None:
    first, last = Simulation(an_engine(total_blocks=4), a_brain()).run([Request("a", 0.0, 31, 8), Request("b", 0.0, 31, 8)])
    assert (first.preemptions, first.recomputed, last.preemptions) == (0, 0, 1)
    assert last.recomputed >= 31


@pytest.mark.parametrize("max_tokens", [16, 64])
def test_the_brain_counts_the_gaps_between_tokens_and_no_chunk_of_a_prompt_or_of_lost_kv(max_tokens: int) -> None:
    brain = a_brain()
    outcomes = Simulation(an_engine(total_blocks=4, max_tokens=max_tokens), brain).run([Request("a", 0.0, 31, 8), Request("b", 0.0, 31, 8)])
    assert sum(outcome.preemptions for outcome in outcomes) > 0
    assert (brain.chat_times.first_tokens, brain.chat_times.gaps) == (2, sum(len(outcome.gaps_s) for outcome in outcomes))


def test_a_request_larger_than_the_engine_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="request huge needs more than all 4 KV blocks"):
        Simulation(an_engine(total_blocks=4), a_brain()).run([Request("huge", 0.0, 60, 60)])


def test_the_clock_jumps_over_idle_time_and_stops_where_told() -> None:
    simulation = Simulation(an_engine(), a_brain())
    assert len(simulation.run([Request("a", 3.0, 1, 1), Request("b", 50.0, 1, 9)], until_s=52.0)) == 1
    assert (simulation.now_s, simulation.busy_s) == (52.0, 3.0)


ROWS = st.tuples(st.integers(0, 30), st.integers(1, 90), st.integers(1, 20), st.integers(0, 9), st.sampled_from(["", "", "j", "k"]))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(ROWS, max_size=12),
    st.sampled_from(["fcfs", "mlfq", "naive_mlfq", "fixed", "sjf", "edf", "batches", "remaining"]),
    st.sampled_from([None, 0, 2, 40]),
    st.integers(8, 20),
)
def test_every_request_ends_with_all_its_tokens_and_no_block_is_ever_lost(
    rows: list[tuple[int, int, int, int, str]], order: str, host_blocks: int | None, total_blocks: int
) -> None:
    requests = [
        Request(f"r{i}", float(at), prompt, output, job, max_tokens=output + more, priority=-more % 3, cached_tokens=more)
        for i, (at, prompt, output, more, job) in enumerate(rows)
    ]
    rivals: dict[str, OnlineOrder] = {"batches": Batches(4), "remaining": ShortestRemaining({request.id: 1.0 for request in requests}, 4)}
    own = rivals.get(order)
    config = replace(PLAIN, online_order="fcfs" if own else order)
    kv = None if host_blocks is None else Checkpoints(Thresholds(), CUDA_COST, 5.0)
    engine = an_engine(total_blocks, 4, 64, host_blocks=host_blocks or 0, block_copy_s=0.3, copy_cost=0.1)
    simulation = Simulation(engine, a_brain(config, kv=kv, order=own))
    ended = simulation.run(requests, until_s=5.0)
    for stop_s in (*range(10, 200, 5), float("inf")):
        simulation.check()
        ended += simulation.run(until_s=stop_s)
    simulation.check()
    assert sorted(outcome.request.id for outcome in ended) == sorted(request.id for request in requests)
    assert all(len(outcome.token_s) == outcome.request.output_tokens for outcome in ended)


# -- orders -------------------------------------------------------------------------------------------------------------------------


def test_a_short_answer_overtakes_a_long_one_under_mlfq_and_not_under_fcfs() -> None:
    trace = [Request("long", 0.0, 4, 40), Request("short", 4.0, 4, 2)]
    latency = {}
    for name, brain in {"fcfs": a_brain(), "mlfq": a_brain(order=patient())}.items():
        outcomes = Simulation(an_engine(max_seqs=1), brain).run(trace)
        latency[name] = {outcome.request.id: outcome.latency_s for outcome in outcomes}
    assert latency["fcfs"] == {"long": 40.0, "short": 38.0}
    assert latency["mlfq"] == {"short": 2.0, "long": 42.0}


def fifty_a_second() -> LatencyModel:
    """A model that has seen prompts take a second for each fifty tokens."""
    model = LatencyModel()
    for tokens in (50, 100, 200, 400) * 50:
        model.observe(StepLoad.prefill(tokens), tokens / 50)
    return model


def test_without_skip_join_a_long_prompt_holds_up_a_short_one() -> None:
    trace = [Request("long", 0.0, 400, 2), Request("short", 0.0, 4, 2)]
    ttft_s = {}
    for skip in (False, True):
        brain = a_brain(order=patient(skip), model=fifty_a_second())
        outcomes = Simulation(an_engine(max_seqs=1, max_tokens=512), brain).run(trace)
        ttft_s[skip] = {outcome.request.id: outcome.ttft_s for outcome in outcomes}
    assert ttft_s == {False: {"long": 1.0, "short": 3.0}, True: {"short": 1.0, "long": 3.0}}  # a step is learnt beside the next


def test_batches_wait_for_their_longest_request() -> None:
    trace = [Request("long", 0.0, 4, 10), Request("short", 0.0, 4, 2), Request("next", 1.0, 4, 2)]
    outcomes = Simulation(an_engine(), a_brain(order=Batches(2))).run(trace)
    assert [(outcome.request.id, outcome.token_s[-1]) for outcome in outcomes] == [("short", 2.0), ("long", 10.0), ("next", 12.0)]


@pytest.mark.parametrize(
    ("order", "first"), [("fcfs", "long"), ("fixed", "short"), ("sjf", "brief"), ("edf", "hurried")], ids=lambda value: str(value)
)
def test_an_order_chosen_by_name_says_who_goes_first(order: str, first: str) -> None:
    trace = [
        Request("long", 0.0, 40, 9, ttft_s=9.0),
        Request("short", 0.0, 4, 9, ttft_s=9.0),
        Request("brief", 0.0, 40, 1, ttft_s=9.0),
        Request("hurried", 0.0, 40, 9, ttft_s=8.0),
    ]
    model = LatencyModel()
    for _ in range(80):
        model.observe(StepLoad.prefill(40), 1.0)
        model.observe(StepLoad.decode(40), 1.0)
    simulation = Simulation(an_engine(max_seqs=1), a_brain(replace(PLAIN, online_order=order), model=model))
    simulation.run(trace, until_s=1.0)
    assert [outcome.request.id for outcome in simulation.going if outcome.token_s] == ([] if first == "brief" else [first])


def test_a_request_of_higher_priority_goes_before_those_that_came_first() -> None:
    outcomes = Simulation(an_engine(max_seqs=1), a_brain()).run([Request("first", 0.0, 4, 2), Request("paid", 0.0, 4, 2, priority=-10)])
    assert [outcome.request.id for outcome in outcomes] == ["paid", "first"]


# -- KV on the host -----------------------------------------------------------------------------------------------------------------

TIGHT = Thresholds(0.9, 0.5)


def carried(host_blocks: int, block_copy_s: float = 0.125) -> dict[str, tuple[int, int, float]]:
    """Preemptions, recomputed tokens and latency of a long answer beside a short one that finds no KV."""
    trace = [Request("long", 0.0, 60, 12), Request("short", 6.0, 60, 1)]
    brain = a_brain(order=patient(), kv=Checkpoints(TIGHT, CUDA_COST, 5.0, wait_blocks=1))
    engine = an_engine(total_blocks=6, max_seqs=2, host_blocks=host_blocks, block_copy_s=block_copy_s)
    outcomes = Simulation(engine, brain).run(trace)
    return {o.request.id: (o.preemptions, o.recomputed, o.latency_s) for o in outcomes}


def test_a_long_answer_gives_its_kv_up_for_a_short_one_and_reads_it_back() -> None:
    found = carried(host_blocks=20)
    assert found["short"][2] < 2.5
    assert found["long"][:2] == (1, 0)  # its partly filled block is saved while the step waits


def test_without_host_memory_for_it_nobody_gives_up_kv() -> None:
    found = carried(host_blocks=1)
    assert found["long"][:2] == (0, 0)
    assert found["short"][2] > 5.0


def test_kv_that_comes_back_slowly_keeps_its_request_waiting() -> None:
    assert carried(host_blocks=20, block_copy_s=0.5)["long"][2] > carried(host_blocks=20)["long"][2] + 5 * 0.3


def pressed(kv: Checkpoints | None, host_blocks: int) -> tuple[int, int]:
    """Recomputed tokens and preemptions of rows beside chat that takes their KV."""
    rows = offline_job("sum", 12, Fixed(80, 60), random.Random(0))
    chat = [Request(f"c{burst}-{i}", 20.0 * burst, 60, 6) for burst in range(1, 6) for i in range(3)]
    engine = an_engine(total_blocks=40, host_blocks=host_blocks, block_copy_s=0.01)
    ended = Simulation(engine, a_brain(kv=kv)).run([*rows, *chat])
    return sum(o.recomputed for o in ended), sum(o.preemptions for o in ended)


def test_rows_that_lose_their_kv_to_chat_read_it_back_instead_of_computing_it_again() -> None:
    again, preempted = pressed(None, 0)
    kept, preempted_too = pressed(Checkpoints(TIGHT, CUDA_COST, 5.0), 200)
    assert min(preempted, preempted_too) > 0
    assert kept < again / 4


# -- beside offline work ------------------------------------------------------------------------------------------------------------


def llama() -> SimEngine:
    model, machine = MODELS["llama-2-7b"], Machine(GPUS["a100-80gb"])
    return SimEngine(roofline(model, machine), kv_blocks(model, machine), max_seqs=128)


def served(
    limits: PolicyConfig, slo_s: tuple[float, float], config: PartsConfig | None = None, seconds: float = 12.0, layers: int = 0
) -> tuple[list[float], float, float]:
    """Gaps and P99 TTFT of chat promised ``slo_s`` (TTFT, TPOT), and offline tokens a second, of a run on a 7B model."""
    rng = random.Random(7)
    chat = promised(gamma(3.0, 2.0, seconds, SHAREGPT, rng), *slo_s)
    rows = offline_job("sum", 600, Drawn(LogNormal(1500, 0.5, 64, 3000), LogNormal(128, 0.3, 16, 256)), rng)
    engine = replace(llama(), layers=layers, max_ttft_delay_fraction=limits.max_ttft_delay_fraction)
    simulation = Simulation(engine, a_brain(config or PartsConfig(), limits))
    outcomes = [*simulation.run([*chat, *rows], until_s=seconds + 4), *simulation.going]
    online = [outcome for outcome in outcomes if not outcome.request.offline and outcome.token_s]
    gaps = [gap for outcome in online for gap in outcome.gaps_s]
    tokens = sum(o.tokens_between(0.0, seconds) for o in outcomes if o.request.offline)
    return gaps, percentile([outcome.ttft_s for outcome in online], 0.99), tokens / seconds


def test_the_slo_budget_holds_what_it_promises_on_a_7b_model_and_harvests_the_rest() -> None:
    gaps, _, offline = served(PolicyConfig(8, 0.1, 256), (0.5, 0.060))
    assert percentile(gaps, 0.99) <= 0.060
    assert offline > 3000


def test_a_tighter_objective_leaves_less_to_offline_work() -> None:
    loose = served(PolicyConfig(8, 0.1, 256), (0.5, 0.100))[2]
    tight = served(PolicyConfig(8, 0.1, 256), (0.5, 0.025))[2]
    assert tight < loose


def test_steps_that_end_between_two_layers_bring_first_tokens_forward_and_cost_little() -> None:
    limits = PolicyConfig(8, 0.1, 256, max_ttft_delay_fraction=0.05, ttft_s=0.3)
    (_, whole_s, whole), (_, ended_s, ended) = (served(limits, (0.3, 0.060), layers=layers) for layers in (0, 32))
    assert ended_s < whole_s
    assert ended > 0.9 * whole


def test_a_step_of_offline_work_ends_at_the_next_layer_and_what_it_computed_is_computed_again() -> None:
    model = LatencyModel()
    for tokens in (1, 20, 40, 60) * 50:
        model.observe(StepLoad.prefill(tokens), 1.0)
    engine = an_engine(layers=4, max_ttft_delay_fraction=0.1)
    simulation = Simulation(engine, a_brain(model=model))
    chat, row = simulation.run([Request("row", 0.0, 60, 1, "job"), Request("chat", 0.3, 4, 1, ttft_s=2.0)])
    assert (simulation.ended_steps, simulation.busy_s, chat.request.id, chat.ttft_s) == (1, 2.5, "chat", pytest.approx(1.2))
    assert row.token_s == (2.5,)


def jobs(*rows: Request, slots: int = 16, seconds: float = 8.0) -> dict[str, int]:
    """Tokens of each job."""
    simulation = Simulation(replace(llama(), max_seqs=slots), a_brain())
    outcomes = [*simulation.run(rows, until_s=seconds), *simulation.going]
    return {job: sum(o.tokens_between(0.0, seconds) for o in outcomes if o.request.job == job) for job in {row.job for row in rows}}


def test_two_jobs_move_side_by_side_by_their_tokens() -> None:
    tokens = jobs(*offline_job("a", 400, Fixed(500, 40), random.Random(0)), *offline_job("b", 400, Fixed(100, 40), random.Random(0)))
    assert min(tokens.values()) > 0
    assert 0.8 < tokens["a"] / tokens["b"] < 1.25


def test_a_job_of_twice_the_weight_is_served_twice_the_tokens() -> None:
    heavy = [replace(row, weight=2.0) for row in offline_job("a", 400, Fixed(200, 40), random.Random(0))]
    tokens = jobs(*heavy, *offline_job("b", 400, Fixed(200, 40), random.Random(0)))
    assert 1.6 < tokens["a"] / tokens["b"] < 2.4


def test_a_guaranteed_job_keeps_its_share_of_the_slots_beside_bursts_of_chat() -> None:
    chat = [Request(f"c{i}", 0.1, 100, 400) for i in range(14)]
    tokens = {}
    for guarantee in (None, Guarantee(0.5)):
        rows = [replace(row, guarantee=guarantee, arrival_s=0.5) for row in offline_job("a", 100, Fixed(100, 40), random.Random(0))]
        tokens[guarantee] = jobs(*chat, *rows)["a"]
    assert tokens[Guarantee(0.5)] > tokens[None]


def test_a_row_is_admitted_by_what_it_may_answer_not_by_what_it_will() -> None:
    rows = offline_job("a", 4, Fixed(16, 16), random.Random(0))
    short, long = (Simulation(an_engine(total_blocks=20), a_brain()) for _ in range(2))
    short.run(rows, until_s=1.0)
    long.run([replace(row, max_tokens=200) for row in rows], until_s=1.0)
    assert [sum(bool(o.token_s) for o in simulation.going) for simulation in (short, long)] == [4, 1]


def test_a_prefix_that_is_cached_is_not_computed() -> None:
    [outcome] = Simulation(an_engine(max_tokens=64), a_brain()).run([Request("a", 0.0, 150, 1, cached_tokens=96)])
    assert outcome.ttft_s == 1.0


def test_skip_join_mlfq_at_least_halves_the_normalized_latency_of_fcfs_beyond_what_fcfs_can_hold() -> None:
    model, machine = MODELS["opt-13b"], Machine(GPUS["a100-40gb"])
    engine = SimEngine(roofline(model, machine), kv_blocks(model, machine), 8)
    trace = gamma(3.0, 1.0, 16.0, SHAREGPT, random.Random(3))
    mean_s = [
        summarize(Simulation(engine, a_brain(replace(PLAIN, online_order=order))).run(trace)).normalized_mean_s
        for order in ("fcfs", "mlfq")
    ]
    assert mean_s[1] < mean_s[0] / 2
