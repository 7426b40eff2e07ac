"""Scenario ``papers``: the figures of EconoServe, FastServe and ConServe, simulated, beside what the papers say.

No GPU is used: steps are timed by rooflines of the papers' models and machines, so read ratios, such as how many times another system's
rate a system sustains. `docs/papers.md` has the table, written from the result.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

from bench.harness.options import Options
from bench.papers.figures import conserve, econoserve, fastserve, sensitivity
from bench.papers.figures.scale import FULL, QUICK, Scale
from bench.papers.loads import DATASETS, PREDICTION_ERROR, Load
from bench.papers.machines import PAPER, TODAY
from bench.papers.measure import BOUND_S
from bench.papers.systems import SYSTEMS


class Task(NamedTuple):
    """One process's work; ``place``: where in the result its answer goes."""

    place: tuple[str, ...]
    function: Callable[..., Any]
    given: tuple[Any, ...]


def tasks(scale: Scale, quick: bool) -> list[Task]:
    """The longest first, so that the processes end together. Quick: one model and one dataset of each paper."""
    return [*_fastserve(scale, quick), *_econoserve(scale, quick), *_conserve(scale, quick)]


def _econoserve(scale: Scale, quick: bool) -> Iterable[Task]:
    settings, datasets = (("opt-13b",), ("sharegpt", "alpaca")) if quick else (tuple(PAPER), tuple(DATASETS))
    for setting in settings:
        yield Task(("econoserve", "gpus", setting), sensitivity.gpus, (setting, scale))
        yield Task(("econoserve", "utilization", setting), sensitivity.utilization, (setting, scale))
        for dataset in datasets:
            yield Task(("econoserve", "cells", setting, dataset), econoserve.cell, (setting, dataset, scale))
    for dataset in datasets[:1] if quick else datasets:
        yield Task(("econoserve", "factors", dataset), sensitivity.factors, (dataset, scale))
    for setting in () if quick else tuple(TODAY):
        yield Task(("today", setting, "sharegpt"), econoserve.cell, (setting, "sharegpt", scale))
    yield Task(("econoserve", "goals"), sensitivity.goals, (scale,))
    yield Task(("econoserve", "causes"), sensitivity.causes, (scale,))


def _fastserve(scale: Scale, quick: bool) -> Iterable[Task]:
    machines = ("opt-13b",) if quick else tuple(fastserve.MACHINES)
    for system in reversed(fastserve.SYSTEMS):
        for machine in machines:
            for lengths in ("sharegpt",) if quick else tuple(fastserve.LENGTHS):
                yield Task(("fastserve", "rates", machine, lengths, system), fastserve.rates, (machine, lengths, system, scale))
    if not quick:
        yield Task(("fastserve", "causes"), fastserve.causes, (scale,))
    for times in (1.0,) if quick else fastserve.PROMPT_TIMES:
        yield Task(("fastserve", "prompts", f"{times:g}"), fastserve.prompt_lengths, (times, scale))
    for rate in (2.0,) if quick else fastserve.KV_RATES:
        yield Task(("fastserve", "kv", f"{rate:g}"), fastserve.kv_policies, (rate, scale))


def _conserve(scale: Scale, quick: bool) -> Iterable[Task]:
    yield Task(("conserve", "trace"), conserve.trace, (scale,))
    yield Task(("conserve", "phases"), conserve.phases, (scale,))
    yield Task(("conserve", "parts"), conserve.parts, (scale,))
    for cv in conserve.CVS[:1] if quick else conserve.CVS:
        yield Task(("conserve", "bursts", f"cv {cv:g}"), conserve.bursts, (cv, conserve.RATE, scale))
    for rate in () if quick else conserve.RATES:
        yield Task(("conserve", "bursts", f"rate {rate:g}"), conserve.bursts, (1.0, rate, scale))


def run(options: Options) -> dict[str, Any]:
    """Raises whatever a task raises."""
    scale, began_s, before_s = QUICK if options.quick else FULL, time.monotonic(), _cpu_s()
    compile_all()
    found: dict[str, Any] = {}
    given = tasks(scale, options.quick)
    processes = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(processes, multiprocessing.get_context("fork")) as pool:
        asked = [pool.submit(task.function, *task.given) for task in given]
        for task, answer in zip(given, asked, strict=True):
            _put(found, task.place, answer.result())
    return {
        "model": "OPT-13B to 175B, Llama-33B, Llama-2-7B on A100s, simulated",
        "setting": {
            "bound_s_per_token": BOUND_S,
            "prediction_error": PREDICTION_ERROR,
            "seeds": scale.seeds,
            "seconds": {name: scale.dataset(dataset).seconds for name, dataset in DATASETS.items()},
        },
        "processes": processes,
        "cpu_seconds": round(_cpu_s() - before_s, 1),
        "wall_seconds": round(time.monotonic() - began_s, 1),
        **found,
        "ratios": econoserve.ratios(found["econoserve"]["cells"]),
    }


def compile_all() -> None:
    """In this process, so that those it forks have the machine code."""
    load = Load(DATASETS["alpaca"].for_seconds(1.0), 20.0)
    for system in SYSTEMS.values():
        system.simulate(load, PAPER["opt-13b"])


def _put(result: dict[str, Any], place: tuple[str, ...], value: Any) -> None:
    for name in place[:-1]:
        result = result.setdefault(name, {})
    result[place[-1]] = value


def _cpu_s() -> float:
    """Of this process and those that it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
