"""Scenario ``checkpoint``: what a preemption costs without checkpoints, and with each part of them (ConServe Fig. 4, FastServe Fig. 15).

One engine at a time in this process's charge, no server around it, with KV for about ten offline requests. Bursts of online requests take
KV from them. Every engine gets the same prompts and the same times.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bench.counters import work_between
from bench.latency import percentiles
from bench.models import bench_model
from bench.realpath import on_cpu
from bench.scenario import Options
from bench.systems import CPU_ENGINE, counted
from harvester.config import parse_config
from harvester.core import PRIORITY_OFFLINE, PRIORITY_ONLINE

KV_MIB, PLENTY_MIB = 288, 2048
SLOTS = 40  # more than there are requests: what is short is KV
OFFLINE_TOKENS, OFFLINE_OUTPUT = (300, 700), 160
ONLINE_TOKENS, ONLINE_OUTPUT = 400, 24
BURST, EVERY_S = 6, 4.0
STREAMS = 24  # offline requests open at a time
ENGINE: dict[str, Any] = {"max_num_seqs": SLOTS, "max_num_batched_tokens": 1024, "max_model_len": 2048, "enable_prefix_caching": True}
# No reserve, so that each burst takes KV away: what is measured is what that costs.
TIGHT: dict[str, Any] = {"share": {"reserved_slots": 1, "reserved_kv": 0.0, "reserve_s": 0.0}, "schedule": {"reserve": "fixed"}}
ON: dict[str, Any] = {"enabled": True, "host_gib": 1.0}


@dataclass(frozen=True, slots=True)
class System:
    """``checkpoint``: that section of the config; None: vLLM's own scheduler with its priority policy."""

    checkpoint: dict[str, Any] | None
    kv_mib: int = KV_MIB


SYSTEMS = {
    "vllm_priority": System(None),
    "recompute": System({}),
    "swap": System(ON | {"start_free": 1e-9, "full_free": 0.0, "wait_blocks": 1_000_000}),
    "incremental": System(ON | {"partial_blocks": False}),
    "incremental+partial": System(ON),
    "plenty_off": System({}, PLENTY_MIB),
    "plenty_on": System(ON, PLENTY_MIB),
}
QUICK = ("recompute", "incremental+partial")


@dataclass(slots=True)
class Seen:
    """Of one engine. Times in seconds."""

    ttft_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    online_requests: int = 0
    offline_tokens: int = 0
    tokens: dict[str, list[int]] = field(default_factory=dict)
    preemptions: int = 0


def run(options: Options) -> dict[str, Any]:
    """``--seconds``: of each engine (60; 20 with ``--quick``), after a warm-up."""
    seconds = options.seconds or (20.0 if options.quick else 60.0)
    model = options.model or str(bench_model())
    chosen = QUICK if options.quick else tuple(SYSTEMS)
    found: dict[str, dict[str, Any]] = {}
    tokens: dict[str, dict[str, list[int]]] = {}
    for name in chosen:
        with (
            tempfile.TemporaryDirectory(prefix="bench-checkpoint-") as folder,
            ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone,
        ):  # an engine's metrics can be registered once in a process
            found[name], tokens[name] = alone.submit(_measure, SYSTEMS[name], model, seconds, options.seed, Path(folder)).result()
        print(f"{name}: {json.dumps(found[name])}", file=sys.stderr)
    return {
        "model": Path(model).name,
        "engine": ENGINE,
        "stock_offloading": "not run: vLLM's offloading refuses the CPU platform" if on_cpu() else "not run",
        "tokens_identical": _same(tokens),
        "systems": found,
        "ratios": _ratios(found),
    }


def _measure(system: System, model: str, seconds: float, seed: int, folder: Path) -> tuple[dict[str, Any], dict[str, list[int]]]:
    return asyncio.run(_engine(system, model, seconds, seed, folder))


async def _engine(system: System, model: str, seconds: float, seed: int, folder: Path) -> tuple[dict[str, Any], dict[str, list[int]]]:
    from harvester.engine.arguments import engine_arguments
    from harvester.engine.board import Board, Count
    from harvester.engine.host import EngineHost

    counts, board = folder / "counts", Board.make()
    host = await EngineHost.start(_arguments(system, model, counts, board, engine_arguments))
    seen = Seen()
    try:
        await asyncio.wait_for(_load(host.llm, seen, 8.0, seed + 1), 300)
        before = {count: board.count(count) for count in Count}
        seen, began_s = Seen(), time.monotonic()
        await asyncio.wait_for(_load(host.llm, seen, seconds, seed), seconds + 300)
        ended_s = time.monotonic()
        await asyncio.sleep(0.3)
        done = {count.name.lower(): board.count(count) - value for count, value in before.items()}
    finally:
        host.close()
    work = work_between(counts, began_s, ended_s)
    return _summary(seen, ended_s - began_s, work, done), seen.tokens


def _arguments(system: System, model: str, counts: Path, board: Any, engine_arguments: Any) -> dict[str, Any]:
    cpu = on_cpu()
    engine = ENGINE | (CPU_ENGINE | {"kv_cache_memory_bytes": system.kv_mib << 20} if cpu else {})
    own = counted(counts, f"bench.counting_harvest.Counted{'' if cpu else 'Async'}Harvest")
    config = parse_config({"engine": own | engine, **TIGHT, "checkpoint": system.checkpoint or {}}, "bench")
    values: dict[str, Any] = engine_arguments(config, model, "bench", cpu=cpu, embedded=False, board=board.path)
    if system.checkpoint is None:
        values |= counted(counts, f"bench.counting.Counted{'' if cpu else 'Async'}Stock")
        values |= {"worker_cls": "bench.patient.PatientWorker"} if cpu else {}
    return values


async def _load(llm: Any, seen: Seen, seconds: float, seed: int) -> None:
    """Offline work for ``seconds``, which is cut off then, and bursts of online requests, whose ends are waited for."""
    rng = random.Random(seed)
    offline = [[rng.randrange(100, 4000) for _ in range(rng.randint(*OFFLINE_TOKENS))] for _ in range(2000)]
    bursts = [[[rng.randrange(100, 4000) for _ in range(ONLINE_TOKENS)] for _ in range(BURST)] for _ in range(int(seconds / EVERY_S))]
    waiting = iter(enumerate(offline))

    async def stream() -> None:
        for number, ids in waiting:
            await _offline(llm, f"{seed}-{number}", ids, seen)

    streams = [asyncio.create_task(stream()) for _ in range(STREAMS)]
    began_s, online = time.monotonic(), []
    for number, burst in enumerate(bursts):
        await asyncio.sleep(max(0.0, began_s + (number + 0.5) * EVERY_S - time.monotonic()))
        online += [asyncio.create_task(_online(llm, f"{seed}-chat-{number}-{i}", ids, seen)) for i, ids in enumerate(burst)]
    await asyncio.sleep(max(0.0, began_s + seconds - time.monotonic()))
    for task in streams:
        task.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    await asyncio.gather(*online)


async def _offline(llm: Any, name: str, ids: list[int], seen: Seen) -> None:
    previous = 0
    async for output in _answer(llm, name, ids, OFFLINE_OUTPUT, PRIORITY_OFFLINE):
        made = len(output.outputs[0].token_ids)
        seen.offline_tokens += made - previous + (0 if previous else len(ids))
        previous = made
        if output.finished:
            seen.tokens[name] = list(output.outputs[0].token_ids)
            seen.preemptions += int(getattr(output.metrics, "num_preemptions", 0) or 0)


async def _online(llm: Any, name: str, ids: list[int], seen: Seen) -> None:
    last_s, first = time.monotonic(), True
    seen.online_requests += 1
    async for output in _answer(llm, name, ids, ONLINE_OUTPUT, PRIORITY_ONLINE):
        now_s = time.monotonic()
        (seen.ttft_s if first else seen.gaps_s).append(now_s - last_s)
        last_s, first = now_s, False
        if output.finished:
            seen.tokens[name] = list(output.outputs[0].token_ids)


def _answer(llm: Any, name: str, ids: list[int], tokens: int, priority: int) -> Any:
    from vllm.inputs import TokensPrompt
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, output_kind=RequestOutputKind.CUMULATIVE)
    return llm.generate(TokensPrompt(prompt_token_ids=ids), params, name, priority=priority)


def _summary(seen: Seen, seconds: float, work: Any, done: dict[str, float]) -> dict[str, Any]:
    return {
        "ttft_ms": percentiles([1e3 * value for value in seen.ttft_s]),
        "tpot_ms": percentiles([1e3 * value for value in seen.gaps_s]),
        "online_requests": seen.online_requests,
        "offline_tokens_per_s": round(seen.offline_tokens / seconds, 1),
        "recomputed_tokens": work.recomputed,
        "recomputed_share": round(work.recomputed / max(1, work.tokens), 5),
        "preemptions": seen.preemptions,
        "resume_delay_ms": round(1e3 * done["resume_s"] / max(1.0, done["resumed"]), 2),
        "prefetch_hit_rate": round(done["resumed_whole"] / max(1.0, done["resumed"]), 4),
        "store_mib_per_s": round(done["stored_bytes"] / max(1e-9, done["store_s"]) / 2**20, 1),
        "load_mib_per_s": round(done["loaded_bytes"] / max(1e-9, done["load_s"]) / 2**20, 1),
        "copied_share_of_time": round((done["store_s"] + done["load_s"]) / seconds, 5),
        "counters": {name: value for name, value in done.items() if name in COUNTERS},
    }


COUNTERS = (
    "stored_blocks", "loaded_blocks", "waited_blocks", "failed_copies", "evicted_blocks", "resumed", "resumed_whole", "lost_tokens",
    "edge_tokens", "uncovered_tokens", "failed_tokens", "preempted", "ended_steps", "taken_back_tokens",
)  # fmt: skip


PAIRS = (
    ("incremental+partial", "vllm_priority"),
    ("incremental+partial", "recompute"),
    ("incremental", "recompute"),
    ("swap", "recompute"),
    ("plenty_on", "plenty_off"),
)


def _same(tokens: dict[str, dict[str, list[int]]]) -> bool:
    """Whether every answer that two engines gave to the end is the same. A busy batch may round otherwise: see the README."""
    first, *others = tokens.values()
    return all(first[name] == other[name] for other in others for name in first.keys() & other.keys())


def _ratios(found: dict[str, dict[str, Any]]) -> dict[str, float]:
    ratios: dict[str, float] = {}
    for one, other in PAIRS:
        if one in found and other in found:
            ratios[f"offline_{one}_over_{other}"] = round(found[one]["offline_tokens_per_s"] / found[other]["offline_tokens_per_s"], 4)
            for figure in ("ttft_ms", "tpot_ms"):
                ratios[f"p99_{figure[:4]}_{one}_over_{other}"] = round(found[one][figure]["p99"] / found[other][figure]["p99"], 4)
    return ratios
