"""Scenario ``defaults``: what chat notices of a job where nobody has configured anything.

``harvester serve`` as a newcomer starts it, and ``vllm bench serve`` as the client: chat alone, chat beside a job, chat alone again.
The ratio is of the second to the mean of the first and the last: a machine that changes its pace meanwhile is seen in those two.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx

from bench.harness.load.bench_serve import RandomChat, Served, play
from bench.harness.load.table import write_speeches
from bench.harness.measure.job.job_watch import submit, wait
from bench.harness.options import Options
from bench.harness.servers.server import ServerProcess
from harvester.cli.client import Client
from harvester.engine.embedded.folder import embedded_model

GOALS = {"ttft_p99": 1.25, "ttft_p50": 1.25, "gap_p50": 1.25, "gap_p99": 1.5}
ROWS = 20_000
CHARS = (500, 1500)
MAX_TOKENS = 64
LEARNT_FROM = 20  # chats before the first that are measured
JOB_BEGINS_S = 300.0


def run(options: Options) -> dict[str, Any]:
    rate, seconds = options.set.get("rate", 1.5), options.seconds or (30.0 if options.quick else 120.0)
    count = max(20, round(rate * seconds))

    def chat(turn: int) -> RandomChat:
        """Prompts of its own in each turn: those of an earlier one are in the server's prefix cache."""
        return RandomChat(rate, count if turn else LEARNT_FROM, 160, 24, 0.5, options.seed + 1000 * turn)

    with tempfile.TemporaryDirectory(prefix="harvester-bench-") as name:
        folder, model = Path(name), Path(options.model) if options.model else embedded_model()
        write_speeches(folder / "rows.parquet", ROWS, options.seed, CHARS)
        given = ["--model", str(model)] if options.model else []
        with ServerProcess(("-m", "harvester", "serve", *given), folder / "state") as server, Client(server.url) as client:
            served = httpx.get(f"{server.url}/v1/models", timeout=30.0).json()["data"][0]["id"]
            play(server.url, served, model, chat(0), folder)  # the engine learns its step times
            before = play(server.url, served, model, chat(1), folder)
            view, _ = submit(client, folder / "rows.parquet", max_tokens=MAX_TOKENS)
            first = wait(client, view.id, JOB_BEGINS_S, lambda job: job.rows_ok > 0)
            began_s, begun = time.monotonic(), _counted(server.url)
            beside = play(server.url, served, model, chat(2), folder)
            rows_per_s = (client.job(view.id).rows_ok - first.rows_ok) / (time.monotonic() - began_s)
            meanwhile = account(begun, _counted(server.url))
            client.change(view.id, "cancel")
            after = play(server.url, served, model, chat(3), folder)
        ratios = {name: ratio(name, before, beside, after) for name in GOALS}
        return {
            "model": served,
            "load": asdict(chat(1)),
            "systems": {"before": asdict(before), "beside_a_job": asdict(beside), "after": asdict(after)},
            "rows_per_s": round(rows_per_s, 3),
            "account_beside_a_job": meanwhile,
            "ratios": {f"{name}_with_a_job_over_alone": value for name, value in ratios.items()},
            "goals": {name: {"goal": goal, "measured": ratios[name], "met": ratios[name] <= goal} for name, goal in GOALS.items()},
        }


def ratio(name: str, before: Served, beside: Served, after: Served) -> float:
    """Of one figure beside a job to its mean without, in the same run."""
    with_job, first, last = (float(getattr(one, f"{name}_ms")) for one in (beside, before, after))
    return round(2 * with_job / (first + last), 3)


def counted(page: str) -> dict[str, float]:
    """The engine's counters of chat since its start, by name, from its metrics; summed over their labels."""
    found: dict[str, float] = {}
    for line in page.splitlines():
        if line.startswith("harvester_chat_"):
            name, value = line.split("{")[0].split(" ")[0], float(line.rsplit(" ", 1)[1])
            found[name] = found.get(name, 0.0) + value
    return found


def account(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float | None]:
    """Mean time to first token and gap as the engine had them between two `counted`, over what it says they would have been without jobs.

    None where no chat came meanwhile, or the engine has no such counters.
    """

    def grown(name: str) -> float:
        return after.get(f"harvester_chat_{name}_seconds_sum", 0.0) - before.get(f"harvester_chat_{name}_seconds_sum", 0.0)

    pairs = {kind: (grown(kind), grown(f"{kind}_alone")) for kind in ("ttft", "gap")}
    return {f"{kind}_had_over_alone": round(had / alone, 3) if had > 0 and alone > 0 else None for kind, (had, alone) in pairs.items()}


def _counted(url: str) -> dict[str, float]:
    return counted(httpx.get(f"{url}/metrics", timeout=30.0).text)
