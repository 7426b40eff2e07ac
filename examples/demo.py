"""The promise in two minutes: openings of sixty real speeches are summarized by the replica that streams chat meanwhile; then SQL over it.

Everything goes through the public ways in: `harvester serve`, `submit`, `chat completions`, `show`, `sql`, `stop`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Self

import duckdb
import httpx
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from harvester.engine.embedded.answers import lead
from harvester.ports import free_port

HERE = Path(__file__).parent
SPEECHES = HERE / "docs_speeches.parquet"
ROWS, CHARACTERS = 60, 3000  # speeches, and how much of each: the model reads some 2,000 tokens a second on two cores
QUESTIONS = ["Hello!", "What are you?", "How do I choose a real model?", "Say something presidential.", "And again?"]
console = Console(highlight=False, soft_wrap=True)


def harvester(*args: str) -> str:
    """Run a command of the CLI and return what it prints."""
    done = subprocess.run([sys.executable, "-m", "harvester", *args], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"demo: failed: harvester {' '.join(args)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


class Server:
    """`harvester serve` in a process group of its own, from its ``ready`` event to its end."""

    def __init__(self, state: Path, port: int) -> None:
        self.state, self.port, self.model = state, port, ""

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "harvester", "serve", "--state", str(self.state), "--port", str(self.port), "--json"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            if event["event"] == "starting":
                console.print(f"model: {event['model']}. {event['note'] or ''}")
            elif event["event"] == "ready":
                self.model = event["model"]
                console.print(f"server: ready after {event['seconds']} s at {event['url']}")
                return self
        raise SystemExit("demo: failed: the server did not start")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)


def chat(client: httpx.Client, model: str, question: str) -> tuple[float, str]:
    """One streamed chat request: its TTFT in milliseconds and its text."""
    body = {"model": model, "messages": [{"role": "user", "content": question}], "max_tokens": 32, "temperature": 0, "stream": True}
    began_s, ttft_ms, text = time.perf_counter(), 0.0, ""
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            piece = json.loads(line[6:])["choices"][0]["delta"].get("content")
            if piece:
                ttft_ms = ttft_ms or (time.perf_counter() - began_s) * 1000
                text += piece
    return ttft_ms, " ".join(text.split())


def watch(client: httpx.Client, job: str, model: str) -> tuple[dict[str, Any], list[float]]:
    """Chat every few seconds while the job runs, under a live bar. Returns the job's last view and each TTFT in ms."""
    ttfts: list[float] = []
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f} rows  {task.fields[rate]}"))
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("summarize", total=ROWS, rate="")
        next_chat_s = time.monotonic() + 2
        while True:
            view = client.get(f"/api/jobs/{job}").raise_for_status().json()
            rate = f"{view['offline_tokens_per_s'] or 0:.0f} tokens/s  ETA {view['eta_s'] or 0:.0f} s"
            progress.update(bar, completed=view["rows_ok"] + view["rows_error"] + view["rows_running"], rate=rate)
            if view["state"] not in ("queued", "running"):
                return view, ttfts
            if time.monotonic() >= next_chat_s:
                question = QUESTIONS[len(ttfts) % len(QUESTIONS)]
                ttft_ms, text = chat(client, model, question)
                ttfts.append(ttft_ms)
                progress.console.print(f"chat: {question:<30} first token after {ttft_ms:6.0f} ms: {text[:60]}")
                next_chat_s = time.monotonic() + 3
            time.sleep(0.25)


def main() -> None:
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="harvester-demo-") as folder:
        state, table = Path(folder) / "state", Path(folder) / "speeches.parquet"
        duckdb.sql(
            f"COPY (SELECT * REPLACE (left(text, {CHARACTERS}) AS text) FROM '{SPEECHES}' ORDER BY year, id LIMIT {ROWS}) TO '{table}'"
        )
        with Server(state, free_port()) as server:
            os.environ |= {"HARVESTER_URL": f"http://127.0.0.1:{server.port}", "HARVESTER_STATE": str(state)}
            url = os.environ["HARVESTER_URL"]
            job = json.loads(harvester("submit", str(table), "--task", "summarize", "--json"))["id"]
            console.print(
                f"job: {job}: the first {CHARACTERS:,} characters of {ROWS} speeches, summarized by the replica that answers the chat below"
            )
            with httpx.Client(base_url=url, timeout=60) as client:
                view, ttfts = watch(client, job, server.model)
            columns = "title, year, prompt_tokens as prompt, output_tokens as tokens, left(output, 48) as summary"
            query = f"select {columns} from results('{job}') order by year limit 8"
            console.print(f'harvester sql "{query}"')
            console.print(harvester("sql", query))
            right = known_right(job)
    console.print(f"summaries: {right} of {ROWS} are the lead of their speech, letter for letter")
    report(view, ttfts, time.monotonic() - began_s)


def known_right(job: str) -> int:
    """Summaries that are what the embedded model's rule says, or its beginning where the task's limit of tokens cut it."""
    rows = json.loads(harvester("sql", "--json", f"select text, output, finish_reason = 'length' as cut from results('{job}')"))
    return sum(lead(row["text"]).startswith(row["output"]) if row["cut"] else lead(row["text"]) == row["output"] for row in rows)


def report(view: dict[str, Any], ttfts: list[float], seconds: float) -> None:
    ok = view["state"] == "completed" and view["rows_ok"] == ROWS and view["rows_error"] == 0 and ttfts
    print(
        f"demo: {'ok' if ok else 'failed'} rows={view['rows_ok'] + view['rows_error']} errors={view['rows_error']} "
        f"chat_requests={len(ttfts)} chat_ttft_p50_ms={median(ttfts) if ttfts else 0:.0f} "
        f"offline_tokens_per_s={view['offline_tokens_per_s'] or 0:.0f} seconds={seconds:.0f}"
    )
    if not ok:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
