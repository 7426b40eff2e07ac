"""Scenario ``checkpoint``: what a preemption costs without checkpoints, and with each part of them (ConServe Fig. 4, FastServe Fig. 15).

One engine at a time, each in a process of its own, without a server. First offline work has KV for about ten requests, and bursts of online
requests take it. Then the same work has KV for all, beside single online requests, where checkpoints can only cost. Then chat is alone, at
nearly the rate that the engine answers. Every engine gets the same prompts and times, in rounds that they take in turns. Ratios come with
the spread of the rounds (`bench.harness.measure.rounds`); figures and goals are those of `bench.harness.measure.checkpoint_report`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.harness.device import on_cpu
from bench.harness.load.checkpoint_load import Span, chat, closed, mixed, steady
from bench.harness.measure.checkpoint_report import Round, goals_of, ratios_of, same, summary
from bench.harness.measure.rounds import in_turns, rounds_of
from bench.harness.measure.work import work_between
from bench.harness.models import bench_model
from bench.harness.options import Options
from bench.harness.servers.systems import CPU_ENGINE, counted
from harvester.config import parse_config
from harvester.engine.processes.in_subprocess import run_in_process
from harvester.errors import EngineError, UsageError

KV_MIB, PLENTY_MIB = 288, 2048
SLOTS = 40  # more than there are requests: what is short is KV
ENGINE: dict[str, Any] = {"max_num_seqs": SLOTS, "max_num_batched_tokens": 1024, "max_model_len": 2048, "enable_prefix_caching": True}
# No reserve, so that each burst takes KV away: what is measured is what that costs.
TIGHT: dict[str, Any] = {"share": {"reserved_slots": 1, "reserved_kv": 0.0, "reserve_s": 0.0}, "schedule": {"reserve": "fixed"}}
ON: dict[str, Any] = {"enabled": True, "host_gib": 1.0}


@dataclass(frozen=True, slots=True)
class System:
    """``checkpoint``: that section of the config; None: vLLM's own scheduler with its priority policy.

    ``link_block_s``: least time to copy a block (`bench.harness.engine.slow_link`); None: no such minimum.
    """

    checkpoint: dict[str, Any] | None
    kv_mib: int = KV_MIB
    link_block_s: float | None = None


SYSTEMS = {
    "vllm_priority": System(None),
    "recompute": System({}),
    "swap": System(ON | {"start_free": 1e-9, "full_free": 0.0, "wait_blocks": 1_000_000}),
    "incremental": System(ON | {"partial_blocks": False}),
    "incremental+partial": System(ON),
}
PLENTY = {
    "plenty_off": System({}, PLENTY_MIB),
    "plenty_on": System(ON, PLENTY_MIB),
    "plenty_copying": System(ON | {"start_free": 1.0, "full_free": 0.99}, PLENTY_MIB),
}
QUICK = ("recompute", "incremental+partial")
CHAT_KV_MIB = 96  # for about ten chats
CHATS = {
    "chat_plenty": System({}, PLENTY_MIB),
    "chat_recompute": System({}, CHAT_KV_MIB),
    "chat_reactive": System(ON | {"start_free": 1e-9, "full_free": 0.0, "wait_blocks": 1_000_000}, CHAT_KV_MIB),
    "chat_proactive": System(ON, CHAT_KV_MIB),
}
CLOSED_S = 15.0
Load = Callable[[Any, Span, float, int], Awaitable[None]]  # engine, what is measured, seconds, seed
LOADS, QUICK_LOADS = (0.9, 1.0), (0.9,)  # times the rate that an engine with KV enough answers


def run(options: Options) -> dict[str, Any]:
    """``--seconds``: of each engine in a round (42), after a warm-up. ``--set rounds=N``: how many (3; 1 with ``--quick``)."""
    seconds, rounds = seconds_of(options), _rounds(options)
    model = options.model or str(bench_model())
    given = (rounds, model, seconds, options.seed)
    short = measure({name: SYSTEMS[name] for name in (QUICK if options.quick else SYSTEMS)}, mixed, *given)
    plenty = {} if options.quick else measure(PLENTY, steady, *given)
    most = max_chats_per_s(model, options.seed)
    rates = {load: load * most for load in (QUICK_LOADS if options.quick else LOADS)}
    chats = {load: measure(CHATS, partial(chat, rate=rate), *given) for load, rate in rates.items()}
    ratios = ratios_of(short | plenty)
    return {
        "model": Path(model).name,
        "engine": ENGINE,
        "rounds": rounds,
        "seconds_each": seconds,
        "stock_offloading": "not run: vLLM's offloading refuses the CPU platform" if on_cpu() else "not run",
        "tokens_identical": all(same(each) for each in (short, plenty, *chats.values())),
        "goals": goals_of(short | plenty, chats, ratios),
        "systems": {name: summary(each) for name, each in (short | plenty).items()},
        "chat_alone": [
            {"load": load, "requests_per_s": round(rates[load], 3), "systems": {name: summary(each) for name, each in chats[load].items()}}
            for load in chats
        ],
        "ratios": ratios,
    }


def _rounds(options: Options) -> int:
    unknown = options.set.keys() - {"rounds"}
    if unknown:
        raise UsageError(f"--set {min(unknown)}: this scenario knows rounds only")
    return rounds_of(options.set, 1 if options.quick else 3)


def seconds_of(options: Options) -> float:
    """Measured seconds of each engine in a round."""
    return options.seconds or (18.0 if options.quick else 42.0)


def measure(systems: Mapping[str, System], load: Load, rounds: int, model: str, seconds: float, seed: int) -> dict[str, list[Round]]:
    """Each system's rounds; those of the same number have the same prompts and times."""
    return in_turns(list(systems), rounds, lambda name, number: _alone(name, systems[name], model, seconds, seed + 10 * number, load))


def max_chats_per_s(model: str, seed: int) -> float:
    """Chats per second that an engine answers with enough KV for all."""
    answered = len(_alone("closed", CHATS["chat_plenty"], model, CLOSED_S, seed + 2, closed).seen.latency_s)
    if not answered:
        raise EngineError(f"no chat of {CLOSED_S:g} s was answered to its end; the machine is too slow for this scenario")
    return answered / CLOSED_S


def _alone(name: str, system: System, model: str, seconds: float, seed: int, load: Load) -> Round:
    """One run of one engine."""
    with tempfile.TemporaryDirectory(prefix="bench-checkpoint-") as folder:
        found: Round = run_in_process(_measure, system, model, seconds, seed, Path(folder), load)
    print(f"{name}: {json.dumps(summary([found]))}", file=sys.stderr)
    return found


def _measure(*given: Any) -> Round:
    os.environ["VLLM_CPU_NUM_OF_RESERVED_CPU"] = "1"  # with a KV connector vLLM would take one more, and where there are but two, none
    return asyncio.run(_engine(*given))


async def _engine(system: System, model: str, seconds: float, seed: int, folder: Path, load: Load) -> Round:
    from harvester.engine.frontend.host import EngineHost
    from harvester.engine.launch.arguments import engine_arguments
    from harvester.engine.shared.state import Count, SharedState

    counts, shared = folder / "counts", SharedState.make()
    host = await EngineHost.start(_arguments(system, model, counts, shared, engine_arguments))
    span = Span(lambda: {count.name.lower(): shared.count(count) for count in Count})
    try:
        await asyncio.wait_for(load(host.llm, span, seconds, seed), seconds + 400)
        await asyncio.sleep(0.3)
    finally:
        host.close()
    work = work_between(counts, span.began_s, span.ended_s)
    return Round(span.ended_s - span.began_s, span.seen, work, span.done)


def _arguments(system: System, model: str, counts: Path, shared: Any, engine_arguments: Any) -> dict[str, Any]:
    cpu = on_cpu()
    engine = ENGINE | (CPU_ENGINE | {"kv_cache_memory_bytes": system.kv_mib << 20} if cpu else {})
    own = counted(counts, f"bench.harness.engine.counting_harvest.Counted{'' if cpu else 'Async'}Harvest")
    config = parse_config({"engine": own | engine, **TIGHT, "checkpoint": system.checkpoint or {}}, "bench")
    values: dict[str, Any] = engine_arguments(config, model, "bench", cpu=cpu, embedded=False, shared=shared.path)
    if system.checkpoint is None:
        values |= counted(counts, f"bench.harness.engine.counting.Counted{'' if cpu else 'Async'}Stock")
        values |= {"worker_cls": "bench.harness.engine.patient.PatientWorker"} if cpu else {}
    if system.link_block_s is not None:
        values["kv_transfer_config"]["kv_connector_module_path"] = "bench.harness.engine.slow_link"
        values["kv_transfer_config"]["kv_connector_extra_config"]["link_block_s"] = system.link_block_s
    return values
