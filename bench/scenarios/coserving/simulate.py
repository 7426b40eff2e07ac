"""Scenario ``simulate``: what the simulator predicts of harvester, against a real run of it on the same trace.

Stock vLLM runs chat alone, offline work alone, and both with its priority policy, in steps of two sizes. The time of a step is fitted to
theirs. With it the simulator, with the same brain as the engine, predicts a run of harvester of which it has seen nothing.

Its other inputs are:

- when chat comes, and how long each prompt and answer is;
- how long the offline rows are that the stock engines ended;
- the time between a client and the engine, from chat alone;
- by how much steps were slower in harvester's run.

The last is of the span in which the job runs without chat: actual over predicted there, over the same in stock vLLM's run. Both hold
the error of the fit for such steps.

A second simulation takes the step cost from harvester's own run. The error that is left then is the simulated schedule's; the rest is the
step cost's, on a machine that is not the same from run to run.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.harness.brains import first_come, settings_with, shipped
from bench.harness.compare import Comparison, Load, Setting, harvester, lead_of, over, priority
from bench.harness.knobs import described, knobs, set_up
from bench.harness.load.online_client import WARM_UP
from bench.harness.measure.latency import Slo, online_summary, percentile
from bench.harness.measure.steps import Ran, Record, StepFit, fit, read_record
from bench.harness.measure.stretch import Stretch
from bench.harness.options import Options
from bench.harness.paced import Pace, paced_alone
from bench.scenarios.coserving.coserve import trace_loads
from harvester.engine.frontend.overload import AWAITING_STEPS, MIN_AWAITING
from harvester.errors import UsageError
from harvester.policy.admission.chat import ChatAdmission
from harvester.sim.door import SimDoor
from harvester.sim.engine import SimEngine
from harvester.sim.loop import Simulation
from harvester.sim.trace import Request, promised
from harvester.sim.track import Outcome

WITHIN = 0.1
SHARES = (0.25,)
CLIENT_START_S = 2.0  # before each load, while the online client starts
CONFIG: dict[str, Any] = {"checkpoint": {"enabled": False}}  # KV is plentiful here, and host copies would be a second thing to fit
SMALL_STEP_TOKENS = 256  # harvester's steps often lie between decodes alone and full steps; this makes stock vLLM take such steps too
FITTED = ("online_only", "offline_only", "vllm_priority", f"vllm_priority with steps of {SMALL_STEP_TOKENS} tokens")


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one system under the load. ``steps_per_s``: engine steps; TTFT and gaps between tokens in ms.

    ``offline_tokens_per_s``: computed ones. A server's counters count a prompt only when it is complete, which is coarse in a short run.
    """

    steps_per_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    tpot_p50_ms: float
    tpot_p99_ms: float
    offline_tokens_per_s: float


def run(options: Options) -> dict[str, Any]:
    """One pace of chat. Raises `UsageError` for several."""
    given, pace = knobs(options), Pace.of(options, SHARES)
    if pace.points > 1:
        raise UsageError("simulate predicts one run: give one --share")
    with set_up(options, given, 2 * given.warm_s + given.idle_s + given.seconds + 60) as place:
        comparison = Comparison(place, given, options.seed, given.seconds)
        ((paced, (online,)),), _ = paced_alone(comparison, pace, trace_loads(given, options.seed, pace), given.seconds, offline_too=True)
        load = paced.loads[0]
        slo, setting = online.p99(), Setting.usual(given)
        small = replace(setting, step_tokens=SMALL_STEP_TOKENS)
        (stocks,) = priority(comparison, [load], setting)
        priority(comparison, [load], small)
        (ours,), _ = harvester(comparison, [load], slo, CONFIG, idle_s=given.idle_s)
        stock = read_record(place.folder / "online_only.steps")
        mixed, cut = (read_record(place.folder / f"{each.label}.steps") for each in (setting, small))
        real = read_record(place.folder / "harvester.steps")
        layers = int(json.loads((Path(place.model) / "config.json").read_text(encoding="utf-8"))["num_hidden_layers"])
        found = fit(_settled(stock.steps) + _settled(mixed.steps) + _settled(cut.steps))
        bench = _Bench(comparison, load, found, mixed, layers, options.seed)
        alone = bench.chat_alone()
        front_s = max(0.0, (figures_of(online).ttft_p50_ms - alone.ttft_p50_ms) / 1000)
        stock_bias = found.bias(before(mixed, stocks, given.warm_s))
        own_bias = found.bias(before(real, ours, given.warm_s))
        slower = own_bias / stock_bias if own_bias and stock_bias else 1.0
        predicted = {
            "online_only": bench.chat_alone(front_s),
            "harvester": replace(bench, fit=replace(found, slower=slower)).harvester(slo, front_s),
        }
        measured = {"online_only": figures_of(online), "harvester": figures_of(ours)}
        systems = {name: compared(predicted[name], measured[name]) for name in predicted}
        own = replace(bench, fit=fit(_settled(real.steps))).harvester(slo, front_s)
        return described(replace(given, rate=paced.rate), place) | {
            "chat": paced.line(),
            "systems": systems,
            "harvester_with_its_own_step_cost": compared(own, measured["harvester"]),
            "step_cost": {
                "fitted_to": FITTED,
                "steps": found.steps,
                "coefficients": found.model.coefficients,
                "actual_over_predicted": {"p50": found.model.error()[0], "p99": found.model.error()[1]},
                "front_ms": round(1000 * front_s, 3),
                "actual_over_predicted_with_the_job_alone": own_bias,
                "actual_over_predicted_with_the_job_alone_of_stock": stock_bias,
                "actual_over_predicted_at_harvester": found.bias(during(real, ours)),
            },
            "ratios": {f"{name}_predicted_over_measured": line["ratio"] for name, line in systems["harvester"].items()},
            "goals": {"within_10_percent": {"met": all(line["within_10_percent"] for line in systems["harvester"].values())}},
        }


@dataclass(frozen=True, slots=True)
class _Bench:
    """What is simulated. ``record``: of an engine with the KV that all have, and with the rows that all are given."""

    comparison: Comparison
    load: Load
    fit: StepFit
    record: Record
    layers: int
    seed: int

    def chat_alone(self, front_s: float = 0.0) -> Figures:
        """Stock vLLM, first come, first served. ``front_s``: between client and engine, on the way in."""
        return self._played(Simulation(self._engine(), first_come()), self._chat(0.0, front_s), 0.0)

    def harvester(self, slo: Slo, front_s: float) -> Figures:
        """As `bench.harness.compare.harvester` runs it: a job, alone at first, then beside the lead and beside the load."""
        settings = settings_with(slo.ttft_ms / 1000, slo.tpot_ms / 1000, **CONFIG)
        brain = shipped(settings, self.record.blocks)
        engine = self._engine(self.layers, settings.schedule.max_ttft_delay_fraction)
        door = SimDoor(engine, brain, ChatAdmission(max(MIN_AWAITING, AWAITING_STEPS * engine.max_seqs)))
        simulation = Simulation(engine, brain, door)
        earlier, begin_s = self.earlier(front_s)
        before = simulation.run(promised(earlier, slo.ttft_ms / 1000, slo.tpot_ms / 1000), until_s=begin_s)
        chat = promised(self._chat(begin_s, front_s), slo.ttft_ms / 1000, slo.tpot_ms / 1000)
        return self._played(simulation, chat, begin_s, before)

    def earlier(self, front_s: float) -> tuple[list[Request], float]:
        """The requests before the load, and when the load begins: the job, alone until it was measured, the lead, the job alone again."""
        given, (part, seconds) = self.comparison.knobs, lead_of(self.load, self.comparison.seconds)
        lead_s = given.warm_s + given.idle_s + CLIENT_START_S
        begin_s = lead_s + seconds + given.warm_s + CLIENT_START_S
        warm_ups = [
            Request(f"warm{number}-{i}", at_s - 0.5 + 0.1 * i, 64, 4)
            for number, at_s in enumerate((lead_s, begin_s))
            for i in range(WARM_UP)
        ]
        return [*self._job(begin_s), *warm_ups, *self._chat(lead_s, front_s, part, "lead")], begin_s

    def _engine(self, layers: int = 0, fraction: float = 1.0) -> SimEngine:
        given = self.comparison.knobs
        return SimEngine(
            self.fit.cost(self.seed),
            self.record.blocks,
            round(given.slots),
            round(given.step_tokens),
            self.record.block_tokens,
            layers=layers,
            max_ttft_delay_fraction=fraction,
        )

    def _chat(self, begin_s: float, front_s: float, load: Load | None = None, name: str = "chat") -> list[Request]:
        return [
            Request(f"{name}{number}", begin_s + one.at_s + front_s, one.prompt_tokens, one.output_tokens)
            for number, one in enumerate(self.load if load is None else load)
        ]

    def _job(self, begin_s: float) -> list[Request]:
        """More rows than any system completes, with the lengths of those that stock vLLM completed."""
        given, rng, rows = self.comparison.knobs, random.Random(self.seed), [row for row in self.record.rows if row.offline]
        count = round(given.rows_per_s * (begin_s + given.seconds + given.drain_s))
        drawn = [rng.choice(rows) for _ in range(count)]
        return [
            Request(
                f"row{number}", 0.0, row.prompt_tokens, row.output_tokens, "job", round(given.max_tokens), cached_tokens=row.cached_tokens
            )
            for number, row in enumerate(drawn)
        ]

    def _played(self, simulation: Simulation, chat: Sequence[Request], begin_s: float, before: Sequence[Outcome] = ()) -> Figures:
        given, end_s, steps, offline = self.comparison.knobs, begin_s + self.comparison.seconds, simulation.steps, simulation.offline_tokens
        ended = [*before, *simulation.run(chat, until_s=end_s)]
        steps, offline = simulation.steps - steps, simulation.offline_tokens - offline
        ended += simulation.run(until_s=end_s + given.drain_s)
        names, planned_s = {request.id for request in chat}, {request.id: one.at_s for request, one in zip(chat, self.load, strict=True)}
        outcomes = [*ended, *simulation.going]
        answered = [one for one in outcomes if one.request.id in names and one.token_s]
        ttft_ms = [1e3 * (one.token_s[0] - begin_s - planned_s[one.request.id]) for one in answered]
        gaps_ms = [1e3 * gap_s for one in answered for gap_s in one.gaps_s]
        (ttft_p50, ttft_p99), (tpot_p50, tpot_p99) = ([percentile(each, share) or 0.0 for share in (50, 99)] for each in (ttft_ms, gaps_ms))
        seconds = self.comparison.seconds
        return Figures(steps / seconds, ttft_p50, ttft_p99, tpot_p50, tpot_p99, offline / seconds)


def figures_of(stretch: Stretch) -> Figures:
    """As its clients and counters saw it."""
    chat, seconds = online_summary(stretch.requests), stretch.samples[-1].at_s - stretch.samples[0].at_s
    ttft_ms, tpot_ms = ({share: float(value or 0.0) for share, value in chat[kind].items()} for kind in ("ttft_ms", "tpot_ms"))
    offline = stretch.work.offline / seconds if stretch.offline else 0.0
    return Figures(stretch.work.steps / seconds, ttft_ms["p50"], ttft_ms["p99"], tpot_ms["p50"], tpot_ms["p99"], offline)


def during(record: Record, stretch: Stretch) -> list[Ran]:
    """The steps that were answered while the load was played."""
    begin_s, end_s = stretch.samples[0].at_s, stretch.samples[-1].at_s
    return [step for step in record.steps if begin_s <= step.at_s < end_s]


def before(record: Record, stretch: Stretch, seconds: float) -> list[Ran]:
    """The steps that were answered in the last ``seconds`` before the load was played."""
    begin_s = stretch.samples[0].at_s
    return [step for step in record.steps if begin_s - seconds <= step.at_s < begin_s]


def compared(predicted: Figures, measured: Figures) -> dict[str, dict[str, Any]]:
    """Each figure on both sides; those that are 0 on both are left out."""
    found: dict[str, dict[str, Any]] = {}
    for name in Figures.__dataclass_fields__:
        one, other = getattr(predicted, name), getattr(measured, name)
        if one or other:
            ratio = over(one, other)
            near = ratio is not None and abs(ratio - 1.0) <= WITHIN
            found[name] = {"predicted": round(one, 2), "measured": round(other, 2), "ratio": ratio, "within_10_percent": near}
    return found


def _settled(steps: Sequence[Ran]) -> list[Ran]:
    """The steps without the first 5%, in which code and memory are warmed up."""
    return list(steps[len(steps) // 20 :])
