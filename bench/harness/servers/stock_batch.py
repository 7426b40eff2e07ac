"""``python -m bench.harness.servers.stock_batch``: vLLM's own ``run-batch``, untouched and timed.

The time is that between its first request and its last answer.

Start and stop of the engine are not in that time: it begins when the first request is handed to the serving layer and ends when the last
one has its answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from prometheus_client import generate_latest
from vllm.entrypoints.launchers import run_batch
from vllm.utils.argparse_utils import FlexibleArgumentParser

from bench.harness.measure.job.finished import engine_steps


class Span:
    """Wraps the function that answers one request; keeps when the first call began and when the last one ended."""

    def __init__(self, answer: Callable[..., Awaitable[Any]]) -> None:
        self._answer = answer
        self.began_s: float | None = None
        self.ended_s = 0.0

    async def __call__(self, *given: Any) -> Any:
        if self.began_s is None:
            self.began_s = time.perf_counter()
        try:
            return await self._answer(*given)
        finally:
            self.ended_s = time.perf_counter()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", type=json.loads, required=True, help="vLLM's engine arguments by name, as JSON")
    parser.add_argument("--input", required=True, help="requests, one a line")
    parser.add_argument("--output", required=True)
    parser.add_argument("--span", type=Path, required=True, help="where the seconds and the engine's steps are written")
    given = parser.parse_args()
    arguments = run_batch.make_arg_parser(FlexibleArgumentParser()).parse_args(["-i", given.input, "-o", given.output])
    for name, value in given.engine.items():
        if not hasattr(arguments, name):
            parser.error(f"vLLM has no engine argument {name}")
        setattr(arguments, name, value)
    module: Any = run_batch
    span = module.run_request = Span(run_batch.run_request)
    asyncio.run(run_batch.main(arguments))
    began_s = span.began_s
    if began_s is None:
        parser.error(f"{given.input} holds no request that run-batch takes")
    steps = engine_steps(generate_latest().decode())
    given.span.write_text(json.dumps({"seconds": span.ended_s - began_s, "steps": steps}) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
