"""Scenario ``overload``: chat at 1, 3, 10 and half times what a server sustains, and one hostile request beside chats at half of it.

The sustained rate is measured first, with twice as many clients as the engine has slots; each sends its next request when one is answered.
Then requests come at random at a multiple of that rate, whatever becomes of earlier ones. For admitted requests the time to the first token
counts; for refused ones, how soon they are refused, and when they may retry. All times count from sending. How late the client sent is told
beside them: a client that waits for a core sends fewer requests at once than a crowd would.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import httpx

from bench.harness.compare import over
from bench.harness.options import Options
from bench.harness.servers.server import ServerProcess
from harvester.errors import EngineError
from harvester.sim.measure import percentile

HALF = 0.5
LOADS = (1, 3, 10, HALF)  # the last is the control of the hostile request, which comes after it
SLOTS, WORDS = 8, 200
TOKENS = 128  # of each answer, all of them made: slots are what is short
GOAL_SLO, GOAL_REFUSED_MS, GOAL_LATE_MS = 1.5, 50.0, 100.0
HOSTILE = 128  # choices, the most that a server takes by default
REFUSED = 429
TIMEOUT_S = 300.0
PROFILE_WAIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Asked:
    """``seconds``: to the first token where it was let in, to the whole answer otherwise. ``retry_after_s``: of a refusal.

    ``late_s``: from when it was due until it was sent.
    """

    status: int
    seconds: float
    late_s: float = 0.0
    retry_after_s: float | None = None


def run(options: Options) -> dict[str, Any]:
    seconds = options.seconds or (12.0 if options.quick else 60.0)
    slo_ms = options.set.get("ttft_slo_ms", 2000.0)
    with tempfile.TemporaryDirectory(prefix="harvester-bench-") as name:
        config = Path(name, "serve.yaml")
        config.write_text(json.dumps({"model": options.model, "slo": {"ttft_slo_ms": slo_ms}, "engine": {"max_num_seqs": SLOTS}}))
        with ServerProcess(("-m", "harvester", "serve", "--config", str(config)), Path(name, "state")) as server:
            _await_profile(Path(name, "state"))
            return asyncio.run(_measured(server.url, seconds, slo_ms, Random(options.seed)))


def _await_profile(state: Path) -> None:
    """A new server measures its engine first, with requests of its own."""
    end_s = time.monotonic() + PROFILE_WAIT_S
    while not list(state.glob("profiles/*.json")) and time.monotonic() < end_s:
        time.sleep(0.2)


async def _measured(url: str, seconds: float, slo_ms: float, draw: Random) -> dict[str, Any]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=200)
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, limits=limits) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        await _closed(client, model, seconds / 2, draw)
        rate = await _closed(client, model, seconds / 2, draw)
        systems = {f"{times:g}x": report(await _open(client, model, times * rate, seconds, draw), slo_ms) for times in LOADS}
        asked, answer = await _beside_hostile(client, model, rate, seconds, draw)
        systems["hostile"] = report(asked, slo_ms) | {"choices": HOSTILE, "answer": answer}
    ratios, goals = judged(systems)
    return {"sustained_per_s": round(rate, 2), "ttft_slo_ms": slo_ms, "systems": systems, "ratios": ratios, "goals": goals}


def judged(systems: Mapping[str, Any]) -> tuple[dict[str, float | None], dict[str, dict[str, Any]]]:
    """Ratios and goals of the reports by name.

    The goal beside the hostile request is missed too where that request was refused: then nothing hostile ran.
    """
    control, hostile = systems[f"{HALF:g}x"], systems["hostile"]
    worst = {name: found["ttft_p99_over_slo"] for name, found in systems.items()}
    late = {name: found["client_late_ms"]["p50"] for name, found in systems.items() if found["client_late_ms"]}
    told = {name: found["refused_ms"]["p99"] for name, found in systems.items() if found["refused_ms"]}
    failed = {name: found["failed"] for name, found in systems.items() if name != "hostile"}
    harmed = hostile["failed"] + hostile["refused"]
    goals = {
        "ttft_p99_over_slo": _goal(GOAL_SLO, worst, all(ratio is not None and ratio <= GOAL_SLO for ratio in worst.values())),
        "refused_p99_ms": _goal(GOAL_REFUSED_MS, told, bool(told) and all(value <= GOAL_REFUSED_MS for value in told.values())),
        "failed": _goal(0, failed, not any(failed.values())),
        "refused_at_half_load": _goal(0, control["refused"], control["refused"] == 0),
        "failed_or_refused_beside_a_hostile_request": _goal(0, harmed, harmed == 0 and hostile.get("answer") != REFUSED),
        "client_late_p50_ms": _goal(GOAL_LATE_MS, late, bool(late) and all(value <= GOAL_LATE_MS for value in late.values())),
    }
    medians = [found["ttft_ms"]["p50"] if found["ttft_ms"] else None for found in (hostile, control)]
    ratios = {f"ttft_p99_over_slo_{name}": value for name, value in worst.items()}
    return ratios | {"ttft_p50_hostile_over_half_load": over(*medians)}, goals


def _goal(goal: float, measured: Any, met: bool) -> dict[str, Any]:
    return {"goal": goal, "measured": measured, "met": met}


async def _closed(client: httpx.AsyncClient, model: str, seconds: float, draw: Random) -> float:
    """Requests a second that are answered to twice ``SLOTS`` clients, each with one request open."""
    end_s, answered = time.monotonic() + seconds, 0

    async def ask_again() -> None:
        nonlocal answered
        while time.monotonic() < end_s:
            found = await _ask(client, model, draw)
            answered += found.status == 200
            await asyncio.sleep(found.retry_after_s or 0.0)

    began_s = time.monotonic()
    await asyncio.gather(*(ask_again() for _ in range(2 * SLOTS)))
    return answered / (time.monotonic() - began_s)


async def _open(client: httpx.AsyncClient, model: str, rate: float, seconds: float, draw: Random) -> list[Asked]:
    end_s, asked = time.monotonic() + seconds, list[asyncio.Task[Asked]]()
    due_s = time.monotonic()
    while (due_s := due_s + draw.expovariate(rate)) < end_s:
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        asked.append(asyncio.create_task(_ask(client, model, draw, due_s)))
    return list(await asyncio.gather(*asked))


async def _beside_hostile(
    client: httpx.AsyncClient, model: str, rate: float, seconds: float, draw: Random
) -> tuple[list[Asked], int | None]:
    """Chats at half the sustained rate, and one request for very many long choices. Returns the chats and the status of that request.

    The status is None if it was still being answered at the end. Raises `EngineError` if the server refused it as invalid: then nothing
    hostile ran.
    """
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "n": HOSTILE, "max_tokens": 400, "ignore_eos": True}
    hostile = asyncio.create_task(client.post("/v1/chat/completions", json=body))
    asked = await _open(client, model, HALF * rate, seconds, draw)
    status = hostile.result().status_code if hostile.done() else None
    hostile.cancel()
    with suppress(asyncio.CancelledError, httpx.HTTPError):
        await hostile
    if status not in (None, 200, REFUSED):
        raise EngineError(f"the hostile request was answered {status}; change it to one that the server takes")
    return asked, status


async def _ask(client: httpx.AsyncClient, model: str, draw: Random, due_s: float | None = None) -> Asked:
    text = " ".join(draw.choice(("peace", "nation", "world", "people", "year", "work")) for _ in range(WORDS))
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": TOKENS, "stream": True, "ignore_eos": True}
    began_s, first_s = time.monotonic(), 0.0
    late_s = began_s - due_s if due_s is not None else 0.0
    try:
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                if not first_s and '"content":"' in line and '"content":""' not in line:
                    first_s = time.monotonic() - began_s
            retry = answer.headers.get("retry-after")
            status = answer.status_code if first_s or answer.status_code != 200 else 0
            return Asked(status, first_s or time.monotonic() - began_s, late_s, float(retry) if retry else None)
    except httpx.HTTPError:
        return Asked(0, time.monotonic() - began_s, late_s)


def report(asked: list[Asked], slo_ms: float) -> dict[str, Any]:
    """One load as its client saw it. ``failed``: neither let in nor refused."""
    let_in, refused = ([one for one in asked if one.status == status] for status in (200, REFUSED))
    ttft = _percentiles([one.seconds for one in let_in])
    return {
        "asked": len(asked),
        "let_in": len(let_in),
        "refused": len(refused),
        "failed": len(asked) - len(let_in) - len(refused),
        "ttft_ms": ttft,
        "ttft_p99_over_slo": round(ttft["p99"] / slo_ms, 3) if ttft else None,
        "refused_ms": _percentiles([one.seconds for one in refused]),
        "retry_after_s": sorted({one.retry_after_s for one in refused if one.retry_after_s is not None}),
        "without_retry_after": sum(one.retry_after_s is None for one in refused),
        "client_late_ms": _percentiles([one.late_s for one in asked]),
    }


def _percentiles(seconds: list[float]) -> dict[str, float]:
    return {f"p{part}": round(1000 * percentile(seconds, part / 100), 1) for part in (50, 90, 99)} if seconds else {}
