"""Scenario ``checkpoint``: what a preemption costs without checkpoints, and with each part of them (ConServe Fig. 4, FastServe Fig. 15).

One engine at a time in this process's charge, no server around it, with KV for about ten offline requests. First offline work, from
which bursts of online requests take KV; then chat alone, at nearly the rate that the engine answers. Every engine gets the same prompts
and times.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bench.counters import work_between
from bench.kvload import Seen, chat, closed, mixed
from bench.latency import percentiles
from bench.models import bench_model
from bench.realpath import on_cpu
from bench.scenario import Options
from bench.systems import CPU_ENGINE, counted
from harvester.config import parse_config
from harvester.errors import EngineError

KV_MIB, PLENTY_MIB = 288, 2048
SLOTS = 40  # more than there are requests: what is short is KV
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
CHAT_KV_MIB = 96  # for about ten chats
CHATS = {
    "chat_plenty": System({}, PLENTY_MIB),
    "chat_recompute": System({}, CHAT_KV_MIB),
    "chat_reactive": System(ON | {"start_free": 1e-9, "full_free": 0.0, "wait_blocks": 1_000_000}, CHAT_KV_MIB),
    "chat_proactive": System(ON, CHAT_KV_MIB),
}
WARM_S, CLOSED_S = 8.0, 15.0
Load = Callable[[Any, Seen, float, int], Awaitable[None]]  # engine, what is seen, seconds, seed
HIGH = 0.9  # of the rate that an engine with KV enough answers


def run(options: Options) -> dict[str, Any]:
    """``--seconds``: of each engine (60; 20 with ``--quick``), after a warm-up."""
    seconds = options.seconds or (20.0 if options.quick else 60.0)
    model = options.model or str(bench_model())
    chosen = QUICK if options.quick else tuple(SYSTEMS)
    found: dict[str, dict[str, Any]] = {}
    tokens: dict[str, dict[str, list[int]]] = {}
    for name in chosen:
        found[name], tokens[name] = _alone(name, SYSTEMS[name], model, seconds, options.seed, mixed)
    chats: dict[str, dict[str, Any]] = {}
    answers: dict[str, dict[str, list[int]]] = {}
    most, _ = _alone("closed", CHATS["chat_plenty"], model, CLOSED_S, options.seed + 2, closed)
    if not most["answered"]:
        raise EngineError(f"no chat of {CLOSED_S:g} s was answered to its end; the machine is too slow for this scenario")
    rate = HIGH * most["answered"] / CLOSED_S
    for name, system in CHATS.items():
        chats[name], answers[name] = _alone(name, system, model, seconds, options.seed, partial(chat, rate=rate))
    return {
        "model": Path(model).name,
        "engine": ENGINE,
        "stock_offloading": "not run: vLLM's offloading refuses the CPU platform" if on_cpu() else "not run",
        "tokens_identical": _same(tokens) and _same(answers),
        "goals": _goals(found, chats),
        "systems": found,
        "chat_alone": {"requests_per_s": round(rate, 3), "systems": chats},
        "ratios": _ratios(found),
    }


def _alone(name: str, system: System, model: str, seconds: float, seed: int, load: Load) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """In a process of its own: an engine's metrics can be registered once in a process."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-checkpoint-") as folder,
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone,
    ):
        found: tuple[dict[str, Any], dict[str, list[int]]]
        found = alone.submit(_measure, system, model, seconds, seed, Path(folder), load).result()
    print(f"{name}: {json.dumps(found[0])}", file=sys.stderr)
    return found


def _measure(*given: Any) -> tuple[dict[str, Any], dict[str, list[int]]]:
    os.environ["VLLM_CPU_NUM_OF_RESERVED_CPU"] = "1"  # with a KV connector vLLM would take one more, and where there are but two, none
    return asyncio.run(_engine(*given))


async def _engine(
    system: System, model: str, seconds: float, seed: int, folder: Path, load: Load
) -> tuple[dict[str, Any], dict[str, list[int]]]:
    from harvester.engine.arguments import engine_arguments
    from harvester.engine.board import Board, Count
    from harvester.engine.host import EngineHost

    counts, board = folder / "counts", Board.make()
    host = await EngineHost.start(_arguments(system, model, counts, board, engine_arguments))
    seen = Seen()
    try:
        await asyncio.wait_for(load(host.llm, seen, WARM_S, seed + 1), 300)
        before = {count: board.count(count) for count in Count}
        seen, began_s = Seen(), time.monotonic()
        await asyncio.wait_for(load(host.llm, seen, seconds, seed), seconds + 300)
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


def _summary(seen: Seen, seconds: float, work: Any, done: dict[str, float]) -> dict[str, Any]:
    lost = max(0, work.recomputed - round(done["taken_back_tokens"]))
    return {
        "seconds": round(seconds, 2),
        "answered": len(seen.latency_s),
        "latency_ms_per_token": seen.normalized_ms(),
        "ttft_ms": percentiles([1e3 * value for value in seen.ttft_s]),
        "tpot_ms": percentiles([1e3 * value for value in seen.gaps_s]),
        "online_requests": seen.online_requests,
        "offline_tokens_per_s": round(seen.offline_tokens / seconds, 1),
        "recomputed_tokens": work.recomputed,
        "recomputed_share": round(work.recomputed / max(1, work.tokens), 5),
        "recomputed_share_after_preemptions": round(lost / max(1, work.tokens), 5),
        "preemptions": seen.preemptions,
        "swap_blocked_share": round(done["resume_s"] / max(1e-9, sum(seconds for seconds, _ in seen.latency_s)), 5),
        "resume_delay_ms": round(1e3 * done["resume_s"] / max(1.0, done["resumed"]), 2),
        "prefetch_hit_rate": round(done["resumed_whole"] / max(1.0, done["resumed"]), 4),
        "store_mib_per_s": round(done["stored_bytes"] / max(1e-9, done["store_s"]) / 2**20, 1),
        "load_mib_per_s": round(done["loaded_bytes"] / max(1e-9, done["load_s"]) / 2**20, 1),
        "copied_share_of_time": round((done["store_s"] + done["load_s"]) / seconds, 5),
        "counters": {name: value for name, value in done.items() if name in COUNTERS},
    }


COUNTERS = (
    "stored_blocks", "loaded_blocks", "waited_blocks", "failed_copies", "evicted_blocks", "resumed", "resumed_whole", "lost_tokens",
    "edge_tokens", "uncovered_tokens", "failed_tokens", "preempted", "ended_steps", "taken_back_tokens", "swapped",
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


def _goals(found: Mapping[str, Mapping[str, Any]], chats: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Each goal with what was measured and whether that meets it; those that need systems which did not run are left out."""
    ours, recompute = found["incremental+partial"], found["recompute"]
    share = "recomputed_share_after_preemptions"
    mean = {name: chats[name]["latency_ms_per_token"]["mean"] for name in chats}
    most_blocked = max(ours["swap_blocked_share"], chats["chat_proactive"]["swap_blocked_share"])
    goals = {
        "recomputed_share_at_most_0.01": _goal(ours[share], ours[share] <= 0.01),
        "won_back_of_what_preemption_cost_at_least_0.98": _at_least(1 - ours[share] / max(1e-9, recompute[share]), 0.98),
        "latency_recompute_over_proactive_at_least_2.7": _at_least(mean["chat_recompute"] / mean["chat_proactive"], 2.7),
        "latency_reactive_over_proactive_at_least_1.7": _at_least(mean["chat_reactive"] / mean["chat_proactive"], 1.7),
        "blocked_by_swapping_below_0.02": _goal(most_blocked, most_blocked < 0.02),
    }
    if "plenty_on" in found:
        on, off = found["plenty_on"], found["plenty_off"]
        for figure in ("ttft_ms", "tpot_ms"):
            ratio = round(on[figure]["p99"] / off[figure]["p99"], 4)
            goals[f"p99_{figure[:4]}_on_over_off_at_most_1.02"] = _goal(ratio, ratio <= 1.02)
    return goals


def _at_least(measured: float, least: float) -> dict[str, Any]:
    return _goal(round(measured, 4), measured >= least)


def _goal(measured: float, met: bool) -> dict[str, Any]:
    return {"measured": measured, "met": met}
