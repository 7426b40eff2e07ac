"""Part ``profile``: how far the latency model is off, by kind of step and by the kind of CUDA graph that it ran as (ConServe 4.5)."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.gpu.engines.start import harvester
from bench.gpu.load.arrivals import Chat
from bench.gpu.load.requests import Rows, offline, play
from bench.gpu.part import Found, Part
from bench.gpu.parts.versions import chosen
from bench.gpu.residuals import Row, residuals
from bench.gpu.run_config import RunConfig
from harvester.engine.launch import profiler
from harvester.engine.processes.in_subprocess import run_in_process


def _run(run_config: RunConfig, found: Found) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        return run_in_process(_measure, run_config, Path(folder) / "steps")


def _measure(run_config: RunConfig, steps: Path) -> dict[str, Any]:
    return asyncio.run(_engine(run_config, steps))


async def _engine(run_config: RunConfig, steps: Path) -> dict[str, Any]:
    kind = "RecordedHarvest" if run_config.cpu else "RecordedAsyncHarvest"
    given = {"scheduler_cls": f"bench.gpu.engines.recording.{kind}", "additional_config": {"bench_steps": str(steps)}}
    async with harvester(run_config, given) as (llm, shared):
        learnt = await profiler.profile(llm, shared, run_config.pick(40.0, 12.0, 8.0))
        began_s = time.monotonic()
        top, each_s = int(llm.model_config.max_model_len), run_config.pick(20.0, 8.0, 2.0)
        slots = run_config.number(128, 12, 12)
        loads = {
            "decode": Rows(slots, 24, 64, min(1500, top // 2)),
            "prefill": Rows(8, top // 4, top * 3 // 4, 1),
            "mixed": Rows(slots, top // 16, top // 2, 64),
        }
        for name, rows in loads.items():
            async with offline(llm, rows, run_config.seed, name):
                await asyncio.sleep(each_s)
        chats = [Chat(0.25 * i, 200, 32) for i in range(int(each_s / 0.25))]
        async with offline(llm, loads["mixed"], run_config.seed + 1, "beside"):
            await play(llm, chats, each_s, run_config.seed, "chat")
        picked = await chosen(llm)
    return {"learnt": learnt, "chosen": picked, "kinds": residuals(_read(steps, began_s), picked)}


def _read(path: Path, began_s: float) -> list[Row]:
    rows: list[Row] = [tuple(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row[0] >= began_s]


def summary(found: Found) -> dict[str, Any]:
    return {name: {"steps": one["steps"], "error": one["error"]} for name, one in found["harvester"]["kinds"].items()}


PART = Part({"harvester": _run}, summary)
