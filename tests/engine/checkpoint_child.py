"""``python -m tests.engine.checkpoint_child``: answer many prompts with an engine short of KV, and write down tokens and counters.

Offline work for more slots than there is KV for, online arrivals among it, structured outputs, and requests that are cancelled half way, in
the queue, at work and while they are read back. Online requests come as soon as the offline work runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.harness.device import on_cpu
from bench.harness.models import small_model
from harvester.config import parse_config
from tests.engine.depth import keep_asynchronous_scheduling
from tests.engine.tokens_child import OURS, answer

OUTPUT_TOKENS = 96
AT_ONCE = 24
KV_BLOCKS = 33
MAX_S = 500.0
ENGINE = {"max_model_len": 512, "max_num_seqs": 10, "max_num_batched_tokens": 256}
NO_RESERVE = {"share": {"reserved_slots": 1, "reserved_kv": 0.0}, "schedule": {"reserve": "fixed", "admission": "worst"}}


def prompts(count: int) -> list[list[int]]:
    """Token ids, the same in every run; two of three with a prefix in common."""
    rng = random.Random(11)
    shared = [rng.randrange(10, 4000) for _ in range(100)]
    return [
        shared[: rng.randrange(1, 100) if i % 3 else 0] + [rng.randrange(10, 4000) for _ in range(rng.randrange(20, 200))]
        for i in range(count)
    ]


async def ask_all(host: Any, given: list[list[int]], faults: bool, tokens: int) -> list[list[int]]:
    gate = asyncio.Semaphore(AT_ONCE)
    rng = random.Random(5)

    async def offline(number: int) -> list[int]:
        async with gate:
            return await answer(host.llm, str(number), given[number], online=False, guided=number % 16 == 0, tokens=tokens)

    async def online(number: int) -> list[int]:
        await asyncio.sleep(0.4 * (number // 10))
        return await answer(host.llm, str(number), given[number], online=True, guided=False, tokens=tokens)

    async def cancelled() -> None:
        for number in range(len(given) // 10):
            with suppress(TimeoutError):
                lost = answer(host.llm, f"lost-{number}", given[number], online=False, guided=False, tokens=tokens)
                await asyncio.wait_for(lost, rng.uniform(0.1, 2.0))

    async def corrupted() -> None:
        while faults:
            await asyncio.sleep(0.3)
            await host.llm.collective_rpc("spoil")

    others = [asyncio.create_task(cancelled()), asyncio.create_task(corrupted())]
    found = await asyncio.wait_for(asyncio.gather(*(online(i) if i % 10 == 9 else offline(i) for i in range(len(given)))), MAX_S)
    await others[0]
    others[1].cancel()
    return found


async def run(given: argparse.Namespace) -> dict[str, Any]:
    from harvester.engine.frontend.host import EngineHost
    from harvester.engine.launch.arguments import engine_arguments
    from harvester.engine.shared.state import Count, SharedState

    model = small_model(given.models)
    checkpoint = {"enabled": not given.stock, "host_gib": 0.25, "verify": True} | given.checkpoint
    config = parse_config({"engine": ENGINE | given.engine, "slo": {"ttft_slo_ms": 50.0}, "checkpoint": checkpoint} | NO_RESERVE, "test")
    shared = SharedState.make()
    values = engine_arguments(config, str(model), model.name, cpu=on_cpu(), embedded=True, shared=shared.path)
    if given.stock:
        values = {key: value for key, value in values.items() if key not in OURS}
    else:
        kind = "AsyncGreedyScheduler" if values["async_scheduling"] else "GreedyScheduler"
        values |= {"scheduler_cls": f"tests.fakes.greedy_scheduler.{kind}", "num_gpu_blocks_override": given.blocks}
        values["additional_config"]["harvester_safepoints"]["chaos"] = given.chaos
        if given.faults:
            values["worker_cls"] = "tests.fakes.faulty_worker.FaultyWorker"
    host = await EngineHost.start(values)
    try:
        tokens = await ask_all(host, prompts(given.requests), given.faults, given.tokens)
        await asyncio.sleep(0.5)
        after = await answer(
            host.llm, "last", prompts(1)[0], online=False, guided=True, tokens=given.tokens
        )  # its steps collect the results of the last copies
        await asyncio.sleep(0.5)
    finally:
        host.close()
    counts = {count.name.lower(): shared.count(count) for count in Count}
    found = host.llm.vllm_config
    depth, v2 = found.max_concurrent_batches, bool(found.use_v2_model_runner)
    return {"tokens": [*tokens, after], "counts": counts, "depth": depth, "runner_v2": v2}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", type=json.loads, default={})
    parser.add_argument("--checkpoint", type=json.loads, default={})
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--blocks", type=int, default=KV_BLOCKS)
    parser.add_argument("--chaos", type=float, default=0.0, help="probability that a step of offline work ends at a random layer")
    parser.add_argument("--faults", action="store_true", help="spoil host blocks all the time")
    parser.add_argument("--stock", action="store_true", help="vLLM's own scheduler and worker, with KV enough")
    parser.add_argument("--tokens", type=int, default=OUTPUT_TOKENS, help="of each answer")
    parser.add_argument("--two-steps", action="store_true", help="keep two steps in flight, as on CUDA")
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    if given.two_steps:
        keep_asynchronous_scheduling()
        given.engine["async_scheduling"] = True
    given.output.write_text(json.dumps(asyncio.run(run(given))), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
