"""Scenario ``scheduler``: what harvester adds to each step of vLLM's scheduler, without a model.

A real vLLM scheduler's objects are driven step by step with made-up outputs: harvester's, and stock vLLM's priority policy with the same
requests, in turns. In harvester's, what the parent class does in `schedule`, `update_from_output` and `add_request` is timed apart, so that
the rest is ours alone: view, plan, apply, learning and counting. What ours does inside of the parent's methods (its queue of waiting
requests) shows in the whole step beside stock vLLM's. What is done while the workers compute the step is listed by itself. The goal is
judged by CPU time, which a busy machine changes little.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler

from bench.harness.engine.drive import MODEL_TOKENS, Drive
from bench.harness.models import bench_model
from bench.harness.options import Options
from harvester.config import ServeConfig
from harvester.engine.shared.settings import pack
from harvester.engine.shared.state import Field, SharedState
from harvester.engine.vllm.core.scheduler import HarvestScheduling
from harvester.errors import EngineError

BLOCK_TOKENS = 32
LAYERS = 32
PROMPT, ANSWERS = 200, (400, 1800)  # tokens: a request that ends is replaced by one of its kind, at its own time
ROUNDS = 3
FULL_WITHIN = 0.1  # share of the batch size by which the mean over the steps may differ
CROWD_SLOTS, CROWD_TOKENS = 256, 224  # of each of a crowd, prompt and answer


@dataclass(frozen=True, slots=True)
class Case:
    """``online`` and ``offline`` requests run, ``waiting`` offline ones stand behind them; every ``arrivals_every`` steps chat arrives.

    ``crowd``: so many short chat requests wait at first, more than the run will answer, and KV is there for twice as many as have slots.
    """

    name: str
    online: int
    offline: int
    waiting: int
    goal_p99_ms: float
    arrivals_every: int = 10
    crowd: int = 0


CASES = (
    Case("256_running", 64, 192, 0, 0.3),
    Case("1024_running_10000_waiting", 256, 768, 10_000, 1.0),
    Case("20000_chats_waiting", 0, 0, 0, 1.0, crowd=20_000),
)


class Clock:
    """Wall and CPU seconds of this thread, those spent in vLLM's own methods apart."""

    def __init__(self) -> None:
        self._inside = (0.0, 0.0)
        self._began = now()

    def timed(self, method: Callable[..., Any], *args: Any) -> Any:
        began = now()
        try:
            return method(*args)
        finally:
            self._inside = plus(self._inside, since(began))

    def start(self) -> None:
        self._inside, self._began = (0.0, 0.0), now()

    def stop(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """What was spent since `start`: outside of vLLM's methods, and inside."""
        whole = since(self._began)
        return (whole[0] - self._inside[0], whole[1] - self._inside[1]), self._inside


def now() -> tuple[float, float]:
    return time.perf_counter(), time.thread_time()


def since(began: tuple[float, float]) -> tuple[float, float]:
    wall_s, cpu_s = now()
    return wall_s - began[0], cpu_s - began[1]


def plus(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return one[0] + other[0], one[1] + other[1]


class TimedStock(Scheduler):
    """vLLM's scheduler, whose methods are on the clock."""

    clock = Clock()

    def schedule(self, *args: Any) -> Any:
        return self.clock.timed(super().schedule, *args)

    def get_grammar_bitmask(self, *args: Any) -> Any:
        return self.clock.timed(super().get_grammar_bitmask, *args)

    def update_from_output(self, *args: Any) -> Any:
        return self.clock.timed(super().update_from_output, *args)

    def add_request(self, *args: Any) -> None:
        self.clock.timed(super().add_request, *args)


class TimedHarvest(HarvestScheduling, TimedStock):
    """harvester's scheduler over it: time that is not on the clock is ours."""


class Crew:
    """The requests of a case. Each that ends is replaced by one of its kind, but for a crowd."""

    def __init__(self, drive: Drive, case: Case, seed: int) -> None:
        self.drive, self.case = drive, case
        self._random, self._number = Random(seed), 0

    def offline(self) -> None:
        for _ in range(self.case.offline + self.case.waiting):
            self._enter("off", offline=True)

    def online(self) -> None:
        for _ in range(self.case.online):
            self._enter("on", offline=False)

    def replace(self) -> None:
        for name in self.drive.finished:
            if name.startswith(("off-", "on-")):
                self._enter(name.partition("-")[0], offline=name.startswith("off"))
        self.drive.finished.clear()

    def _enter(self, kind: str, *, offline: bool) -> None:
        self._number += 1
        answer, arrived_s = self._random.randint(*ANSWERS), None if offline else time.time()
        self.drive.add(f"{kind}-{self._number}", PROMPT, answer, offline=offline, arrived_s=arrived_s)


def run(options: Options) -> dict[str, Any]:
    steps = 300 if options.quick else 2000
    model = Path(options.model) if options.model is not None else bench_model()
    systems = {case.name: measure(case, model, steps, options.seed) for case in CASES}
    goals, ratios = {}, {}
    for name, found in systems.items():
        goals[name] = {"p99_cpu_ms": found["added_cpu_ms"]["p99"], "goal_ms": found["goal_p99_ms"], "met": found["met"]}
        ratios[f"added_over_vllm_{name}"] = round(found["added_cpu_ms"]["p50"] / found["vllm_cpu_ms"]["p50"], 3)
        ratios[f"step_over_vllm_{name}"] = round(
            _each(found, "step_cpu_ms", "running_mean") / _each(found, "vllm_cpu_ms", "vllm_running_mean"), 3
        )
    return {"model": model.name, "steps": steps, "systems": systems, "goals": goals, "ratios": ratios}


def _each(found: dict[str, Any], time: str, running: str) -> float:
    """Median time of a step for each request in it: the reserve leaves harvester's batch somewhat smaller than stock vLLM's."""
    return float(found[time]["p50"] / found[running])


def measure(case: Case, model: Path, steps: int, seed: int) -> dict[str, Any]:
    """Ours, and stock vLLM's beside it, in turns: a machine may change its pace by half from one minute to the next."""
    found: dict[type, list[Timed]] = {TimedHarvest: [], TimedStock: []}
    for kind in ROUNDS * (TimedHarvest, TimedStock):
        found[kind].append(_measured(case, model, steps // ROUNDS, seed, kind))
    ours, stock = (_together(rounds) for rounds in found.values())
    added = _percentiles(ours.added, 1)
    return {
        "added_ms": _percentiles(ours.added, 0),
        "added_cpu_ms": added,
        "step_cpu_ms": _percentiles(ours.whole, 1),
        "vllm_cpu_ms": _percentiles(stock.whole, 1),
        "while_the_model_runs_cpu_ms": _percentiles(ours.beside, 1),
        "vllm_while_the_model_runs_cpu_ms": _percentiles(stock.beside, 1),
        "goal_p99_ms": case.goal_p99_ms,
        "met": added["p99"] <= case.goal_p99_ms,
        "running_mean": ours.running_mean,
        "vllm_running_mean": stock.running_mean,
        "waiting": ours.waiting,
    }


@dataclass(frozen=True, slots=True)
class Timed:
    """Of each step, wall and CPU seconds: outside of vLLM's methods, in all, and while the workers compute it."""

    added: list[tuple[float, float]]
    whole: list[tuple[float, float]]
    beside: list[tuple[float, float]]
    running_mean: float
    waiting: int


def _together(rounds: list[Timed]) -> Timed:
    added, whole, beside = (
        list(chain.from_iterable(parts)) for parts in zip(*((one.added, one.whole, one.beside) for one in rounds), strict=True)
    )
    running_mean = round(sum(one.running_mean for one in rounds) / len(rounds), 1)
    return Timed(added, whole, beside, running_mean, max(one.waiting for one in rounds))


def _measured(case: Case, model: Path, steps: int, seed: int, kind: type) -> Timed:
    """Fill the batch, then time ``steps`` steps. Raises `EngineError` where the batch is not as full as the case says."""
    slots = CROWD_SLOTS if case.crowd else case.online + case.offline + 64  # room that the reserve keeps
    blocks = 2 * slots * (CROWD_TOKENS if case.crowd else MODEL_TOKENS) // BLOCK_TOKENS
    sections: dict[str, Any] = {}
    if kind is TimedHarvest:
        shared = SharedState.make()
        shared[Field.PLACES] = LAYERS
        sections = pack(ServeConfig.model_validate({"slo": {"ttft_slo_ms": 5000.0, "tpot_slo_ms": 5000.0}}), shared.path)
    drive = Drive(model, kind, blocks, slots, BLOCK_TOKENS, sections)
    crew = Crew(drive, case, seed)
    _fill(crew)
    found = _timed(crew, steps)
    size = case.online + case.offline
    if size and abs(found.running_mean - size) > FULL_WITHIN * size:
        raise EngineError(f"{case.name}: {found.running_mean} requests ran in a step of {kind.__name__}, not {size}")
    return found


def _fill(crew: Crew) -> None:
    drive, case = crew.drive, crew.case
    crew.offline()
    while len(drive.running) < case.offline:
        drive.step()
    crew.online()
    for _ in range(100):
        drive.step()
        crew.replace()
    for number in range(case.crowd):
        drive.add(f"crowd-{number}", PROMPT, CROWD_TOKENS - PROMPT, offline=False, arrived_s=time.time())
    gc.collect()
    gc.freeze()  # as vLLM's engine core does when it is up: its collector would look through every waiting prompt


def _timed(crew: Crew, steps: int) -> Timed:
    """A step is timed in three parts: before the workers have it, while they compute it, and when they have answered."""
    clock, drive, every = TimedStock.clock, crew.drive, crew.case.arrivals_every
    added, beside, whole = [], [], []
    running = 0
    for number in range(steps):
        comes = drive.made(f"more-{number}", PROMPT, 8, offline=False, arrived_s=time.time()) if number % every == 0 else None
        clock.start()
        if comes is not None:
            drive.enter(comes)
        output = drive.schedule()
        before, inside_before = clock.stop()
        clock.start()
        drive.sent(output)
        outside, inside = clock.stop()
        beside.append(plus(outside, inside))
        result = drive.output(output)
        clock.start()
        answers = drive.answered(output, result)
        after, inside_after = clock.stop()
        drive.note(answers)
        crew.replace()
        added.append(plus(before, after))
        whole.append(plus(added[-1], plus(inside_before, inside_after)))
        running += len(output.num_scheduled_tokens)
    return Timed(added, whole, beside, round(running / steps, 1), len(drive.scheduler.waiting))


def _percentiles(parts: list[tuple[float, float]], kind: int) -> dict[str, float]:
    ordered = sorted(part[kind] for part in parts)
    return {f"p{part}": round(1000 * ordered[min(len(ordered) - 1, len(ordered) * part // 100)], 4) for part in (50, 90, 99)}
