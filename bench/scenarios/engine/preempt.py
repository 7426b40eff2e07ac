"""Scenario ``preempt``: what safepoints cost, how soon a running step ends, and whether the tokens stay the same (ConServe 6.4.2).

One engine at a time, each in a process of its own, without a server: long prompts as offline work keep every step full, and signals come
at random times, as arrivals would send them.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness.device import on_cpu
from bench.harness.measure.latency import percentiles
from bench.harness.models import deep_model
from bench.harness.options import Options
from harvester.config import parse_config
from harvester.core import PRIORITY_OFFLINE
from harvester.engine.processes.in_subprocess import run_in_process
from harvester.errors import EngineError

PROMPT_TOKENS, ANSWER_TOKENS = 1500, 16
STREAMS = 12
STEP_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Found:
    """Of one engine: tokens by prompt, seconds of its steps, seconds from signal to end, what one safepoint costs, seconds in all."""

    tokens: list[list[int]]
    steps_s: list[float]
    detect_s: list[float]
    safepoint_s: float
    layers: int
    seconds: float


def run(options: Options) -> dict[str, Any]:
    signals = 40 if options.quick else 200
    prompts = 12 if options.quick else 96
    model = options.model or str(deep_model())
    kinds = {"off": ("off", 0), "on": ("auto", 0), "signals": ("auto", signals)}
    found = {name: run_in_process(_measure, model, safepoints, prompts, count, options.seed) for name, (safepoints, count) in kinds.items()}
    return {"model": Path(model).name, **figures(found)}


def figures(found: Mapping[str, Found]) -> dict[str, Any]:
    """Of the engines without safepoints (``off``), with them (``on``), and with signals too. Raises `EngineError` if no step was ended."""
    on, hit = found["on"], found["signals"]
    if not hit.detect_s:
        raise EngineError("no step was ended, so that neither how soon nor the tokens after it were measured; use more prompts")
    step_s = sum(on.steps_s) / len(on.steps_s)
    met_s = sum(step * step for step in on.steps_s) / sum(on.steps_s)  # of the step at a random moment: long ones are hit more often
    same = all(one.tokens == found["off"].tokens for one in found.values())
    return {
        "layers": on.layers,
        "safepoint_overhead": on.layers * on.safepoint_s / step_s,
        "safepoint_us": on.safepoint_s * 1e6,
        "seconds_on_over_off": on.seconds / found["off"].seconds,
        "detect_ms": _ms(hit.detect_s),
        "step_ms": _ms(on.steps_s),
        "layer_ms": _ms([step / on.layers for step in on.steps_s]),
        "detect_mean_over_step_mean": sum(hit.detect_s) / len(hit.detect_s) / step_s,
        "step_met_mean_ms": 1e3 * met_s,
        "detect_mean_over_step_met": sum(hit.detect_s) / len(hit.detect_s) / met_s,
        "steps_ended": len(hit.detect_s),
        "tokens_identical": same,
        "systems": {name: {"seconds": one.seconds, "steps": len(one.steps_s)} for name, one in found.items()},
        "ratios": {"seconds_on_over_off": on.seconds / found["off"].seconds},
    }


def _measure(model: str, safepoints: str, prompts: int, signals: int, seed: int) -> Found:
    return asyncio.run(_engine(model, safepoints, prompts, signals, seed))


async def _engine(model: str, safepoints: str, prompts: int, signals: int, seed: int) -> Found:
    """Answer ``prompts`` with a fresh engine, ``signals`` of whose steps are asked to end."""
    from harvester.engine.frontend.host import EngineHost
    from harvester.engine.launch.arguments import engine_arguments
    from harvester.engine.shared.state import Field, SharedState

    engine = {"max_num_batched_tokens": STEP_TOKENS, "max_model_len": 4096, "dtype": _dtype(), "enable_prefix_caching": False}
    config = parse_config({"engine": engine, "schedule": {"safepoints": safepoints}}, "bench")
    shared = SharedState.make()
    host = await EngineHost.start(engine_arguments(config, model, "bench", cpu=on_cpu(), embedded=False, shared=shared.path))
    rng = random.Random(seed)
    given = [[rng.randrange(100, 4000) for _ in range(PROMPT_TOKENS)] for _ in range(prompts)]
    gate = asyncio.Semaphore(STREAMS)
    try:
        await _answer(host, "warm", given[0][:200], gate)
        began_s = time.monotonic()
        answers = asyncio.gather(*(_answer(host, str(i), ids, gate) for i, ids in enumerate(given)))
        detect_s = await _signal(shared, answers, signals, rng)
        tokens = await answers
        seconds = time.monotonic() - began_s
        steps_s, safepoint_s = shared.steps_s(), shared[Field.SAFEPOINT_S]
    finally:
        host.close()
    layers = host.llm.model_config.get_num_layers(host.llm.vllm_config.parallel_config)
    return Found(tokens, steps_s, detect_s, safepoint_s, layers, seconds)


async def _answer(host: Any, name: str, ids: list[int], gate: asyncio.Semaphore) -> list[int]:
    from vllm.inputs import TokensPrompt
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=ANSWER_TOKENS, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY)
    found: list[int] = []
    async with gate:
        async for output in host.llm.generate(TokensPrompt(prompt_token_ids=ids), params, name, priority=PRIORITY_OFFLINE):
            found = list(output.outputs[0].token_ids)
    return found


async def _signal(shared: Any, answers: asyncio.Future[Any], signals: int, rng: random.Random) -> list[float]:
    """Ask running steps to end, one at a time at random moments; seconds until the worker has left each.

    A step that ends by itself first is asked in vain and not counted.
    """
    from harvester.engine.shared.state import Field

    found: list[float] = []
    while len(found) < signals and not answers.done():
        await asyncio.sleep(rng.uniform(0.02, 0.3))
        steps = shared.in_flight()
        if not steps or not steps[0].endable:
            continue
        step, asked_s = steps[0].number, time.monotonic()
        shared.ask_to_end(step, asked_s)
        while shared[Field.ANSWERED] < step and not answers.done():  # noqa: ASYNC110  # another process writes it
            await asyncio.sleep(0.0005)
        if shared[Field.ENDED_STEP] == step:
            found.append(shared[Field.ENDED_AT_S] - asked_s)
    return found


def _ms(seconds: list[float]) -> dict[str, float | None]:
    return percentiles([1000 * value for value in seconds])


def _dtype() -> str:
    """float32 where it is exact and as fast; on CUDA the fast attention kernels lack it, and people serve in bfloat16."""
    return "float32" if on_cpu() else "bfloat16"
