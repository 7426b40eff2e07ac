"""Behind a device that lags its host, as on CUDA: signals end the steps they mean, and each step is given its own time."""

from __future__ import annotations

import importlib
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine

SECONDS = 60.0  # of virtual time: some 200 chats


class Run:
    """Results of a run. ``errors``: relative errors of the step times that the scheduler was told, sorted."""

    def __init__(self, engine: Any, learnt: list[tuple[int, float]], ended: int, detect_s: float) -> None:
        self.engine, self.ended, self.detect_s = engine, ended, detect_s
        spans = engine.worker.spans
        true_s = {number: ended_s - began_s for number, (began_s, ended_s) in spans.items()}
        self.errors = sorted(abs(seconds - true_s[number]) / true_s[number] for number, seconds in learnt if number in true_s)

    def error(self, quantile: float) -> float:
        return self.errors[int(quantile * (len(self.errors) - 1))]


@pytest.fixture(scope="module", params=["uni", "mp"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        importlib.import_module("vllm.v1.structured_output")
        yield _run(request.param, patch)


def _run(kind: str, patch: pytest.MonkeyPatch) -> Run:
    from bench.harness.engine.drive import Drive
    from harvester.config import parse_config
    from harvester.engine.embedded import embedded_model
    from harvester.engine.shared.settings import pack
    from harvester.engine.shared.state import Count, SharedState
    from harvester.engine.vllm.core import scheduler
    from harvester.engine.worker.safepoint import segments
    from tests.fakes.lagging_engine import SLO_S, Engine, InProcess, InThread
    from tests.fakes.virtual_time import Clock

    clock, shared = Clock(), SharedState.make()
    for name in ("monotonic", "time", "perf_counter"):
        patch.setattr(time, name, clock.now)
    slo = {"ttft_slo_ms": 1000 * SLO_S, "tpot_slo_ms": 40.0}
    config = parse_config({"slo": slo, "schedule": {"preempt_detect_ms": 10.0}}, "test")
    drive = Drive(Path(embedded_model()), scheduler.AsyncHarvestScheduler, 4000, 64, 16, pack(config, shared.path), model_tokens=4096)
    drive.scheduler._report._segments = segments(ranks=1, lags=True)  # its config names a CPU
    learnt: list[tuple[int, float]] = []
    learn = drive.scheduler._learn

    def noted() -> None:
        learnt.extend((step.number, seconds) for step, seconds, _ in drive.scheduler._answered)
        learn()

    drive.scheduler._learn = noted
    executors: dict[str, type[InThread] | type[InProcess]] = {"uni": InThread, "mp": InProcess}
    engine = Engine(drive, shared, executors[kind], clock, config.schedule.max_ttft_delay_fraction, seed=1)
    clock.run_until(clock.now_s + SECONDS)
    detected = max(1.0, shared.count(Count.DETECTED))
    found = Run(engine, learnt, int(shared.count(Count.ENDED_STEPS)), shared.count(Count.DETECT_S) / detected)
    shared.remove()
    return found


def test_a_signal_ends_the_step_that_it_means(run: Run) -> None:
    asked, ended = run.engine.asked, run.engine.worker.cut
    met = [any(first <= number <= last for number in ended) for first, last in asked]
    assert len(asked) > 50
    assert sum(met) >= 0.95 * len(asked), f"{sum(met)} of {len(asked)}"


def test_the_board_names_the_step_that_the_device_computes(run: Run) -> None:
    right = run.engine.board_was_right()
    assert len(right) > 100
    assert sum(right) >= 0.95 * len(right), f"{sum(right)} of {len(right)}"


def test_each_step_is_given_its_own_time(run: Run) -> None:
    assert len(run.errors) > 500
    assert run.error(0.5) < 0.05
    assert run.error(0.9) < 0.15


def test_a_step_ends_within_the_time_that_its_safepoints_are_laid_for(run: Run) -> None:
    """The device drains two stretches between safepoints, each at most half of `preempt_detect_ms`."""
    assert 0.0 < run.detect_s < 0.010


def test_every_chat_is_answered_and_most_in_time(run: Run) -> None:
    first_s = sorted(run.engine.first_s.values())
    waiting = set(run.engine.arrived_s) - set(run.engine.first_s)
    assert all(run.engine.clock.now_s - run.engine.arrived_s[name] < 1.0 for name in waiting)
    assert first_s[int(0.9 * len(first_s))] < 0.1
