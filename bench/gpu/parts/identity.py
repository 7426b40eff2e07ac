"""Part ``identity``: a small random model's greedy tokens, stock vLLM against harvester under forced ends and preemptions."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from bench.gpu.part import Found, Part, Run
from bench.gpu.run_config import RunConfig, small_model
from harvester.config import parse_config
from harvester.engine.processes.in_subprocess import run_in_process
from harvester.engine.verify.subject import Subject
from harvester.engine.verify.ties import compare
from harvester.engine.verify.tokens import pressed_tokens, stock_tokens
from harvester.engine.verify.verdict import tokens_verdict


def _run(checkpoints: bool) -> Run:
    def run(run_config: RunConfig, found: Found) -> dict[str, Any]:
        if run_config.quick and not checkpoints:
            return {"passed_over": "in the short form only checkpoints are looked at"}
        config = parse_config({"checkpoint": {"enabled": checkpoints, "host_gib": 0.25}}, "bench")
        kv: dict[str, Any] = {"kv_cache_memory_bytes": 128 << 20, "block_size": 32} if run_config.cpu else {}
        engine = kv | {"skip_tokenizer_init": True, "dtype": "float32" if run_config.cpu else "bfloat16"}
        subject = Subject(config, str(small_model()), embedded=False, cpu=run_config.cpu, engine=engine)
        stock = run_in_process(stock_tokens, subject)
        pressed = run_in_process(pressed_tokens, subject, stock.request_blocks, stock.longest_tokens)
        turns = [compare(zip(turn, stock.tokens, strict=True), stock.tops, stock.tie) for turn in pressed.turns]
        verdict = tokens_verdict(turns, stock.tie, pressed)
        done = {name: value for name, value in asdict(pressed).items() if name != "turns"}
        return {"ok": verdict.ok, "said": verdict.said, "tie": stock.tie, **done, "compared": [asdict(turn) for turn in turns]}

    return run


def summary(found: Found) -> dict[str, Any]:
    ran = {name: run for name, run in found.items() if "passed_over" not in run}
    return {name: run["said"] for name, run in ran.items()} | {"tokens_identical": all(run["ok"] for run in ran.values())}


PART = Part({"recompute": _run(False), "checkpoints": _run(True)}, summary)
