"""Part ``profile``: how far the latency model is off, by kind of step and by the kind of CUDA graph that it ran as (ConServe 4.5)."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.gpu.engine import harvester
from bench.gpu.ground import Ground
from bench.gpu.load import Chat, Rows, offline, play
from bench.gpu.part import Found, Part
from bench.gpu.versions import chosen
from bench.latency import percentiles
from harvester.engine import profiler
from harvester.engine.apart import apart

KINDS = ("decode", "prefill", "mixed")
Row = tuple[float, int, int, int, float | None, float]  # as `bench.gpu.recording` writes it


def _run(ground: Ground, found: Found) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as folder:
        return apart(_measure, ground, Path(folder) / "steps")


def _measure(ground: Ground, steps: Path) -> dict[str, Any]:
    return asyncio.run(_engine(ground, steps))


async def _engine(ground: Ground, steps: Path) -> dict[str, Any]:
    kind = "RecordedHarvest" if ground.cpu else "RecordedAsyncHarvest"
    given = {"scheduler_cls": f"bench.gpu.recording.{kind}", "additional_config": {"bench_steps": str(steps)}}
    async with harvester(ground, given) as (llm, board):
        learnt = await profiler.profile(llm, board, ground.pick(40.0, 10.0, 3.0))
        began_s = time.monotonic()
        top, each_s = int(llm.model_config.max_model_len), ground.pick(20.0, 8.0, 2.0)
        slots = ground.number(128, 12, 12)
        loads = {
            "decode": Rows(slots, 24, 64, min(1500, top // 2)),
            "prefill": Rows(8, top // 4, top * 3 // 4, 1),
            "mixed": Rows(slots, top // 16, top // 2, 64),
        }
        for name, rows in loads.items():
            async with offline(llm, rows, ground.seed, name):
                await asyncio.sleep(each_s)
        chats = [Chat(0.25 * i, 200, 32) for i in range(int(each_s / 0.25))]
        async with offline(llm, loads["mixed"], ground.seed + 1, "beside"):
            await play(llm, chats, each_s, ground.seed, "chat")
        picked = await chosen(llm)
    return {"learnt": learnt, "chosen": picked, "kinds": residuals(_read(steps, began_s), picked)}


def _read(path: Path, began_s: float) -> list[Row]:
    rows: list[Row] = [tuple(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row[0] >= began_s]


def residuals(rows: list[Row], picked: dict[str, Any]) -> dict[str, Any]:
    """By ``KIND/GRAPH``: steps, actual over predicted, and the error as a share of the actual time."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row[4] is not None:
            groups.setdefault(f"{kind_of(row)}/{graph_of(row, picked)}", []).append(row)
    return {name: _figures(group) for name, group in sorted(groups.items())}


def kind_of(row: Row) -> str:
    return "mixed" if row[1] and row[2] else "prefill" if row[1] else "decode"


def graph_of(row: Row, picked: dict[str, Any]) -> str:
    """What vLLM runs a step as, by its mode and sizes: ``full``, ``piecewise`` or ``none``."""
    mode, sizes, tokens = str(picked["cudagraph_mode"]).upper(), picked["cudagraph_sizes"], row[1] + row[2]
    if not sizes or tokens > max(sizes) or mode.endswith("NONE"):
        return "none"
    if not row[1]:
        return "full" if "FULL" in mode else "piecewise"
    return "piecewise" if "PIECEWISE" in mode else "full" if mode.endswith("FULL") else "none"


def _figures(rows: list[Row]) -> dict[str, Any]:
    pairs = [(predicted, actual) for *_, predicted, actual in rows if predicted is not None]
    return {
        "steps": len(pairs),
        "step_ms": percentiles(1e3 * actual for _, actual in pairs),
        "ratio": percentiles(actual / max(1e-9, predicted) for predicted, actual in pairs),
        "error": percentiles(abs(predicted - actual) / actual for predicted, actual in pairs),
    }


def summary(found: Found) -> dict[str, Any]:
    return {name: {"steps": one["steps"], "error": one["error"]} for name, one in found["harvester"]["kinds"].items()}


PART = Part({"harvester": _run}, summary)
