"""Scenario ``scheduler``: what harvester's plan adds to each step of vLLM's scheduler, without a model.

A real vLLM scheduler's objects are driven step by step with made-up outputs. What the parent class does in `schedule`, `update_from_output`
and `add_request` is timed apart, so that the rest is ours: view, plan, apply, learning and counting.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler

from bench.drive import MODEL_TOKENS, Drive
from bench.models import bench_model
from bench.scenario import Options
from harvester.config import ServeConfig
from harvester.engine.board import Board
from harvester.engine.scheduler import HarvestScheduling
from harvester.engine.settings import pack

BLOCK_TOKENS = 32
PROMPT, ANSWER = 200, 1200  # tokens: long answers keep a batch full while it is measured


@dataclass(frozen=True, slots=True)
class Case:
    """``online`` and ``offline`` requests running, ``waiting`` offline ones behind them; one in ``arrivals_every`` steps meets an arrival."""

    name: str
    online: int
    offline: int
    waiting: int
    goal_p99_ms: float
    arrivals_every: int = 10


CASES = (Case("256_running", 64, 192, 0, 0.3), Case("1024_running_10000_waiting", 256, 768, 10_000, 1.0))


class Clock:
    """Seconds spent in vLLM's own methods since `take`."""

    def __init__(self) -> None:
        self._spent_s = 0.0

    def timed(self, method: Callable[..., Any], *args: Any) -> Any:
        began_s = time.perf_counter()
        try:
            return method(*args)
        finally:
            self._spent_s += time.perf_counter() - began_s

    def take(self) -> float:
        spent_s, self._spent_s = self._spent_s, 0.0
        return spent_s


class TimedStock(Scheduler):  # type: ignore[misc]
    """vLLM's scheduler, whose methods are on the clock."""

    clock = Clock()

    def schedule(self, *args: Any) -> Any:
        return self.clock.timed(super().schedule, *args)

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
    goals = {
        name: {"p99_ms": found["added_ms"]["p99"], "goal_ms": found["goal_p99_ms"], "met": found["met"]} for name, found in systems.items()
    }
    return {
        "model": model.name,
        "steps": steps,
        "systems": systems,
        "goals": goals,
        "ratios": {
            f"added_over_vllm_{name}": round(found["added_ms"]["p50"] / found["vllm_ms"]["p50"], 3) for name, found in systems.items()
        },
    }


def measure(case: Case, model: Path, steps: int) -> dict[str, Any]:
    """Fill the batch, then time ``steps`` steps, a request that ends replaced by one of its kind."""
    slots = case.online + case.offline + 64  # room that the reserve keeps
    blocks = 2 * slots * MODEL_TOKENS // BLOCK_TOKENS
    with tempfile.TemporaryDirectory(prefix="harvester-bench-"):
        board = Board.make()
        sections = pack(ServeConfig.model_validate({"slo": {"ttft_slo_ms": 5000.0, "tpot_slo_ms": 5000.0}}), board.path)
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


def _timed(drive: Drive, case: Case, steps: int) -> dict[str, Any]:
    clock, added, stock = TimedStock.clock, [], []
    running = 0
    for number in range(steps):
        clock.take()
        began_s = time.perf_counter()
        if number % case.arrivals_every == 0:
            drive.add(f"more-{number}", PROMPT, 8, offline=False, arrived_s=time.time())
        output = drive.schedule()
        planned_s = time.perf_counter()
        result = drive.output(output)
        again_s = time.perf_counter()
        drive.take(output, result)
        whole_s = planned_s - began_s + time.perf_counter() - again_s
        stock_s = clock.take()
        added.append(whole_s - stock_s)
        stock.append(stock_s)
        running += len(output.num_scheduled_tokens)
    p99_ms = _percentiles(added)["p99"]
    return {
        "added_ms": _percentiles(added),
        "vllm_ms": _percentiles(stock),
        "goal_p99_ms": case.goal_p99_ms,
        "met": p99_ms <= case.goal_p99_ms,
        "running_mean": round(running / steps, 1),
        "waiting": len(drive.scheduler.waiting),
    }


def _percentiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {f"p{part}": round(1000 * ordered[min(len(ordered) - 1, len(ordered) * part // 100)], 4) for part in (50, 90, 99)}
