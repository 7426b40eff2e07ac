"""The stock side of the comparison: the same rows as chat requests through vLLM's ``run-batch``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from bench.harness.measure.job.finished import Finished
from harvester.errors import EngineError
from jobs.tasks.load import resolve_task
from jobs.tasks.template import build_messages

LIMIT_S = 1800.0
QUIET = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


def write_requests(table: Path, requests: Path, name: str, max_tokens: int) -> None:
    """One line a row, with the messages that harvester's ``summarize`` makes of it; ``custom_id`` is the row_id."""
    task = resolve_task("summarize", max_tokens=max_tokens)
    rows = pq.read_table(table, columns=["text"]).to_pylist()
    with requests.open("w", encoding="utf-8") as out:
        for row_id, row in enumerate(rows):
            body = {
                "model": name,
                "messages": build_messages(task, "text", row),
                "max_tokens": task.max_tokens,
                "temperature": task.temperature,
            }
            line = {"custom_id": str(row_id), "method": "POST", "url": "/v1/chat/completions", "body": body}
            out.write(json.dumps(line, ensure_ascii=False) + "\n")


def run(folder: Path, requests: Path, engine: dict[str, Any]) -> Finished:
    """One run in a process of its own. Raises `EngineError` where it fails or a row has no answer."""
    folder.mkdir()
    output, span, log = folder / "output.jsonl", folder / "span.json", folder / "log.txt"
    command = [sys.executable, "-m", "bench.harness.servers.stock_batch", "--engine", json.dumps(engine)]
    command += ["--input", str(requests), "--output", str(output), "--span", str(span)]
    began_s = time.monotonic()
    _run(command, log)
    whole_s = time.monotonic() - began_s
    noted = json.loads(span.read_text(encoding="utf-8"))
    rows = sum(1 for _ in requests.open(encoding="utf-8"))
    return finished(output, rows, noted["seconds"], whole_s - noted["seconds"], noted["steps"])


def _run(command: list[str], log: Path) -> None:
    """Run the command in a process group of its own, which is killed afterwards together with its engine."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=os.environ | QUIET, start_new_session=True)
        try:
            code = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired as error:
            raise EngineError(f"vLLM's run-batch did not end within {LIMIT_S:.0f} s") from error
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if code != 0:
        last = log.read_text("utf-8", "replace").strip().splitlines()[-1:]
        raise EngineError(f"vLLM's run-batch ended with {code}: {''.join(last)[:400]}")


def finished(output: Path, rows: int, seconds: float, around_s: float, steps: int) -> Finished:
    """What an output file holds. Raises `EngineError` where one of ``rows`` has no answer."""
    prompt_tokens = output_tokens = 0
    answers: dict[int, str] = {}
    for line in output.read_text(encoding="utf-8").splitlines():
        item = json.loads(line)
        if item["error"] is not None or item["response"]["status_code"] != 200:
            told = item["error"] or item["response"]
            raise EngineError(f"vLLM's run-batch refused row {item['custom_id']}: {str(told)[:300]}")
        body = item["response"]["body"]
        answers[int(item["custom_id"])] = body["choices"][0]["message"]["content"]
        prompt_tokens += body["usage"]["prompt_tokens"]
        output_tokens += body["usage"]["completion_tokens"]
    if len(answers) != rows:
        raise EngineError(f"vLLM's run-batch answered {len(answers)} of {rows} rows")
    return Finished("run_batch", seconds, around_s, prompt_tokens, output_tokens, steps, answers)
