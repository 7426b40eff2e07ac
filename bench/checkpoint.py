"""Scenario ``checkpoint``: what a preemption costs without checkpoints, and with each part of them (ConServe Fig. 4, FastServe Fig. 15).

One engine at a time in this process's charge, no server around it, with KV for about ten offline requests. First offline work, from
which bursts of online requests take KV; then chat alone, at nearly the rate that the engine answers. Every engine gets the same prompts
and times, in rounds that they take in turns; ratios come with the spread of the rounds (`bench.rounds`).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bench.counters import work_between
from bench.kvload import Seen, all_seen, chat, closed, mixed
from bench.latency import percentiles
from bench.models import bench_model
from bench.realpath import on_cpu
from bench.rounds import in_turns, pooled, ratio_of_percentiles, ratio_of_rounds, rounds_of
from bench.scenario import Options
from bench.systems import CPU_ENGINE, counted
from harvester.config import parse_config
from harvester.errors import EngineError, UsageError

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
LOADS, QUICK_LOADS = (0.9, 1.2), (0.9,)  # times the rate that an engine with KV enough answers


@dataclass(frozen=True, slots=True)
class Round:
    """One engine once. ``tokens`` and ``recomputed``: its token work; ``done``: what the board counted."""

    seconds: float
    seen: Seen
    tokens: int
    recomputed: int
    done: dict[str, float]


def run(options: Options) -> dict[str, Any]:
    """``--seconds``: of each engine in a round (20), after a warm-up. ``--set rounds=N``: how many (5; 1 with ``--quick``)."""
    seconds, rounds = options.seconds or 20.0, _rounds(options)
    model = options.model or str(bench_model())

    def measure(systems: Mapping[str, System], load: Load) -> dict[str, list[Round]]:
        return in_turns(
            list(systems), rounds, lambda name, number: _alone(name, systems[name], model, seconds, options.seed + 10 * number, load)
        )

    found = measure({name: SYSTEMS[name] for name in (QUICK if options.quick else SYSTEMS)}, mixed)
    most = _alone("closed", CHATS["chat_plenty"], model, CLOSED_S, options.seed + 2, closed)
    if not most.seen.latency_s:
        raise EngineError(f"no chat of {CLOSED_S:g} s was answered to its end; the machine is too slow for this scenario")
    rates = [load * len(most.seen.latency_s) / CLOSED_S for load in (QUICK_LOADS if options.quick else LOADS)]
    chats = [measure(CHATS, partial(chat, rate=rate)) for rate in rates]
    ratios = _ratios(found)
    return {
        "model": Path(model).name,
        "engine": ENGINE,
        "rounds": rounds,
        "seconds": seconds,
        "stock_offloading": "not run: vLLM's offloading refuses the CPU platform" if on_cpu() else "not run",
        "tokens_identical": all(_same(each) for each in (found, *chats)),
        "goals": _goals(found, chats, ratios),
        "systems": {name: _summary(each) for name, each in found.items()},
        "chat_alone": [
            {"requests_per_s": round(rate, 3), "systems": {name: _summary(each) for name, each in at_rate.items()}}
            for rate, at_rate in zip(rates, chats, strict=True)
        ],
        "ratios": ratios,
    }


def _rounds(options: Options) -> int:
    unknown = options.set.keys() - {"rounds"}
    if unknown:
        raise UsageError(f"--set {min(unknown)}: this scenario knows rounds only")
    return rounds_of(options.set, 1 if options.quick else 5)


def _alone(name: str, system: System, model: str, seconds: float, seed: int, load: Load) -> Round:
    """In a process of its own: an engine's metrics can be registered once in a process."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-checkpoint-") as folder,
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone,
    ):
        found: Round = alone.submit(_measure, system, model, seconds, seed, Path(folder), load).result()
    print(f"{name}: {json.dumps(_summary([found]))}", file=sys.stderr)
    return found


def _measure(*given: Any) -> Round:
    os.environ["VLLM_CPU_NUM_OF_RESERVED_CPU"] = "1"  # with a KV connector vLLM would take one more, and where there are but two, none
    return asyncio.run(_engine(*given))


async def _engine(system: System, model: str, seconds: float, seed: int, folder: Path, load: Load) -> Round:
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
    return Round(ended_s - began_s, seen, work.tokens, work.recomputed, done)


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


def _summary(rounds: Sequence[Round]) -> dict[str, Any]:
    """Of all rounds together."""
    seconds, tokens, recomputed = (sum(getattr(each, name) for each in rounds) for name in ("seconds", "tokens", "recomputed"))
    done, seen = pooled([each.done for each in rounds]), all_seen([each.seen for each in rounds])
    return {
        "seconds": round(seconds, 2),
        "answered": len(seen.latency_s),
        "latency_ms_per_token": seen.normalized_ms(),
        "ttft_ms": percentiles([1e3 * value for value in seen.ttft_s]),
        "tpot_ms": percentiles([1e3 * value for value in seen.gaps_s]),
        "online_requests": seen.online_requests,
        "offline_tokens_per_s": round(seen.offline_tokens / seconds, 1),
        "recomputed_tokens": recomputed,
        "recomputed_share": round(recomputed / max(1, tokens), 5),
        "recomputed_share_after_preemptions": round(_lost_share(rounds), 5),
        "preemptions": seen.preemptions,
        "swap_blocked_share": round(_blocked_share(rounds), 5),
        "resume_delay_ms": round(1e3 * done["resume_s"] / max(1.0, done["resumed"]), 2),
        "prefetch_hit_rate": round(done["resumed_whole"] / max(1.0, done["resumed"]), 4),
        "store_mib_per_s": round(done["stored_bytes"] / max(1e-9, done["store_s"]) / 2**20, 1),
        "load_mib_per_s": round(done["loaded_bytes"] / max(1e-9, done["load_s"]) / 2**20, 1),
        "copied_share_of_time": round((done["store_s"] + done["load_s"]) / seconds, 5),
        "counters": {name: value for name, value in done.items() if name in COUNTERS},
    }


def _lost_share(rounds: Sequence[Round]) -> float:
    """Tokens computed again after preemptions, of all token work: without those that a step ended early had computed."""
    lost = sum(max(0, each.recomputed - round(each.done["taken_back_tokens"])) for each in rounds)
    return lost / max(1, sum(each.tokens for each in rounds))


def _blocked_share(rounds: Sequence[Round]) -> float:
    """Time that requests waited for their KV to be read back, of the time from their arrival to their end."""
    waited = sum(each.done["resume_s"] for each in rounds)
    return waited / max(1e-9, sum(seconds for each in rounds for seconds, _ in each.seen.latency_s))


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


def _same(found: Mapping[str, Sequence[Round]]) -> bool:
    """Whether every answer that two engines gave to the end is the same. A busy batch may round otherwise: see the README."""
    tokens = [{name: ids for each in rounds for name, ids in each.seen.tokens.items()} for rounds in found.values()]
    first, *others = tokens
    return all(first[name] == other[name] for other in others for name in first.keys() & other.keys())


def _ratios(found: Mapping[str, Sequence[Round]]) -> dict[str, dict[str, Any]]:
    ratios: dict[str, dict[str, Any]] = {}
    for one, other in PAIRS:
        if one in found and other in found:
            speeds = [[each.seen.offline_tokens / each.seconds for each in found[name]] for name in (one, other)]
            ratios[f"offline_{one}_over_{other}"] = ratio_of_rounds(speeds[0], speeds[1])
            for figure in ("ttft_s", "gaps_s"):
                values = [[getattr(each.seen, figure) for each in found[name]] for name in (one, other)]
                ratios[f"p99_{NAMED[figure]}_{one}_over_{other}"] = ratio_of_percentiles(values[0], values[1], 99, seed=1)
    return ratios


NAMED = {"ttft_s": "ttft", "gaps_s": "tpot"}


def _goals(
    found: Mapping[str, Sequence[Round]], chats: Sequence[Mapping[str, Sequence[Round]]], ratios: Mapping[str, dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Each goal with what was measured and whether that meets it; those that need systems which did not run are left out.

    ``chats``: by rising load; latencies are compared at the highest.
    """
    ours, without = _lost_share(found["incremental+partial"]), _lost_share(found["recompute"])
    blocked = max(_blocked_share(each) for each in (found["incremental+partial"], *(at_rate["chat_proactive"] for at_rate in chats)))
    mean = {name: [each.seen.normalized_ms()["mean"] or 0.0 for each in rounds] for name, rounds in chats[-1].items()}
    goals = {
        "recomputed_share_at_most_0.01": _goal(round(ours, 5), ours <= 0.01),
        "won_back_of_what_preemption_cost_at_least_0.98": _at_least(1 - ours / max(1e-9, without), 0.98),
        "blocked_by_swapping_below_0.02": _goal(round(blocked, 5), blocked < 0.02),
    }
    for other, least in (("recompute", 2.7), ("reactive", 1.7)):
        ratio = ratio_of_rounds(mean[f"chat_{other}"], mean["chat_proactive"])
        goals[f"latency_{other}_over_proactive_at_least_{least}"] = ratio | {"met": ratio["ratio"] >= least}
    for name, ratio in ratios.items():
        if name.startswith("p99_") and name.endswith("_plenty_on_over_plenty_off"):
            goals[f"{name}_at_most_1.02"] = ratio | {"met": ratio["ratio"] <= 1.02}
    return goals


def _at_least(measured: float, least: float) -> dict[str, Any]:
    return _goal(round(measured, 4), measured >= least)


def _goal(measured: float, met: bool) -> dict[str, Any]:
    return {"measured": measured, "met": met}
