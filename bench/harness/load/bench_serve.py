"""``vllm bench serve`` as a process: chat from a client that knows nothing of harvester.

Started by itself, as ``python -m bench.harness.load.bench_serve ARGUMENTS``, it is vLLM's own command: its console script looks for a
distribution named ``vllm``, which the CPU build is not.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harvester.errors import EngineError


@dataclass(frozen=True, slots=True)
class RandomChat:
    """Prompts of random tokens. Gaps between arrivals are Gamma distributed of shape ``burstiness``: below 1, burstier than Poisson's."""

    rate: float
    prompts: int
    prompt_tokens: int
    output_tokens: int
    burstiness: float
    seed: int


@dataclass(frozen=True, slots=True)
class Served:
    """In ms, as the client saw it. ``gaps``: between two outputs."""

    ttft_p50_ms: float
    ttft_p99_ms: float
    gap_p50_ms: float
    gap_p99_ms: float
    completed: int


def play(url: str, name: str, tokenizer: Path, chat: RandomChat, folder: Path) -> Served:
    """One load, to its end. Raises `EngineError` where a request failed or the client did."""
    result = folder / "served.json"
    result.unlink(missing_ok=True)
    command = [sys.executable, "-m", __name__, "--backend", "openai", "--endpoint", "/v1/completions", "--base-url", url, "--model", name]
    command += ["--tokenizer", str(tokenizer), "--dataset-name", "random", "--ignore-eos", "--seed", str(chat.seed)]
    command += ["--random-input-len", str(chat.prompt_tokens), "--random-output-len", str(chat.output_tokens)]
    command += ["--request-rate", str(chat.rate), "--burstiness", str(chat.burstiness), "--num-prompts", str(chat.prompts)]
    command += ["--percentile-metrics", "ttft,itl", "--metric-percentiles", "50,99", "--disable-tqdm"]
    command += ["--save-result", "--result-dir", str(folder), "--result-filename", result.name]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode or not result.is_file():
        last = done.stdout.strip().splitlines()[-1:]
        raise EngineError(f"vllm bench serve ended with {done.returncode}: {''.join(last)[:300]}")
    found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    if found["completed"] != chat.prompts:
        raise EngineError(f"vllm bench serve: {chat.prompts - found['completed']} of {chat.prompts} requests failed")
    return Served(found["p50_ttft_ms"], found["p99_ttft_ms"], found["p50_itl_ms"], found["p99_itl_ms"], found["completed"])


def main() -> None:
    from vllm.benchmarks import serve
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    serve.add_cli_args(parser)
    serve.main(parser.parse_args())


if __name__ == "__main__":
    main()
