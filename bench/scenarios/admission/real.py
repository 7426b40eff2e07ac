"""Admission rules on this machine: offline rows alone, little KV, answers far below `max_tokens`, one engine after the other in turns."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.harness.device import on_cpu
from bench.harness.engine.tally import PERIOD_S
from bench.harness.measure.rounds import in_turns, pooled, ratio_of_rounds, rounds_of
from bench.harness.measure.work import Work, work_between
from bench.harness.models import bench_model
from bench.harness.options import Options
from bench.harness.servers.systems import CPU_ENGINE, counted
from harvester.config import parse_config
from harvester.core import PRIORITY_OFFLINE
from harvester.engine.processes.in_subprocess import run_in_process
from harvester.errors import UsageError
from harvester.sim.trace import Drawn, LogNormal
from jobs.hint import SchedulingHint

SLOTS, KV_MIB, MAX_TOKENS = 48, 128, 1024  # KV for 4,096 tokens of the bench model
ENGINE: dict[str, Any] = {"max_num_seqs": SLOTS, "max_num_batched_tokens": 1024, "max_model_len": 2048, "enable_prefix_caching": False}
LENGTHS = Drawn(LogNormal(60.0, 0.8, 8, 200), LogNormal(90.0, 0.95, 2, MAX_TOKENS))  # spread as ShareGPT's
OPEN = 64  # rows at a time
WARM_S = 12.0
SYSTEMS: dict[str, str | None] = {"worst": "worst", "expected": "expected", "greedy": None}  # `schedule.admission`; None: stock vLLM
Row = tuple[list[int], int]
"""Token ids of a prompt, and tokens of its answer."""


@dataclass(frozen=True, slots=True)
class Round:
    """One run of one engine. ``tokens``: of the rows that ended, by their numbers."""

    seconds: float
    ended: int  # while it was measured
    preemptions: int
    work: Work
    tokens: dict[int, list[int]]


def measure(options: Options) -> dict[str, Any]:
    """Figures of each system, ratios of the rounds, and whether every row has the same tokens in all."""
    if on_cpu() is False:
        raise UsageError("the real part of scenario admission sets answers' lengths in a synchronous scheduler; run it on a CPU")
    unknown = options.set.keys() - {"rounds"}
    if unknown:
        raise UsageError(f"--set {min(unknown)}: this scenario knows rounds only")
    rounds = rounds_of(options.set, 1 if options.quick else 3)
    seconds = options.seconds or (20.0 if options.quick else 40.0)
    model = options.model or str(bench_model())
    found = in_turns(list(SYSTEMS), rounds, lambda name, number: _once(name, model, seconds, options.seed + number))
    return {
        "model": Path(model).name,
        "engine": ENGINE | {"kv_mib": KV_MIB, "max_tokens": MAX_TOKENS, "open": OPEN, "rounds": rounds, "seconds_each": seconds},
        "systems": {name: summary(each) for name, each in found.items()},
        "tokens_identical": same(found["expected"], found["worst"]) and same(found["greedy"], found["worst"]),
        "ratios": ratios_of(found),
    }


def drawn(count: int, seed: int) -> list[Row]:
    draw = random.Random(seed)
    lengths = [LENGTHS.draw(draw) for _ in range(count)]
    return [([draw.randrange(100, 4000) for _ in range(prompt)], answer) for prompt, answer in lengths]


def summary(rounds: Sequence[Round]) -> dict[str, Any]:
    seconds, work = sum(each.seconds for each in rounds), pooled([asdict(each.work) for each in rounds])
    return {
        "rows_per_s": round(sum(each.ended for each in rounds) / seconds, 3),
        "offline_tokens_per_s": round(work["offline"] / seconds, 1),
        "recomputed_tokens": round(work["recomputed"]),
        "recomputed_share": round(work["recomputed"] / max(1, work["tokens"]), 5),
        "tokens_per_step": round(work["tokens"] / max(1, work["steps"]), 2),
        "preemptions": sum(each.preemptions for each in rounds),
    }


def ratios_of(found: dict[str, list[Round]]) -> dict[str, Any]:
    """Over the worst case, the median of the rounds; what is computed again, over greedy."""
    ratios: dict[str, Any] = {}
    for name in ("expected", "greedy"):
        tokens = ([each.work.offline / each.seconds for each in found[system]] for system in (name, "worst"))
        rows = ([each.ended / each.seconds for each in found[system]] for system in (name, "worst"))
        ratios[f"offline_tokens_per_s_{name}_over_worst"] = ratio_of_rounds(*tokens)["ratio"]
        ratios[f"rows_per_s_{name}_over_worst"] = ratio_of_rounds(*rows)["ratio"]
    shares = [median(each.work.recomputed / max(1, each.work.tokens) for each in found[name]) for name in ("expected", "greedy")]
    ratios["recomputed_expected_over_greedy"] = round(shares[0] / shares[1], 3) if shares[1] else None
    return ratios


def same(ones: Sequence[Round], others: Sequence[Round]) -> bool:
    """Whether the rows that ended in both have the same tokens, and there are some in each round."""
    return all(
        both and all(one.tokens[row] == other.tokens[row] for row in both)
        for one, other in zip(ones, others, strict=True)
        for both in [one.tokens.keys() & other.tokens.keys()]
    )


def _once(name: str, model: str, seconds: float, seed: int) -> Round:
    with tempfile.TemporaryDirectory(prefix="bench-admission-") as folder:
        found: Round = run_in_process(run_engine, SYSTEMS[name], model, Path(folder), KV_MIB, drawn(4000, seed), WARM_S, seconds)
    print(f"{name}: {json.dumps(summary([found]))}", file=sys.stderr)
    return found


def run_engine(
    admission: str | None, model: str, folder: Path, kv_mib: int, rows: list[Row], warm_s: float, seconds: float | None
) -> Round:
    """Answer ``rows`` with one engine: for ``seconds`` after ``warm_s``, or all of them. ``admission`` None: stock vLLM's."""
    os.environ["VLLM_CPU_NUM_OF_RESERVED_CPU"] = "1"
    return asyncio.run(_engine(admission, model, folder, kv_mib, rows, warm_s, seconds))


async def _engine(
    admission: str | None, model: str, folder: Path, kv_mib: int, rows: list[Row], warm_s: float, seconds: float | None
) -> Round:
    from harvester.engine.frontend.host import EngineHost

    counts = folder / "counts"
    host = await EngineHost.start(_arguments(admission, model, counts, kv_mib))
    tokens, preemptions, waiting = dict[int, list[int]](), [0], iter(enumerate(rows))

    async def stream() -> None:
        for number, (ids, answer) in waiting:
            output = await _answer(host.llm, number, ids, answer)
            tokens[number] = list(output.outputs[0].token_ids)
            preemptions[0] += int(getattr(output.metrics, "num_preemptions", 0) or 0)

    streams = [asyncio.create_task(stream()) for _ in range(OPEN)]
    try:
        await asyncio.sleep(warm_s)
        began_s, before, lost = time.monotonic(), len(tokens), preemptions[0]
        if seconds is None:
            await asyncio.gather(*streams)
            await asyncio.sleep(2 * PERIOD_S)
            await _answer(host.llm, len(rows), [100], 1)  # its step makes the tally write down all steps before it
        else:
            await asyncio.sleep(seconds)
        ended_s, ended, lost = time.monotonic(), len(tokens) - before, preemptions[0] - lost
        for task in streams:
            task.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
        await asyncio.sleep(0.3)
    finally:
        host.close()
    return Round(ended_s - began_s, ended, lost, work_between(counts, began_s, ended_s + 0.3), tokens)


def _arguments(admission: str | None, model: str, counts: Path, kv_mib: int) -> dict[str, Any]:
    from harvester.engine.launch.arguments import engine_arguments

    engine = ENGINE | CPU_ENGINE | {"kv_cache_memory_bytes": kv_mib << 20}
    own = counted(counts, "bench.harness.engine.set_lengths.SetHarvest")
    sections = {"schedule": {"admission": admission or "worst"}, "checkpoint": {"enabled": False}}
    config = parse_config({"engine": own | engine, **sections}, "bench")
    values: dict[str, Any] = engine_arguments(config, model, "bench", cpu=on_cpu(), embedded=False, shared=None)
    if admission is None:
        values |= counted(counts, "bench.harness.engine.set_lengths.SetStock")
        values |= {"worker_cls": "bench.harness.engine.patient.PatientWorker"}
    return values


async def _answer(llm: Any, number: int, ids: list[int], answer_tokens: int) -> Any:
    """Answer one row. Its number decides when it is admitted."""
    from vllm.inputs import TokensPrompt
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    from bench.harness.engine.set_lengths import ANSWER_ARG, STOP

    params = SamplingParams(
        temperature=0.0,
        max_tokens=MAX_TOKENS,
        ignore_eos=True,
        stop_token_ids=[STOP],
        extra_args=SchedulingHint("job", number).to_args() | {ANSWER_ARG: answer_tokens},
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
    last = None
    async for output in llm.generate(TokensPrompt(prompt_token_ids=ids), params, f"row-{number}", priority=PRIORITY_OFFLINE):
        last = output
    assert last is not None
    return last
