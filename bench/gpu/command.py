"""The command: parts one after the other, each kept as soon as it is done."""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

from bench.gpu.carry import carried
from bench.gpu.outcome import Outcome
from bench.gpu.part import Part
from bench.gpu.run_config import SHAPES, TINY, RunConfig
from bench.harness.device import on_cpu
from bench.harness.record import Start, versions
from harvester.errors import HarvesterError

PARTS = ("versions", "identity", "preempt", "profile", "coserve", "checkpoint")
SHAPE = "llama-3.1-8b"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m bench gpu",
        description="Measure what only a GPU can show. Needs torch, transformers and vLLM; no Ray, no DuckDB, no network, no weights.",
        epilog="A part that is in the file already is passed over, and so is each run of a part that was cut off.",
    )
    made.add_argument("--part", action="append", choices=PARTS, help="only this one; may be given several times")
    made.add_argument("--json", type=Path, metavar="FILE", help="results, written after each run; without it they are printed")
    made.add_argument("--again", action="store_true", help="measure parts that are in the file again")
    made.add_argument("--shape", choices=sorted(path.name for path in SHAPES.iterdir()), default=SHAPE, help=f"of the model ({SHAPE})")
    made.add_argument("--tiny", action="store_true", help="the tiny shape, which a CPU can do too")
    made.add_argument("--quick", action="store_true", help="a few seconds a part: shows that all of it runs, measures nothing")
    made.add_argument("--seed", type=int, default=0, metavar="N", help="of everything that is drawn (0)")
    made.add_argument("--carry", action="store_true", help="print the files of the repository that such a machine needs, and end")
    return made


def main(words: list[str]) -> int:
    given = parser().parse_args(words)
    if given.carry:
        print(*carried(), sep="\n")
        return 0
    if given.json is not None and not given.json.absolute().parent.is_dir():
        print(f"error: the folder of {given.json} does not exist; make it first", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that no engine outlives us
    run_config = RunConfig(TINY if given.tiny else given.shape, on_cpu(), given.quick, given.seed)
    start = Start.now()
    try:
        outcome = Outcome(given.json, run_config, {"versions": versions(), "commit": start.commit, "machine": start.machine})
        failed = [name for name in given.part or PARTS if not measure(name, run_config, outcome, again=given.again)]
    except HarvesterError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    if given.json is None:
        print(json.dumps(outcome.values, indent=2, ensure_ascii=False))
    if failed:
        print(f"error: not whole: {', '.join(failed)}; the results say why, and the same command tries again", file=sys.stderr)
    return 1 if failed else 0


def measure(name: str, run_config: RunConfig, outcome: Outcome, *, again: bool) -> bool:
    """One part; whether all of it is done. A run that fails is noted, and the others have their turn."""
    if again:
        outcome.drop(name)
    if outcome.is_done(name):
        _tell(f"{name}: done before")
        return True
    part: Part = importlib.import_module(f"bench.gpu.parts.{name}").PART
    for run, work in part.runs.items():
        found = outcome.runs(name)
        if run not in found:
            outcome.add(name, run, _timed(f"{name}/{run}", work, run_config, found))
    found = outcome.runs(name)
    if set(part.runs) - set(found):
        return False
    outcome.close(name, part.summary(found))
    return True


def _timed(label: str, work: Any, run_config: RunConfig, found: Any) -> dict[str, Any]:
    began_s = time.monotonic()
    try:
        values: dict[str, Any] = work(run_config, found)
    except Exception as error:  # vLLM's own, of any kind
        values = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:2000]}"}
    values |= {"seconds": round(time.monotonic() - began_s, 1)}
    _tell(f"{label}: {json.dumps(values)[:2000]}")
    return values


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
