"""Scenario ``scheduler``: what harvester's plan adds to each step of vLLM's scheduler, without a model.

A real vLLM scheduler's objects are driven step by step with made-up outputs. What the parent class does in `schedule`, `update_from_output`
and `add_request` is timed apart, so that the rest is ours: view, plan, apply, learning and counting. What is done while the workers compute
the step is listed by itself. The goal is judged by CPU time, which a busy machine changes little.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler

from bench.harness.engine.drive import MODEL_TOKENS, Drive
from bench.harness.models import bench_model
from bench.harness.options import Options
from harvester.config import ServeConfig
from harvester.engine.shared.settings import pack
from harvester.engine.shared.state import Field, SharedState
from harvester.engine.vllm.scheduler import HarvestScheduling

BLOCK_TOKENS = 32
LAYERS = 32
PROMPT, ANSWER = 200, 1200  # tokens: long answers keep a batch full while it is measured
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
    """Ours over it: what is not on the clock is ours."""


def run(options: Options) -> dict[str, Any]:
    steps = 300 if options.quick else 2000
    model = Path(options.model) if options.model is not None else bench_model()
    systems = {case.name: measure(case, model, steps) for case in CASES}
    goals, ratios = {}, {}
    for name, found in systems.items():
        goals[name] = {"p99_cpu_ms": found["added_cpu_ms"]["p99"], "goal_ms": found["goal_p99_ms"], "met": found["met"]}
        ratios[f"added_over_vllm_{name}"] = round(found["added_cpu_ms"]["p50"] / found["vllm_cpu_ms"]["p50"], 3)
    return {"model": model.name, "steps": steps, "systems": systems, "goals": goals, "ratios": ratios}


def measure(case: Case, model: Path, steps: int) -> dict[str, Any]:
    """Fill the batch, then time ``steps`` steps, a request that ends replaced by one of its kind."""
    slots = CROWD_SLOTS if case.crowd else case.online + case.offline + 64  # room that the reserve keeps
    blocks = 2 * slots * (CROWD_TOKENS if case.crowd else MODEL_TOKENS) // BLOCK_TOKENS
    with tempfile.TemporaryDirectory(prefix="harvester-bench-"):
        shared = SharedState.make()
        shared[Field.PLACES] = LAYERS
        sections = pack(ServeConfig.model_validate({"slo": {"ttft_slo_ms": 5000.0, "tpot_slo_ms": 5000.0}}), shared.path)
        drive = Drive(model, TimedHarvest, blocks, slots, BLOCK_TOKENS, sections)
        for number in range(case.offline + case.waiting):
            drive.add(f"off-{number}", PROMPT, ANSWER, offline=True)
        _fill(drive, case)
        return _timed(drive, case, steps)


def _fill(drive: Drive, case: Case) -> None:
    while len(drive.running) < case.offline:
        drive.step()
    for number in range(case.online):
        drive.add(f"on-{number}", PROMPT, ANSWER, offline=False, arrived_s=time.time())
    for _ in range(100):
        drive.step()
    for number in range(case.crowd):
        drive.add(f"crowd-{number}", PROMPT, CROWD_TOKENS - PROMPT, offline=False, arrived_s=time.time())
    gc.collect()
    gc.freeze()  # as vLLM's engine core does when it is up: its collector would look through every waiting prompt


def _timed(drive: Drive, case: Case, steps: int) -> dict[str, Any]:
    """A step is timed in three parts: before the workers have it, while they compute it, and when they have answered."""
    clock = TimedStock.clock
    added, beside, stock = [], [], []
    running = 0
    for number in range(steps):
        comes = drive.made(f"more-{number}", PROMPT, 8, offline=False, arrived_s=time.time()) if number % case.arrivals_every == 0 else None
        clock.start()
        if comes is not None:
            drive.enter(comes)
        output = drive.schedule()
        before, inside_before = clock.stop()
        clock.start()
        drive.sent(output)
        beside.append(clock.stop()[0])
        result = drive.output(output)
        clock.start()
        answers = drive.answered(output, result)
        after, inside_after = clock.stop()
        drive.note(answers)
        added.append(plus(before, after))
        stock.append(plus(inside_before, inside_after))
        running += len(output.num_scheduled_tokens)
    cpu = _percentiles(added, 1)
    return {
        "added_ms": _percentiles(added, 0),
        "added_cpu_ms": cpu,
        "while_the_model_runs_cpu_ms": _percentiles(beside, 1),
        "vllm_cpu_ms": _percentiles(stock, 1),
        "goal_p99_ms": case.goal_p99_ms,
        "met": cpu["p99"] <= case.goal_p99_ms,
        "running_mean": round(running / steps, 1),
        "waiting": len(drive.scheduler.waiting),
    }


def _percentiles(parts: list[tuple[float, float]], kind: int) -> dict[str, float]:
    ordered = sorted(part[kind] for part in parts)
    return {f"p{part}": round(1000 * ordered[min(len(ordered) - 1, len(ordered) * part // 100)], 4) for part in (50, 90, 99)}
