"""Admission rules on simulated GPUs: offline rows alone with little KV, and beside chat. The brain is the one that an engine holds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench.harness.brains import FIRST_COME, NOTHING_KEPT, settings_with
from bench.harness.load.arrivals import SHAREGPT as RECORDED
from bench.harness.load.arrivals import read_lengths, read_trace, replay
from bench.scenarios.admission.greedy import Greedy
from bench.scenarios.order.mlfq_sim import Recorded
from harvester.policy.brain import Brain
from harvester.policy.model.latency import LatencyModel
from harvester.policy.parts import PartsConfig, parts_of
from harvester.policy.view import PolicyConfig
from harvester.sim.cost import GPUS, MODELS, Machine, roofline
from harvester.sim.engine import SimEngine
from harvester.sim.loop import Simulation
from harvester.sim.measure import percentile
from harvester.sim.trace import SHAREGPT, Lengths, Request, promised
from harvester.sim.track import Outcome

RULES = ("worst", "expected", "greedy")
SECONDS, QUICK_SECONDS = 900.0, 300.0
CHAT_SECONDS, CHAT_QUICK_SECONDS = 240.0, 90.0
LEARNT = 1 / 3  # share of the time after which a job counts as under way
MOST_CHAT = (4096, 512)
LONGEST = 4096


def arxiv() -> Lengths:
    """A summarization job over papers: long prompts, short answers with a long tail."""
    return Recorded([length for length in read_lengths(RECORDED.with_name("lengths_arxiv.parquet")) if 1 < length[1] <= LONGEST])


@dataclass(frozen=True, slots=True)
class Case:
    """``max_tokens``: of each row. ``chats_per_s``: of the recorded trace; 0: rows alone. ``rows_per_s``: more than any rule completes."""

    model: str
    gpu: str
    kv_tokens: int
    lengths: Lengths
    max_tokens: int
    chats_per_s: float = 0.0
    rows_per_s: float = 6.0

    def engine(self) -> SimEngine:
        model = MODELS[self.model]
        return SimEngine(roofline(model, Machine(GPUS[self.gpu])), self.kv_tokens // 16, layers=model.layers if self.chats_per_s else 0)

    def rows(self, seconds: float, seed: int) -> list[Request]:
        draw = random.Random(seed)
        drawn = [self.lengths.draw(draw) for _ in range(round(self.rows_per_s * seconds))]
        return [
            Request(f"row{i:06d}", 0.0, prompt, min(answer, self.max_tokens), "job", self.max_tokens)
            for i, (prompt, answer) in enumerate(drawn)
        ]


# 14,648 tokens of KV: 12 GB, as the EconoServe paper has it for OPT-13B. The tokens of an 8B are what is left to it beside other tenants.
CASES = {
    "short_1024": Case("opt-13b", "a100-40gb", 14_648, SHAREGPT, 1024),
    "short_4096": Case("opt-13b", "a100-40gb", 14_648, SHAREGPT, LONGEST),
    "arxiv_4096": Case("opt-13b", "a100-40gb", 14_648, arxiv(), LONGEST),
    "beside_chat_short_1024": Case("llama-3.1-8b", "a100-40gb", 60_000, SHAREGPT, 1024, 1.0, 20.0),
    "beside_chat_short_4096": Case("llama-3.1-8b", "a100-40gb", 60_000, SHAREGPT, LONGEST, 1.0, 20.0),
    "beside_chat_arxiv_4096": Case("llama-3.1-8b", "a100-40gb", 60_000, arxiv(), LONGEST, 1.0, 20.0),
}


def run_case(case: Case, quick: bool, seed: int) -> dict[str, Any]:
    """Figures of each rule; beside chat, of chat alone too."""
    if not case.chats_per_s:
        seconds = QUICK_SECONDS if quick else SECONDS
        return {rule: _figures(*_played(case, _alone(rule), case.rows(seconds, seed), seconds), seconds) for rule in RULES}
    seconds = CHAT_QUICK_SECONDS if quick else CHAT_SECONDS
    arrivals = replay(read_trace(), case.chats_per_s, seconds, 1.0, MOST_CHAT, np.random.default_rng(seed))
    chat = [Request(f"chat{i}", one.at_s, one.prompt_tokens, one.output_tokens) for i, one in enumerate(arrivals)]
    found = {"chat_alone": _figures(*_played(case, _alone("worst"), chat, seconds), seconds)}
    ttft_s, tpot_s = found["chat_alone"]["ttft_p99_s"], found["chat_alone"]["tpot_p99_s"]
    trace = promised([*case.rows(seconds, seed), *chat], ttft_s, tpot_s)
    for rule in RULES:
        found[rule] = _figures(*_played(case, _beside(rule, case, ttft_s, tpot_s), trace, seconds), seconds)
    return found


def _alone(rule: str) -> Brain:
    """Without a latency model there is no chat to be kept from waiting; nothing is kept for it."""
    return _with(rule, FIRST_COME, NOTHING_KEPT)


def _beside(rule: str, case: Case, ttft_s: float, tpot_s: float) -> Brain:
    """With the shipped defaults, and what chat has alone as its SLO (ConServe 6.2)."""
    settings = settings_with(ttft_s, tpot_s)
    return _with(rule, settings.parts(case.kv_tokens // 16), settings.policy)


def _with(rule: str, config: PartsConfig, policy: PolicyConfig) -> Brain:
    parts = parts_of(replace(config, admission="worst" if rule == "greedy" else rule), LatencyModel())
    if rule == "greedy":
        parts.admission = Greedy()
    return Brain(parts, policy)


@dataclass(frozen=True, slots=True)
class Mark:
    """Progress of a run at a time."""

    at_s: float
    rows: int
    tokens: int  # of rows, without those computed again


def _played(case: Case, brain: Brain, trace: Sequence[Request], seconds: float) -> tuple[list[Outcome], list[Mark], Simulation]:
    is_stock = isinstance(brain.parts.admission, Greedy)
    simulation = Simulation(replace(case.engine(), latest_gives_way=is_stock), brain)
    begin = simulation.run(trace, until_s=LEARNT * seconds)
    middle = _mark(simulation, begin)
    ended = begin + simulation.run(until_s=seconds)
    return ended, [middle, _mark(simulation, ended)], simulation


def _mark(simulation: Simulation, ended: Sequence[Outcome]) -> Mark:
    rows = [one for one in (*ended, *simulation.going) if one.request.offline]
    again = sum(one.recomputed for one in rows)
    return Mark(simulation.now_s, sum(one.request.offline for one in ended), simulation.offline_tokens - again)


def _figures(ended: Sequence[Outcome], marks: Sequence[Mark], simulation: Simulation, seconds: float) -> dict[str, Any]:
    middle, end = marks
    every = [*ended, *simulation.going]
    rows, chat = ([one for one in every if one.request.offline == offline] for offline in (True, False))
    again = sum(one.recomputed for one in rows)
    gaps_s = [gap for one in chat for gap in one.gaps_s]
    return {
        "rows_per_s": (end.rows - middle.rows) / (end.at_s - middle.at_s),
        "offline_tokens_per_s": (end.tokens - middle.tokens) / (end.at_s - middle.at_s),
        "from_the_start": {"rows_per_s": end.rows / end.at_s, "offline_tokens_per_s": end.tokens / end.at_s},
        "recomputed_share": again / max(1, simulation.offline_tokens),
        "preemptions_per_row": sum(one.preemptions for one in rows) / max(1, end.rows),
        "steps": simulation.steps,
        "seconds": seconds,
        "ttft_p99_s": percentile([one.ttft_s for one in chat if one.token_s], 0.99) if chat else None,
        "tpot_p99_s": percentile(gaps_s, 0.99) if gaps_s else None,
    }
