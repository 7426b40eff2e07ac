"""Scenario ``swap_link``: chat alone with KV for about ten, where copies take as long as over a link (FastServe Fig. 15).

FastServe's OPT-175B on 16 A100 generates a token in about 60 ms and swaps the KV of a job in about 36 (section 4.2): 0.6 of a step. On a
CPU it is a twentieth. Here each block takes ``block_ms`` and no time of a processor (`bench.harness.engine.slow_link`), for about the same
share. All else is `bench.scenarios.checkpoints.checkpoint`'s.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.harness.device import on_cpu
from bench.harness.load.checkpoint_load import chat
from bench.harness.measure.checkpoint_report import latencies_ms, same, summary
from bench.harness.measure.rounds import ratio_of_rounds, rounds_of
from bench.harness.models import bench_model
from bench.harness.options import Options
from bench.scenarios.checkpoints.checkpoint import CHATS, max_chats_per_s, measure, seconds_of
from harvester.errors import UsageError
from harvester.policy.kv.checkpoint import CUDA_COST

BLOCK_MS, LOAD = 1.0, 0.9


def run(options: Options) -> dict[str, Any]:
    """``--seconds``: of each engine in a round (42). ``--set``: ``rounds`` (3; 1 with ``--quick``), ``block_ms`` (1), ``load`` (0.9)."""
    block_ms, times, rounds = _given(options)
    if not on_cpu():
        raise UsageError("swap_link emulates a link on a CPU; where there is one, run checkpoint")
    model = options.model or str(bench_model())
    rate = times * max_chats_per_s(model, options.seed)
    systems = {"chat_recompute": CHATS["chat_recompute"]}
    for name in ("chat_reactive", "chat_proactive"):
        checkpoint = {**(CHATS[name].checkpoint or {}), "copy_cost": CUDA_COST}
        systems[name] = replace(CHATS[name], checkpoint=checkpoint, link_block_s=block_ms / 1e3)
    seconds = seconds_of(options)
    found = measure(systems, partial(chat, rate=rate), rounds, model, seconds, options.seed)
    latencies = {name: latencies_ms(each) for name, each in found.items()}
    return {
        "model": Path(model).name,
        "rounds": rounds,
        "seconds_each": seconds,
        "block_ms": block_ms,
        "requests_per_s": round(rate, 3),
        "tokens_identical": same(found),
        "systems": {name: summary(each) for name, each in found.items()},
        "ratios": {
            f"latency_{name}_over_chat_proactive": ratio_of_rounds(latencies[name], latencies["chat_proactive"])
            for name in ("chat_recompute", "chat_reactive")
        },
    }


def _given(options: Options) -> tuple[float, float, int]:
    """``block_ms``, ``load``, ``rounds``."""
    unknown = options.set.keys() - {"rounds", "block_ms", "load"}
    if unknown:
        raise UsageError(f"--set {min(unknown)}: this scenario knows rounds, block_ms and load")
    block_ms, load = options.set.get("block_ms", BLOCK_MS), options.set.get("load", LOAD)
    if block_ms < 0 or load <= 0:
        raise UsageError(f"--set block_ms={block_ms:g} load={load:g}: give at least 0 ms, and a load above 0")
    return block_ms, load, rounds_of(options.set, 1 if options.quick else 3)
