"""One run of one system: what is simulated, and what is counted of it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.harness.brains import FIRST_COME, NOTHING_KEPT, first_come, settings_with, shipped
from bench.harness.load.arrivals import Arrival
from bench.scenarios.ceiling.bound import Prices, Room
from bench.scenarios.ceiling.cases import Case
from harvester.policy.brain import Brain
from harvester.policy.model.latency import LatencyModel
from harvester.policy.model.load import StepLoad
from harvester.policy.parts import parts_of
from harvester.policy.view import EngineView, Plan
from harvester.sim.engine import SimEngine
from harvester.sim.loop import Simulation
from harvester.sim.trace import Request, promised
from harvester.sim.track import Outcome

DRAIN_S = 30.0
SETTLED_S = 15.0  # of chat, after which figures are counted once more


class StockPriority(Brain):
    """vLLM's priority policy: every running request runs, chat is admitted first, and no row is preempted while there is KV.

    ``open_rows``: rows that its client keeps open at a time.
    """

    def __init__(self, open_rows: int) -> None:
        super().__init__(parts_of(FIRST_COME, LatencyModel()), NOTHING_KEPT)
        self._open = open_rows

    def plan(self, view: EngineView) -> Plan:
        ranks = {one.name: rank for rank, one in enumerate(view.waiting)}
        free = self._open - sum(one.offline for one in view.running)
        admit = [row.name for row, _ in zip(self.offline.rows(), range(free), strict=False)]
        every = tuple(range(len(view.running)))
        return Plan(every, (), (), (), (), tuple(admit), ranks, None, None, float("inf"), may_end=False)


@dataclass(frozen=True, slots=True)
class Mark:
    """Progress of a run. ``work_s``: see `Prices`. Tokens are computed ones, each counted once."""

    at_s: float
    work_s: float
    tokens: int
    offline_tokens: int
    rows: int


@dataclass(frozen=True, slots=True)
class Played:
    """One run. ``marks``: at the begin of chat, `SETTLED_S` later, and at its end. Times in seconds, of all of chat."""

    marks: tuple[Mark, Mark, Mark]
    ttft_s: list[float]
    gaps_s: list[float]


@dataclass(frozen=True, slots=True)
class Bench:
    """What all systems of a case and seed are given."""

    case: Case
    seconds: float
    seed: int

    @property
    def chat(self) -> list[Arrival]:
        return self.case.chat(self.seconds, np.random.default_rng(self.seed))

    @property
    def room(self) -> Room:
        case = self.case
        return Room(case.cost, case.slots, case.blocks * case.block_tokens, case.cost(StepLoad(case.step_tokens)))

    def rows(self) -> list[tuple[int, int]]:
        """More rows than any system completes."""
        rng, priced = random.Random(self.seed), Prices.of(self.case.cost)
        mean_s = sum(priced.work_s(prompt, prompt + answer) for prompt, answer in (self.case.row(rng) for _ in range(100))) / 100
        return [self.case.row(rng) for _ in range(round(1.5 * (self.case.lead_s + self.seconds + DRAIN_S) / mean_s) + 2 * self.case.slots)]

    def chat_alone(self) -> Played:
        return self._played(first_come(), self._engine(0), [])

    def priority(self) -> Played:
        """A quarter of the slots is left free, so that an arrival finds one."""
        return self._played(StockPriority(self.case.slots * 3 // 4), replace(self._engine(0), latest_gives_way=True), self._job())

    def harvester(self, ttft_s: float, tpot_s: float) -> Played:
        """With the shipped defaults and this SLO."""
        settings = settings_with(ttft_s, tpot_s)
        engine = self._engine(self.case.layers, settings.schedule.max_ttft_delay_fraction)
        return self._played(shipped(settings, self.case.blocks), engine, self._job(), (ttft_s, tpot_s))

    def _engine(self, layers: int, fraction: float = 1.0) -> SimEngine:
        case, cost = self.case, self.case.noise.over(self.case.cost, self.seed + 1)
        sizes = case.blocks, case.slots, case.step_tokens, case.block_tokens
        return SimEngine(cost, *sizes, layers=layers, max_ttft_delay_fraction=fraction)

    def _job(self) -> list[Request]:
        most = self.case.most[1]
        return [Request(f"row{number:06d}", 0.0, *row, "job", most) for number, row in enumerate(self.rows())]

    def _played(self, brain: Brain, engine: SimEngine, job: Sequence[Request], slo: tuple[float, float] | None = None) -> Played:
        lead_s = self.case.lead_s
        chat = [Request(f"chat{i}", lead_s + one.at_s, one.prompt_tokens, one.output_tokens) for i, one in enumerate(self.chat)]
        simulation, ended, marks = Simulation(engine, brain), [], []
        trace: Sequence[Request] = [*job, *(promised(chat, *slo) if slo else chat)]
        for until_s in (lead_s, lead_s + SETTLED_S, lead_s + self.seconds, lead_s + self.seconds + DRAIN_S):
            ended += simulation.run(trace, until_s=until_s)
            every, trace = [*ended, *simulation.going], ()
            marks.append(self._mark(max(simulation.now_s, until_s), every))
        online = [one for one in every if not one.request.offline and one.token_s]
        return Played((marks[0], marks[1], marks[2]), [one.ttft_s for one in online], [gap for one in online for gap in one.gaps_s])

    def _mark(self, at_s: float, every: Sequence[Outcome]) -> Mark:
        prices = Prices.of(self.case.cost)
        work_s = sum(prices.work_s(one.request.prompt_tokens, one.reached) for one in every)
        rows = [one for one in every if one.request.offline]
        ended = sum(len(one.token_s) >= one.request.output_tokens for one in rows)
        return Mark(at_s, work_s, sum(one.reached for one in every), sum(one.reached for one in rows), ended)
