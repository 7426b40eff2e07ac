"""Part ``coserve``: chat beside offline work in the engine alone, with no server around it (ConServe 6.2 and 6.3.1, Figs. 5 and 6).

First stock vLLM with chat alone: how many chats it can answer gives the rate of all loads, and its P99 TTFT and TPOT are the SLO.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.gpu.engines.start import harvester, stock
from bench.gpu.load.arrivals import Chat, phased_load, trace_load
from bench.gpu.load.requests import Rows, capacity_per_s, offline, play
from bench.gpu.part import Found, Part, Run
from bench.gpu.run_config import RunConfig
from bench.harness.measure.peer import PeerRun, best_peer
from bench.harness.measure.work import work_between
from harvester.engine.processes.in_subprocess import run_in_process
from harvester.engine.vllm.frontend.client import HarvestLLM
from harvester.errors import EngineError

STEPS = (2048, 512, 8192)  # max_num_batched_tokens of the peer `vllm_priority`; the first gets every load
LOAD_SHARE = {"trace": 0.5, "phases": 0.7}  # of the chats that the engine can answer
TALLY_S = 0.6  # its lines are written four times a second


@dataclass(frozen=True, slots=True)
class Plan:
    """``whole``: all loads, else the first of the trace. ``slo``: None for stock vLLM. ``step_tokens`` None: the system's own."""

    system: str
    whole: bool
    rate: float | None = None
    slo: dict[str, float] | None = None
    step_tokens: int | None = None


def lengths(run_config: RunConfig) -> tuple[int, int]:
    """ConServe's (6.3), or a quarter of it for the tiny model."""
    return (256, 32) if run_config.tiny else (1024, 128)


def loads(run_config: RunConfig, rate: float, whole: bool) -> dict[str, list[Chat]]:
    """By name; every system gets the same."""
    seconds, scale, most = trace_s(run_config), 0.25 if run_config.tiny else 1.0, (1024, 128) if run_config.tiny else (4096, 512)
    seeds = range(run_config.seed, run_config.seed + (1 if run_config.quick or not whole else 2))
    found = {f"trace-{seed}": trace_load(LOAD_SHARE["trace"] * rate, seconds, scale, most, seed) for seed in seeds}
    if whole:
        found["phases"] = phased_load(LOAD_SHARE["phases"] * rate, seconds / 3, lengths(run_config), run_config.seed)
    return found


def trace_s(run_config: RunConfig) -> float:
    return run_config.pick(24.0, 18.0, 3.0)


def rows(run_config: RunConfig) -> Rows:
    """Summaries of documents."""
    return Rows(24, 200, 1200, 32) if run_config.tiny else Rows(96, 1500, 6000, 128)


def _online(run_config: RunConfig, found: Found) -> dict[str, Any]:
    return _apart(run_config, Plan("online_only", True))


def _priority(step_tokens: int) -> Run:
    def run(run_config: RunConfig, found: Found) -> dict[str, Any]:
        if run_config.quick and step_tokens != STEPS[0]:
            return {"passed_over": "in the short form only one setting runs"}
        tokens = step_tokens // 4 if run_config.tiny else step_tokens
        return _apart(run_config, Plan("vllm_priority", step_tokens == STEPS[0], _rate(found), step_tokens=tokens))

    return run


def _harvester(run_config: RunConfig, found: Found) -> dict[str, Any]:
    tails = [load for name, load in found["online_only"]["loads"].items() if name.startswith("trace")] if "online_only" in found else []
    if not tails:
        raise EngineError("online_only did not run, whose tails are the SLO")
    slo = {f"{kind}_slo_ms": max(1.0, *(load[f"{kind}_ms"]["p99"] or 1.0 for load in tails)) for kind in ("ttft", "tpot")}
    return _apart(run_config, Plan("harvester", True, _rate(found), slo))


def _rate(found: Found) -> float:
    if "online_only" not in found:
        raise EngineError("online_only did not run, which gives the rate")
    return float(found["online_only"]["chats_per_s"])


def _apart(run_config: RunConfig, plan: Plan) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        return run_in_process(_measure, run_config, plan, Path(folder) / "counts")


def _measure(run_config: RunConfig, plan: Plan, counts: Path) -> dict[str, Any]:
    return asyncio.run(_engine(run_config, plan, counts))


async def _engine(run_config: RunConfig, plan: Plan, counts: Path) -> dict[str, Any]:
    given = {"max_num_batched_tokens": plan.step_tokens} if plan.step_tokens is not None else {}
    if plan.system == "harvester":
        async with harvester(run_config, given, counts, slo=plan.slo or {}) as (llm, _):
            return await _all(run_config, plan, llm, counts)
    async with stock(run_config, given, "fcfs" if plan.system == "online_only" else "priority", counts) as llm:
        return await _all(run_config, plan, llm, counts)


async def _all(run_config: RunConfig, plan: Plan, llm: HarvestLLM, counts: Path) -> dict[str, Any]:
    rate, alone = plan.rate, plan.system == "online_only"
    if rate is None:
        rate = await capacity_per_s(llm, run_config.number(64, 8, 8), lengths(run_config), run_config.pick(12.0, 8.0, 3.0))
    batch, found = None if alone else rows(run_config), dict[str, Any]()
    async with offline(llm, batch, run_config.seed, "offline"):
        await asyncio.sleep(0.0 if alone else run_config.pick(8.0, 5.0, 2.0))
        for name, chats in loads(run_config, rate, plan.whole).items():
            found[name] = await _one(llm, name, chats, trace_s(run_config), run_config.seed, counts)
    return {"chats_per_s": rate, "slo": plan.slo, "step_tokens": plan.step_tokens, "loads": found}


async def _one(llm: HarvestLLM, name: str, chats: Sequence[Chat], seconds: float, seed: int, counts: Path) -> dict[str, Any]:
    """Play one load. Tokens are those that the scheduler planned during it, without recomputed ones."""
    seen = await play(llm, chats, seconds, seed, name)
    await asyncio.sleep(TALLY_S)
    work, span_s = work_between(counts, seen.began_s, seen.ended_s), seen.ended_s - seen.began_s
    new = work.tokens - work.recomputed
    return seen.figures() | {
        "offline_tokens_per_s": round(work.offline / span_s, 1),
        "online_tokens_per_s": round((new - work.offline) / span_s, 1),
        "total_tokens_per_s": round(new / span_s, 1),
        "recomputed_share": round(work.recomputed / work.tokens, 4) if work.tokens else None,
    }


def summary(found: Found) -> dict[str, Any]:
    """P99 over online_only's, and total tokens over the best of vLLM's priority policy, by load.

    The best by the rule that holds on a CPU too (`bench.harness.measure.peer`).
    """
    made: dict[str, Any] = {}
    for load, alone in found["online_only"]["loads"].items():
        ours = found["harvester"]["loads"][load]
        theirs = {name: run["loads"][load] for name, run in found.items() if name.startswith("vllm") and load in run.get("loads", {})}
        best = theirs[best_peer({name: PeerRun(one["total_tokens_per_s"], one["ttft_ms"]["p99"]) for name, one in theirs.items()})]
        made[load] = {
            **{f"p99_{kind}_over_online_only": _over(ours, alone, f"{kind}_ms") for kind in ("ttft", "tpot")},
            **{f"p99_{kind}_vllm_priority_over_harvester": _over(best, ours, f"{kind}_ms") for kind in ("ttft", "tpot")},
            "total_tokens_over_vllm_priority": round(ours["total_tokens_per_s"] / max(1e-9, best["total_tokens_per_s"]), 4),
        }
    return made


def _over(above: dict[str, Any], below: dict[str, Any], kind: str) -> float | None:
    one, other = above[kind]["p99"], below[kind]["p99"]
    return round(one / other, 3) if one is not None and other else None


PART = Part({"online_only": _online, **{f"vllm_priority-{step}": _priority(step) for step in STEPS}, "harvester": _harvester}, summary)
