"""Part ``preempt``: what safepoints cost, and how soon a step ends once asked, drain included; by executor (ConServe 6.4.2)."""

from __future__ import annotations

import asyncio
import random
import time
from statistics import median
from typing import Any

from bench.gpu.engines.start import harvester
from bench.gpu.part import Found, Part, Run
from bench.gpu.parts.versions import chosen
from bench.gpu.run_config import RunConfig
from bench.harness.measure.latency import percentiles
from harvester.engine.processes.in_subprocess import run_in_process
from harvester.engine.shared.state import Field, SharedState
from harvester.engine.verify.ask import ask, random_ids
from harvester.engine.verify.signals import signals
from harvester.engine.vllm.frontend.client import HarvestLLM

ROUNDS = 3


def _run(executor: str, safepoints: str) -> Run:
    def run(run_config: RunConfig, found: Found) -> dict[str, Any]:
        if run_config.cpu and executor == "uni":
            return {"passed_over": "vLLM's CPU worker has a process of its own always"}
        if run_config.quick and safepoints == "off":
            return {"passed_over": "in the short form their cost is not measured"}
        return run_in_process(_measure, run_config, executor, safepoints)

    return run


def _measure(run_config: RunConfig, executor: str, safepoints: str) -> dict[str, Any]:
    return asyncio.run(_engine(run_config, executor, safepoints))


async def _engine(run_config: RunConfig, executor: str, safepoints: str) -> dict[str, Any]:
    schedule = {"safepoints": safepoints, "preempt_detect_ms": 5.0}
    async with harvester(run_config, {"distributed_executor_backend": executor}, schedule=schedule) as (llm, shared):
        seconds = [await _round(run_config, llm, number) for number in range(2 if run_config.quick else ROUNDS + 1)]
        found = {
            "chosen": await chosen(llm),
            "round_s": [round(value, 3) for value in seconds[1:]],  # the first warms up
            "step_ms": percentiles(1e3 * value for value in shared.steps_s()),
        }
        return found if safepoints == "off" else found | await _signals(run_config, llm, shared)


async def _round(run_config: RunConfig, llm: HarvestLLM, number: int) -> float:
    """Seconds for the same amount of offline work each time: prompts that fill steps, and answers."""
    rng, vocabulary = random.Random(100 + number), llm.model_config.get_vocab_size()
    requests, prompt, answer = run_config.number(64, 12, 4), run_config.number(3000, 600, 400), run_config.number(64, 16, 4)
    given = [random_ids(rng, vocabulary, prompt) for _ in range(requests)]
    began_s = time.monotonic()
    await asyncio.gather(*(ask(llm, f"round-{number}-{i}", ids, answer) for i, ids in enumerate(given)))
    return time.monotonic() - began_s


async def _signals(run_config: RunConfig, llm: HarvestLLM, shared: SharedState) -> dict[str, Any]:
    found = await signals(llm, shared, run_config.number(300, 60, 15), run_config.pick(60.0, 20.0, 6.0))
    return {
        "asked": found.asked,
        "ended": found.ended,
        "ended_of_asked": round(found.ended / found.asked, 4) if found.asked else None,
        "detect_ms": percentiles(1e3 * value for value in found.detect_s),
        "safepoint_us": round(1e6 * shared[Field.SAFEPOINT_S], 2),
    }


def summary(found: Found) -> dict[str, Any]:
    """Of each executor that ran."""
    made: dict[str, Any] = {}
    for executor in EXECUTORS:
        on, off = found[f"{executor}-on"], found[f"{executor}-off"]
        if "passed_over" in on:
            continue
        cost = None if "passed_over" in off else round(median(on["round_s"]) / median(off["round_s"]) - 1.0, 4)
        made[executor] = {"safepoint_overhead": cost, **{name: on[name] for name in ("ended_of_asked", "detect_ms", "step_ms")}}
    return made


EXECUTORS = ("mp", "uni")
PART = Part(
    {f"{executor}-{name}": _run(executor, mode) for executor in EXECUTORS for name, mode in (("off", "off"), ("on", "auto"))}, summary
)
