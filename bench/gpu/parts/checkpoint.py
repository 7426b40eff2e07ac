"""Part ``checkpoint``: how near copies come to the link's limit, what is computed again, and chat beside copies (ConServe 4.4, Fig. 4).

Bursts of chat take the KV of offline work away. The limit of the link is a plain copy between the device and pinned memory.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from bench.gpu.engines.link import link
from bench.gpu.engines.start import harvester
from bench.gpu.load.arrivals import Chat
from bench.gpu.load.requests import Rows, offline, play
from bench.gpu.part import Found, Part, Run
from bench.gpu.run_config import RunConfig
from bench.harness.measure.work import work_between
from harvester.engine.processes.in_subprocess import run_in_process
from harvester.engine.shared.state import Count, SharedState
from harvester.engine.vllm.frontend.client import HarvestLLM

FEW = 8  # requests that the KV has room for
EVERY_S = 3.0  # one burst to the next
NO_RESERVE: dict[str, Any] = {"share": {"reserved_slots": 1, "reserved_kv": 0.0, "reserve_s": 0.0}}
ON: dict[str, Any] = {"enabled": True}
COPYING = ON | {"start_free": 1.0, "full_free": 0.99}  # copies all the time, however much KV is free
TALLY_S = 0.6


def _link(run_config: RunConfig, found: Found) -> dict[str, Any]:
    return run_in_process(link)


def _run(checkpoint: dict[str, Any], *, short: bool, quick: bool) -> Run:
    def run(run_config: RunConfig, found: Found) -> dict[str, Any]:
        if run_config.quick and not quick:
            return {"passed_over": "not in the short form"}
        with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
            return run_in_process(_measure, run_config, checkpoint, short, Path(folder) / "counts")

    return run


def _measure(run_config: RunConfig, checkpoint: dict[str, Any], short: bool, counts: Path) -> dict[str, Any]:
    return asyncio.run(_engine(run_config, checkpoint, short, counts))


def rows(run_config: RunConfig) -> Rows:
    return Rows(16, 150, 400, 64) if run_config.tiny else Rows(32, 1500, 3500, 256)


async def _engine(run_config: RunConfig, checkpoint: dict[str, Any], short: bool, counts: Path) -> dict[str, Any]:
    batch = rows(run_config)
    block_tokens = 32 if run_config.cpu else 16
    few = FEW * -(-(batch.longest + batch.answer_tokens) // block_tokens)
    least = -(-run_config.number(8192, 2048, 2048) // block_tokens)  # vLLM wants room for one request of the whole context
    given: dict[str, Any] = {"block_size": block_tokens} | ({"num_gpu_blocks_override": max(few, least) + 1} if short else {})
    memory = {"host_gib": run_config.pick(32.0, 0.25, 0.25)} if checkpoint else {}
    sections = NO_RESERVE | {"schedule": {"reserve": "fixed"}, "checkpoint": {"enabled": False} | checkpoint | memory}
    async with harvester(run_config, given, counts, **sections) as (llm, shared):
        copies = await llm.collective_rpc("kv_copy")
        return {"kv_copy": copies[0]} | await _load(run_config, llm, shared, batch, counts)


async def _load(run_config: RunConfig, llm: HarvestLLM, shared: SharedState, batch: Rows, counts: Path) -> dict[str, Any]:
    seconds, (prompt, answer) = run_config.pick(45.0, 24.0, 5.0), ((120, 16) if run_config.tiny else (1024, 64))
    burst = run_config.number(16, 8, 8)
    chats = [Chat((number + 0.5) * EVERY_S, prompt, answer) for number in range(max(1, int(seconds / EVERY_S))) for _ in range(burst)]
    async with offline(llm, batch, run_config.seed, "offline"):
        await asyncio.sleep(run_config.pick(10.0, 6.0, 2.0))
        before = {count: shared.count(count) for count in Count}
        seen = await play(llm, chats, seconds, run_config.seed, "burst")
        await asyncio.sleep(TALLY_S)
        done = {count.name.lower(): shared.count(count) - before[count] for count in Count}
    work = work_between(counts, seen.began_s, seen.ended_s)
    return {
        **seen.figures(),
        "recomputed_share": round(work.recomputed / work.tokens, 4) if work.tokens else None,
        "offline_tokens_per_s": round(work.offline / (seen.ended_s - seen.began_s), 1),
        "stored_bytes_per_s": _rate(done["stored_bytes"], done["store_s"]),
        "loaded_bytes_per_s": _rate(done["loaded_bytes"], done["load_s"]),
        **{
            name: done[name] for name in ("preempted", "stored_blocks", "loaded_blocks", "failed_copies", "lost_tokens", "uncovered_tokens")
        },
    }


def _rate(size: float, seconds: float) -> float | None:
    return round(size / seconds) if seconds > 0 else None


def summary(found: Found) -> dict[str, Any]:
    limit, on, off = found["link"], found["checkpoint"], found["recompute"]
    shares = {
        "store_over_link": _over(on["stored_bytes_per_s"], limit["to_host_bytes_per_s"]),
        "load_over_link": _over(on["loaded_bytes_per_s"], limit["to_device_bytes_per_s"]),
        "recomputed_share": {"checkpoint": on["recomputed_share"], "recompute": off.get("recomputed_share")},
    }
    copying, still = found["plenty_copying"], found["plenty_off"]
    tails = None if "passed_over" in still else _over(copying["ttft_ms"]["p99"], still["ttft_ms"]["p99"])
    return shares | {"p99_ttft_beside_copies_over_without": tails}


def _over(one: float | None, other: float | None) -> float | None:
    return round(one / other, 4) if one is not None and other else None


PART = Part(
    {
        "link": _link,
        "recompute": _run({}, short=True, quick=False),
        "checkpoint": _run(ON, short=True, quick=True),
        "plenty_off": _run({}, short=False, quick=False),
        "plenty_copying": _run(COPYING, short=False, quick=False),
    },
    summary,
)
