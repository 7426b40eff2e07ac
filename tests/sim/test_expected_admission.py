"""Rows admitted by what they are expected to hold: every row ends, however wrong the expectation is."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harvester.policy.admission.expected import Expected
from harvester.policy.admission.margin import LEAST
from harvester.policy.kv.checkpoint import CUDA_COST, Thresholds
from harvester.policy.kv.policy import Checkpoints
from harvester.policy.order.offline import OfflineRow
from harvester.policy.view import PolicyConfig
from harvester.sim.engine import SimEngine
from harvester.sim.loop import Simulation
from harvester.sim.trace import Request
from harvester.sim.track import Outcome
from tests.sim.brains import PLAIN, a_brain, second_a_step

BLOCK = 16
NO_RESERVE = PolicyConfig(reserved_slots=0, reserved_kv=0.0, offline_step_tokens=64)
EXPECTED = replace(PLAIN, admission="expected")


def rows(count: int, seed: int, least: int = 1, most: int = 200) -> list[Request]:
    """Each of 1 to 100 prompt tokens, and ``least`` to ``most`` of the 400 that it may answer."""
    draw = Random(seed)
    return [Request(f"r{i:03d}", 0.0, draw.randint(1, 100), draw.randint(least, most), "job", 400) for i in range(count)]


def simulation(total_blocks: int, told: int | None = None, step_tokens: int = 256, slots: int = 32, hosts: int = 0) -> Simulation:
    """``told``: tokens of each of twenty rows that ended before; None: no such rows."""
    kv = Checkpoints(Thresholds(), CUDA_COST, 0.5) if hosts else None
    brain = a_brain(EXPECTED, NO_RESERVE, kv=kv)
    for _ in range(20 if told is not None else 0):
        brain.parts.admission.ended(OfflineRow("before", "job", prompt_tokens=10), told)
    engine = SimEngine(second_a_step, total_blocks, slots, step_tokens, BLOCK, host_blocks=hosts, block_copy_s=0.01 if hosts else 0.0)
    return Simulation(engine, brain)


def run_checked(sim: Simulation, trace: list[Request], steps: int) -> list[Outcome]:
    """Every request has ended within so many steps; the accounts add up after each."""
    ended = sim.run(trace, until_s=0.5)
    while len(ended) < len(trace):
        assert sim.steps < steps, f"{len(ended)} of {len(trace)} have ended after {steps} steps"
        ended += sim.run(until_s=sim.now_s + 0.5)
        sim.check()
    return ended


CHATS = st.lists(st.tuples(st.integers(0, 400), st.integers(1, 120), st.integers(1, 40)), max_size=4)


@settings(max_examples=6, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    blocks=st.integers(20, 60),
    told=st.none() | st.integers(1, 200),
    step_tokens=st.sampled_from([24, 64, 256]),
    hosts=st.sampled_from([0, 200]),
    chats=CHATS,
)
def test_every_row_ends_however_wrong_the_expectation_is(
    seed: int, blocks: int, told: int | None, step_tokens: int, hosts: int, chats: list[tuple[int, int, int]]
) -> None:
    chat = [Request(f"c{number}", float(at_s), prompt, answer) for number, (at_s, prompt, answer) in enumerate(chats)]
    trace = [*rows(16, seed), *chat]
    ended = run_checked(simulation(blocks, told, step_tokens, hosts=hosts), trace, 40_000)
    assert sorted(outcome.request.id for outcome in ended) == sorted(request.id for request in trace)
    assert all(len(outcome.token_s) == outcome.request.output_tokens for outcome in ended)


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10**6), told=st.integers(1, 5), blocks=st.integers(20, 40))
def test_the_oldest_row_that_runs_never_gives_way_to_another(seed: int, told: int, blocks: int) -> None:
    """Why nothing turns in circles: it makes a token in each step that it is in, and so ends."""
    sim = simulation(blocks, told)
    trace, ended = rows(24, seed, least=80), 0
    before: tuple[str, int] | None = None
    while ended < len(trace):
        ended += len(sim.run(trace if sim.steps == 0 else (), until_s=sim.now_s + 0.5))
        running = sim._replica.running
        if before is not None and running and running[0].name == before[0]:
            assert running[0].computed > before[1]
        elif before is not None:
            assert before[0] not in {track.name for track in sim._replica.offline.values()}
        before = (running[0].name, running[0].computed) if running else None


@pytest.mark.parametrize("seed", range(3))
def test_more_rows_run_at_once_than_by_the_worst_case_and_little_is_computed_again(seed: int) -> None:
    trace = rows(300, seed, most=80)
    took: dict[str, float] = {}
    for name in ("worst", "expected"):
        sim = Simulation(SimEngine(second_a_step, 100, 64, 256, BLOCK), a_brain(replace(PLAIN, admission=name), NO_RESERVE))
        ended = sim.run(trace)
        took[name] = sim.now_s
    assert took["expected"] < 0.4 * took["worst"]
    assert sum(outcome.recomputed for outcome in ended) < 0.05 * sim.offline_tokens


def test_rows_are_preempted_by_the_plan_before_the_engine_has_to(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = simulation(60, told=1)
    inside: list[bool] = []
    original = sim._replica._run

    def noted(*args: Any) -> bool:
        inside.append(original(*args))
        return inside[-1]

    monkeypatch.setattr(sim._replica, "_run", noted)
    ended = run_checked(sim, rows(40, 7, least=80), 20_000)
    assert sum(outcome.preemptions for outcome in ended) > 5
    assert all(inside)


@pytest.mark.parametrize(("told", "chats", "rises"), [(1, 0, True), (400, 60, False)], ids=["answers are longer", "chat takes KV"])
def test_the_margin_rises_where_answers_are_longer_than_expected_and_not_by_what_chat_takes(told: int, chats: int, rises: bool) -> None:
    sim = simulation(60, told)
    admission = sim._brain.parts.admission
    assert isinstance(admission, Expected)
    trace = [*rows(40, 3, least=80), *(Request(f"c{number}", 20.0 + 30 * number, 600, 3) for number in range(chats))]
    ended, shares = sim.run(trace, until_s=0.5), set[float]()
    while len(ended) < len(trace):
        ended += sim.run(until_s=sim.now_s + 0.5)
        shares.add(admission.margin.share)
    assert sum(outcome.preemptions for outcome in ended if outcome.request.offline) > 5
    assert (max(shares) > LEAST) == rises
