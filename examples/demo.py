"""The promise in 100 seconds: a chat alone, then the same chat beside a job over a table, then both in one picture.

Everything goes through public interfaces: `harvester serve`, `submit`, `chat completions`, `sql`. What it made stays in `build/demo`.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import duckdb
import httpx
from demo_chats import ANSWER_TOKENS, EVERY_S, Chats, between, quantile
from demo_picture import Seen, draw

from harvester.config import ServeConfig
from harvester.engine.embedded.answers import lead
from harvester.ports import free_port

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "demo"
PICTURE = ROOT / "build" / "demo.png"
ROWS, CHARACTERS = 32, 1000  # speeches, and how much of each: the model reads some 2,000 tokens a second on two cores
ALONE_S = 12.0
SAY_EVERY_S = 4.0
_TOKENS = re.compile(r'^harvester_tokens_total\{.*class="offline".*\} (\S+)$', re.MULTILINE)


def say(line: str) -> None:
    print(line, flush=True)


def harvester(*args: str) -> str:
    """Run a command of the CLI and return what it prints. Its priority is below the server's, as if it ran on a machine of its own."""
    done = subprocess.run(["nice", sys.executable, "-m", "harvester", *args], capture_output=True, text=True)
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
        say("server: starting; this takes 15 to 45 s on two cores")
        for event in self._events():
            if event["event"] == "starting":
                say(f"model: {event['model']}. {event['note'] or ''}")
            elif event["event"] == "ready":
                self.model = event["model"]
                say(f"server: ready after {event['seconds']:.0f} s at {event['url']}")
                return self
        raise SystemExit("demo: failed: the server did not start; its logs are in build/demo/state/logs")

    def _events(self) -> Any:
        """The server's events, until it ends. Says what it waits for while there are none."""
        lines: queue.Queue[str | None] = queue.Queue()

        def read() -> None:
            for line in self.process.stdout or ():
                lines.put(line)
            lines.put(None)

        threading.Thread(target=read, daemon=True).start()
        began_s, waits_for = time.monotonic(), "the server to begin"
        while True:
            try:
                line = lines.get(timeout=SAY_EVERY_S)
            except queue.Empty:
                say(f"server: {time.monotonic() - began_s:.0f} s, waiting for {waits_for}")
                continue
            if line is None:
                return
            event = json.loads(line)
            waits_for = event.get("message", waits_for) if event["event"] == "waiting" else waits_for
            yield event

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            say("server: stopping")
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)


class Teller:
    """Prints one chat and the progress of the job every `SAY_EVERY_S`."""

    def __init__(self) -> None:
        self._said_s = 0.0
        self.job = "no job yet"

    def __call__(self, question: str, ttft_ms: float, text: str) -> None:
        if time.monotonic() >= self._said_s + SAY_EVERY_S:
            self._said_s = time.monotonic()
            say(f"  chat: {question:<30} first token after {ttft_ms:5.0f} ms | {self.job} | {text[:40]}")


async def offline_tokens(client: httpx.AsyncClient) -> float:
    """Tokens of jobs since the server's start."""
    found = _TOKENS.search((await client.get("/metrics")).raise_for_status().text)
    if found is None:
        raise SystemExit("demo: failed: /metrics has no harvester_tokens_total of class offline")
    return float(found[1])


async def coserve(server: Server, table: Path) -> tuple[Seen, dict[str, Any]]:
    """Chat alone for `ALONE_S`, then the same chats beside the job until it ends. Returns what was seen, and the job's last view."""
    teller, tokens = Teller(), list[tuple[float, float]]()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=120) as client:
        say("chat: three to warm up")
        warm = Chats(client, server.model, teller)
        for _ in range(3):
            await warm.ask("Hello!")
        chats = Chats(client, server.model, teller)
        say(f"chat alone: an answer of {ANSWER_TOKENS} tokens asked for every {EVERY_S} s, for {ALONE_S:.0f} s")
        began_s = time.monotonic()
        async with chats.going_on():
            await asyncio.sleep(ALONE_S)
            job_began_s = time.monotonic()
            job = json.loads(await asyncio.to_thread(harvester, "submit", str(table), "--task", "summarize", "--json"))["id"]
            say(f"job {job}: summarize the first {CHARACTERS:,} characters of {ROWS} speeches, beside the same chats")
            view: dict[str, Any] = {"state": "queued"}
            while view["state"] in ("queued", "running"):
                await asyncio.sleep(1.0)
                tokens.append((time.monotonic(), await offline_tokens(client)))
                view = (await client.get(f"/api/jobs/{job}")).raise_for_status().json()
                done = view["rows_ok"] + view["rows_error"] + view["rows_running"]
                teller.job = f"job: {done}/{ROWS} rows, {view['offline_tokens_per_s'] or 0:,.0f} tokens/s"
            ended_s = time.monotonic()
        tokens.insert(0, (job_began_s, 0.0))
    if tokens[-1][1] == 0:
        raise SystemExit("demo: failed: the job ended, and /metrics counts none of its tokens")
    return Seen(chats.ttft, chats.tpot, tokens, began_s, job_began_s, ended_s, ServeConfig().slo.max_slowdown), view


def known_right(job: str) -> int:
    """How many summaries are right by the embedded model's rule; one cut by the task's token limit must be the right one's beginning."""
    rows = json.loads(harvester("sql", "--json", f"select text, output, finish_reason = 'length' as cut from results('{job}')"))
    return sum(lead(row["text"]).startswith(row["output"]) if row["cut"] else lead(row["text"]) == row["output"] for row in rows)


def compare(seen: Seen) -> None:
    for name, samples in (("time to first token", seen.ttft), ("time per output token", seen.tpot)):
        alone, beside = between(samples, seen.began_s, seen.job_began_s), between(samples, seen.job_began_s, seen.ended_s)
        for title, share in (("median", 0.5), ("P99", 0.99)):
            say(
                f"chat {title} alone {quantile(alone, share):.0f} ms, with the job {quantile(beside, share):.0f} ms "
                f"({name}; {len(alone)} and {len(beside)} of them)"
            )


def leave(seen: Seen) -> None:
    """The picture, and what to do next."""
    here = Path.cwd()
    try:
        draw(seen, PICTURE)
        say(f"picture: {os.path.relpath(PICTURE, here)}")
    except ImportError:
        say("picture: none, for Matplotlib is not installed; make setup installs it")
    program, state = os.path.relpath(Path(sys.executable).with_name("harvester"), here), os.path.relpath(FOLDER / "state", here)
    say("Next:")
    say(f"  {program} results latest --state {state}")
    say(f"""  {program} sql --state {state} "select title, prompt_tokens, output from results('latest') order by year limit 5\"""")
    say(f"  {program} serve --state {state}    # then open http://127.0.0.1:8000/")


def main() -> None:
    began_s = time.monotonic()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    state, table = FOLDER / "state", FOLDER / "speeches.parquet"
    first = (
        f"SELECT * REPLACE (left(text, {CHARACTERS}) AS text) FROM '{ROOT}/examples/docs_speeches.parquet' ORDER BY year, id LIMIT {ROWS}"
    )
    duckdb.sql(f"COPY ({first}) TO '{table}'")
    with Server(state, free_port()) as server:
        os.environ |= {"HARVESTER_URL": f"http://127.0.0.1:{server.port}", "HARVESTER_STATE": str(state)}
        seen, view = asyncio.run(coserve(server, table))
        right = known_right(view["id"])
    compare(seen)
    leave(seen)
    is_ok = view["state"] == "completed" and view["rows_ok"] == ROWS == right
    say(
        f"demo: {'ok' if is_ok else 'failed'} rows={view['rows_ok'] + view['rows_error']} errors={view['rows_error']} right={right} "
        f"chat_requests={len(seen.ttft)} tokens_per_s={view['offline_tokens_per_s'] or 0:.0f} seconds={time.monotonic() - began_s:.0f}"
    )
    if not is_ok:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
