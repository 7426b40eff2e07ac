"""``python -m tests.engine.tokens_child``: answer a fixed set of prompts with one engine, and write down the tokens.

The set is made to find wrong KV: shared prefixes, prompts of many chunks, structured outputs, online arrivals among offline work, requests
that are cancelled half way, and everything asked a second time, out of the prefix cache of the first. How many steps a turn takes is the
machine's affair, so a caller that needs many says how many. Steps end early only where no chat is in them: chat comes when a quarter of the
offline prompts is answered.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness.device import on_cpu
from bench.harness.models import small_model
from harvester.config import parse_config
from tests.engine.asking import likeliest
from tests.engine.depth import keep_asynchronous_scheduling

OURS = ("scheduler_cls", "worker_cls", "additional_config", "kv_transfer_config")
SCHEMA = {
    "type": "object",
    "properties": {"count": {"type": "integer"}, "kind": {"enum": ["ant", "bee", "antelope"]}},
    "required": ["count", "kind"],
}
MAX_TURN_S, MAX_S = 240.0, 600.0


@dataclass(frozen=True, slots=True)
class Size:
    """Size of one turn: numbers of requests, and tokens of an answer. Short answers are the beginnings of long ones."""

    offline: int
    online: int
    cancelled: int
    tokens: int
    turns: int


FULL = Size(48, 8, 4, 64, 2)
SHORT = Size(10, 2, 1, 12, 1)  # for Triton's interpreter, which takes a second a step


def prompts() -> list[list[int]]:
    """Token ids, the same in every run. A short turn takes the first ones."""
    rng = random.Random(7)
    shared = [rng.randrange(10, 4000) for _ in range(300)]
    return [
        shared[: rng.randrange(1, 300)] + [rng.randrange(10, 4000) for _ in range(rng.randrange(20, 400))]
        for _ in range(FULL.offline + FULL.online + FULL.cancelled)
    ]


async def answer(llm: Any, name: str, ids: list[int], *, online: bool, guided: bool, tokens: int = 64) -> list[int]:
    from vllm.sampling_params import StructuredOutputsParams

    outputs = StructuredOutputsParams(json=SCHEMA) if guided else None
    found = await likeliest(llm, name, ids, online=online, tokens=tokens, outputs=outputs, ignore_eos=not guided)
    return list(found.token_ids)


async def ask_all(llm: Any, turn: int, size: Size) -> list[list[int]]:
    given = prompts()
    last_offline, last_online = size.offline, size.offline + size.online
    answered, alone = [], asyncio.Event()

    async def ask(number: int, *, online: bool, guided: bool = False) -> list[int]:
        return await answer(llm, f"{turn}-{number}", given[number], online=online, guided=guided, tokens=size.tokens)

    async def offline(number: int) -> list[int]:
        answered.append(await ask(number, online=False, guided=number % 4 == 0))
        if len(answered) >= size.offline // 4:
            alone.set()
        return answered[-1]

    async def online(number: int) -> list[int]:
        await alone.wait()
        await asyncio.sleep(0.15 * (number - last_offline))
        return await ask(number, online=True)

    async def cancelled(number: int) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(ask(number, online=False), 0.3 * (number - last_online + 1))

    lost = [asyncio.create_task(cancelled(i)) for i in range(last_online, last_online + size.cancelled)]
    asked = *map(offline, range(last_offline)), *map(online, range(last_offline, last_online))
    found = await asyncio.wait_for(asyncio.gather(*asked), MAX_TURN_S)
    await asyncio.gather(*lost)
    return found


async def run(engine: dict[str, Any], chaos: float, least: int, stock: bool, model: Path, size: Size) -> dict[str, Any]:
    from harvester.engine.frontend.host import EngineHost
    from harvester.engine.launch.arguments import engine_arguments
    from harvester.engine.shared.state import Count, SharedState

    schedule = {"safepoints": "all", "preempt_detect_ms": 0.1}  # in every step, at every layer as far as their cost allows
    config = parse_config({"engine": engine, "slo": {"ttft_slo_ms": 50.0}, "schedule": schedule}, "test")
    shared = SharedState.make()
    values = engine_arguments(config, str(model), model.name, cpu=on_cpu(), embedded=True, shared=shared.path)
    if stock:
        values = {key: value for key, value in values.items() if key not in OURS}
    else:
        values["additional_config"]["harvester_safepoints"]["chaos"] = chaos
    host = await EngineHost.start(values)
    try:
        tokens: list[list[list[int]]] = []
        until = time.monotonic() + MAX_S - MAX_TURN_S
        while len(tokens) < size.turns or (shared.count(Count.ENDED_STEPS) < least and time.monotonic() < until):
            tokens.append(await ask_all(host.llm, len(tokens), size))
    finally:
        host.close()
    asked = shared.count(Count.DETECTED)
    depth = host.llm.vllm_config.max_concurrent_batches
    return {
        "tokens": tokens,
        "depth": depth,
        "ended": shared.count(Count.ENDED_STEPS),
        "asked": asked,
        "mixed": shared.count(Count.MIXED_STEPS),
        "runner_v2": bool(host.llm.vllm_config.use_v2_model_runner),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", type=json.loads, default={})
    parser.add_argument("--chaos", type=float, default=0.0, help="probability that a step with offline work ends at a random layer")
    parser.add_argument("--least", type=int, default=0, help="ask everything again until so many steps ended early")
    parser.add_argument("--stock", action="store_true", help="vLLM's own scheduler and worker")
    parser.add_argument("--short", action="store_true", help="few and short answers, asked once")
    parser.add_argument("--two-steps", action="store_true", help="keep two steps in flight, as on CUDA")
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    if given.two_steps:
        keep_asynchronous_scheduling()
        given.engine["async_scheduling"] = True
    size = SHORT if given.short else FULL
    found = asyncio.run(run(given.engine, given.chaos, given.least, given.stock, small_model(given.models), size))
    given.output.write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
