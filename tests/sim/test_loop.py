"""The simulated engine: what vLLM's bounds and harvester's plan make of a trace."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harvester.config import SloConfig
from harvester.policy.model.arrivals import ArrivalRate, BurstReserve
from harvester.policy.model.latency import LatencyModel, StepLoad
from harvester.policy.order.mlfq import Mlfq
from harvester.policy.step.plan import PolicyConfig
from harvester.sim.cost import GPUS, MODELS, Machine, kv_blocks, roofline
from harvester.sim.engine import Brain, Engine
from harvester.sim.loop import Simulation
from harvester.sim.measure import percentile, summarize
from harvester.sim.order import Batches, Feedback, ShortestPrompt
from harvester.sim.trace import SHAREGPT, Drawn, Fixed, LogNormal, Request, gamma, offline_job

LIMITS = PolicyConfig(reserved_slots=2, reserved_kv=0.1, offline_step_tokens=64)


def second_a_step(load: StepLoad) -> float:
    return 1.0


def engine(
    total_blocks: int = 100, max_seqs: int = 8, max_tokens: int = 64, evicted: str = "recompute", block_copy_s: float = 0.0
) -> Engine:
    return Engine(second_a_step, total_blocks, max_seqs, max_tokens, 16, evicted, block_copy_s)  # type: ignore[arg-type]


def naive_mlfq(quantum_s: float = 1.0) -> Feedback:
    return Feedback(Mlfq(6, quantum_s, 1000.0), None)


# -- an engine ----------------------------------------------------------------------------------------------------------------------


def test_a_request_takes_one_step_for_its_prompt_and_one_for_each_further_token() -> None:
    [outcome] = Simulation(engine(), Brain(LIMITS)).run([Request("a", 5.0, 10, 4)])
    assert outcome.token_s == (6.0, 7.0, 8.0, 9.0)
    assert (outcome.latency_s, outcome.normalized_s, outcome.ttft_s, outcome.gaps_s) == (4.0, 1.0, 1.0, [1.0, 1.0, 1.0])


def test_a_prompt_longer_than_a_step_is_cut_into_chunks() -> None:
    [outcome] = Simulation(engine(max_tokens=64), Brain(LIMITS)).run([Request("a", 0.0, 150, 1)])
    assert outcome.ttft_s == 3.0


def test_requests_share_a_step_up_to_the_slots() -> None:
    outcomes = Simulation(engine(max_seqs=2), Brain(LIMITS)).run([Request(name, 0.0, 4, 3) for name in "abc"])
    assert [(outcome.request.id, outcome.latency_s) for outcome in outcomes] == [("a", 3.0), ("b", 3.0), ("c", 6.0)]


def test_a_request_waits_while_those_before_it_hold_the_kv() -> None:
    outcomes = Simulation(engine(total_blocks=3), Brain(LIMITS)).run([Request("a", 0.0, 30, 2), Request("b", 0.0, 30, 2)])
    assert [(outcome.latency_s, outcome.preemptions) for outcome in outcomes] == [(2.0, 0), (4.0, 0)]


def test_growth_beyond_the_kv_pushes_out_the_last_which_is_computed_again() -> None:
    first, last = Simulation(engine(total_blocks=4), Brain(LIMITS)).run([Request("a", 0.0, 31, 8), Request("b", 0.0, 31, 8)])
    assert (first.preemptions, first.recomputed, last.preemptions) == (0, 0, 1)
    assert last.recomputed >= 31


def test_a_request_larger_than_the_engine_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="request huge needs more than all 4 KV blocks"):
        Simulation(engine(total_blocks=4), Brain(LIMITS)).run([Request("huge", 0.0, 60, 60)])


def test_the_clock_jumps_over_idle_time_and_stops_where_told() -> None:
    simulation = Simulation(engine(), Brain(LIMITS))
    assert len(simulation.run([Request("a", 3.0, 1, 1), Request("b", 50.0, 1, 9)], until_s=52.0)) == 1
    assert (simulation.now_s, simulation.busy_s) == (52.0, 3.0)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 90), st.integers(1, 20), st.sampled_from(["", "", "j", "k"])), max_size=12),
    st.sampled_from(["fcfs", "mlfq", "shortest", "batches"]),
    st.sampled_from(["recompute", "swap", "overlap"]),
    st.integers(8, 20),
)
def test_every_request_ends_with_all_its_tokens_and_no_block_is_ever_lost(
    rows: list[tuple[int, int, int, str]], order: str, evicted: str, total_blocks: int
) -> None:
    requests = [Request(f"r{i}", float(at), prompt, output, job) for i, (at, prompt, output, job) in enumerate(rows)]
    brain = Brain(LIMITS)
    brain.order = {"mlfq": naive_mlfq(), "shortest": ShortestPrompt(), "batches": Batches(4)}.get(order, brain.order)
    simulation = Simulation(engine(total_blocks, 4, 64, evicted, 0.01), brain)
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
    for name, brain in {"fcfs": Brain(LIMITS), "mlfq": Brain(LIMITS, order=naive_mlfq())}.items():
        outcomes = Simulation(engine(max_seqs=1), brain).run(trace)
        latency[name] = {outcome.request.id: outcome.latency_s for outcome in outcomes}
    assert latency["fcfs"] == {"long": 40.0, "short": 38.0}
    assert latency["mlfq"] == {"short": 2.0, "long": 42.0}


def test_without_skip_join_a_long_prompt_holds_up_a_short_one() -> None:
    trace = [Request("long", 0.0, 400, 2), Request("short", 0.0, 4, 2)]
    chunked = engine(max_seqs=1, max_tokens=512)
    skip = Feedback(Mlfq(6, 1.0, 1000.0), lambda tokens: tokens / 50)
    ttft_s = {}
    for name, order in {"naive": naive_mlfq(), "skip": skip}.items():
        outcomes = Simulation(chunked, Brain(LIMITS, order=order)).run(trace)
        ttft_s[name] = {outcome.request.id: outcome.ttft_s for outcome in outcomes}
    assert ttft_s == {"naive": {"long": 1.0, "short": 2.0}, "skip": {"short": 1.0, "long": 3.0}}


def test_batches_wait_for_their_longest_request() -> None:
    trace = [Request("long", 0.0, 4, 10), Request("short", 0.0, 4, 2), Request("next", 1.0, 4, 2)]
    outcomes = Simulation(engine(), Brain(LIMITS, order=Batches(2))).run(trace)
    assert [(outcome.request.id, outcome.token_s[-1]) for outcome in outcomes] == [("short", 2.0), ("long", 10.0), ("next", 12.0)]


def test_the_shortest_prompt_goes_first_under_fixed_priority() -> None:
    trace = [Request("long", 0.0, 40, 2), Request("short", 0.0, 4, 2)]
    assert Simulation(engine(max_seqs=1), Brain(LIMITS, order=ShortestPrompt())).run(trace)[0].request.id == "short"


@pytest.mark.parametrize(("evicted", "steps_s"), [("recompute", 1.0), ("swap", 1.5), ("overlap", 1.0)])
def test_kv_that_is_carried_to_the_host_costs_time_only_where_it_is_not_hidden_and_nothing_is_computed_again(
    evicted: str, steps_s: float
) -> None:
    trace = [Request("long", 0.0, 60, 4), Request("short", 2.0, 60, 1)]
    brain = Brain(LIMITS, order=Feedback(Mlfq(6, 1.0, 1000.0), None))
    simulation = Simulation(engine(total_blocks=5, evicted=evicted, block_copy_s=0.125), brain)
    short, long = simulation.run(trace)
    assert short.latency_s == steps_s  # 4 blocks at 0.125 s
    assert (long.preemptions, long.recomputed) == (1, 0 if evicted != "recompute" else 61)


# -- beside offline work ------------------------------------------------------------------------------------------------------------


def llama() -> Engine:
    model, machine = MODELS["llama-2-7b"], Machine(GPUS["a100-80gb"])
    return Engine(roofline(model, machine), kv_blocks(model, machine), max_seqs=128)


def served(
    limits: PolicyConfig, slo: SloConfig | None, jobs: bool = True, seconds: float = 30.0, layers: int = 0
) -> tuple[list[float], float, float]:
    """Gaps and P99 TTFT of chat, and offline tokens a second, of a run on a 7B model."""
    rng = random.Random(7)
    chat = gamma(2.0, 2.0, seconds, SHAREGPT, rng)
    rows = offline_job("sum", 2000, Drawn(LogNormal(1500, 0.5, 64, 3000), LogNormal(128, 0.3, 16, 256)), rng) if jobs else []
    model = LatencyModel() if slo else None
    brain = Brain(limits, model=model, slo=slo, bursts=BurstReserve() if slo else None, pace=ArrivalRate() if layers else None)
    outcomes = Simulation(replace(llama(), layers=layers), brain).run([*chat, *rows], until_s=seconds + 20)
    online = [outcome for outcome in outcomes if not outcome.request.offline]
    gaps = [gap for outcome in online for gap in outcome.gaps_s]
    tokens = sum(o.request.prompt_tokens + o.request.output_tokens for o in outcomes if o.request.offline)
    return gaps, percentile([outcome.ttft_s for outcome in online], 0.99), tokens / seconds


def test_the_slo_budget_holds_what_it_promises_on_a_7b_model_and_harvests_the_rest() -> None:
    gaps, _, offline = served(PolicyConfig(8, 0.1, 256), SloConfig(ttft_slo_ms=500.0, tpot_slo_ms=60.0))
    assert percentile(gaps, 0.99) <= 0.060
    assert offline > 3000


def test_a_tighter_objective_leaves_less_to_offline_work() -> None:
    loose = served(PolicyConfig(8, 0.1, 256), SloConfig(ttft_slo_ms=500.0, tpot_slo_ms=100.0))[2]
    tight = served(PolicyConfig(8, 0.1, 256), SloConfig(ttft_slo_ms=500.0, tpot_slo_ms=25.0))[2]
    assert tight < loose


def test_steps_that_end_between_two_layers_bring_first_tokens_forward_and_cost_little() -> None:
    limits, slo = PolicyConfig(8, 0.1, 256, max_ttft_delay_fraction=0.05, ttft_s=0.3), SloConfig(ttft_slo_ms=300.0, tpot_slo_ms=60.0)
    (_, whole_s, whole), (_, ended_s, ended) = (served(limits, slo, layers=layers) for layers in (0, 32))
    assert ended_s < whole_s
    assert ended > 0.9 * whole


def test_a_step_of_offline_work_ends_at_the_next_layer_and_what_it_computed_is_computed_again() -> None:
    model = LatencyModel()
    for tokens in (1, 20, 40, 60) * 50:
        model.observe(StepLoad.prefill(tokens), 1.0)
    brain = Brain(replace(LIMITS, max_ttft_delay_fraction=0.1, ttft_s=2.0), model=model)
    simulation = Simulation(replace(engine(), layers=4), brain)
    chat, row = simulation.run([Request("row", 0.0, 60, 1, "job"), Request("chat", 0.3, 4, 1)])
    assert (simulation.ended_steps, simulation.busy_s, chat.request.id, chat.ttft_s) == (1, 2.5, "chat", pytest.approx(1.2))
    assert row.token_s == (2.5,)


def test_two_jobs_move_side_by_side_by_their_tokens() -> None:
    rows = [*offline_job("a", 400, Fixed(500, 40), random.Random(0)), *offline_job("b", 400, Fixed(100, 40), random.Random(0))]
    outcomes = Simulation(replace(llama(), max_seqs=16), Brain(LIMITS)).run(rows, until_s=8.0)
    tokens = {job: sum(o.request.prompt_tokens + 40 for o in outcomes if o.request.job == job) for job in "ab"}
    assert min(tokens.values()) > 0
    assert 0.8 < tokens["a"] / tokens["b"] < 1.25


def test_skip_join_mlfq_at_least_halves_the_normalized_latency_of_fcfs_beyond_what_fcfs_can_hold() -> None:
    model, machine = MODELS["opt-13b"], Machine(GPUS["a100-40gb"])
    cost = roofline(model, machine)
    mlfq = Feedback(Mlfq(12, cost(StepLoad.decode(1)), 0.3), lambda tokens: cost(StepLoad.prefill(tokens)))
    trace = gamma(4.0, 1.0, 40.0, SHAREGPT, random.Random(3))
    mean_s = [
        summarize(Simulation(Engine(cost, kv_blocks(model, machine), 16), brain).run(trace)).normalized_mean_s
        for brain in (Brain(LIMITS), Brain(LIMITS, order=mlfq))
    ]
    assert mean_s[1] < mean_s[0] / 2
