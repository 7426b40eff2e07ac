"""Measures a running engine: sends offline requests of every shape, and the engine core learns from their steps (ConServe 4.5)."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from harvester.engine.frontend.engine import TokenEngine
from harvester.engine.shared.state import Count, Field, SharedState
from harvester.errors import EngineError, UsageError
from jobs.hint import JOB_ARG, PROFILE

FULL_S, SHORT_S = 40.0, 8.0
SAVE_WAIT_S = 20.0
IDLE_S, LOOK_S = 3.0, 0.25  # so that work on its way when the engine is ready does not meet probes
DECODED = 12  # output tokens of a probe of decoding


@dataclass(frozen=True, slots=True)
class Probe:
    """``requests`` requests at once, with prompts of ``prompt`` tokens and answers of ``answer`` tokens."""

    requests: int
    prompt: int
    answer: int


def probes(max_tokens: int, max_seqs: int, context: int) -> Iterator[Probe]:
    """One round: prompts up to a full step, then decoding at every batch size, short and long contexts. The first are the most telling."""
    top = min(max_tokens, context - DECODED - 1)
    sizes = [size for size in (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192) if size < top]
    batches = [size for size in (1, 2, 4, 8, 16, 32, 64, 128, 256) if size < max_seqs]
    long = [size for size in (512, 2048, 6000) if size + DECODED < context]
    for size in (*sizes, top):
        yield Probe(1, size, 1)
    for batch in (*batches, max_seqs):
        yield Probe(batch, 24, DECODED)
    for size, batch in itertools.product(long, (1, min(4, max_seqs))):
        yield Probe(batch, size, DECODED)


async def profile(llm: TokenEngine, shared: SharedState, seconds: float, *, short: bool = False) -> dict[str, Any]:
    """Run rounds of probes for about ``seconds``, have the profile written, and return what is known then.

    Chat goes first all the while. The ``short`` form copies no KV, and ends as soon as there is other work, whose steps tell as much.
    Raises `EngineError` where the engine core does not answer.
    """
    sizes = llm.sizes
    one_round = list(probes(sizes.step_tokens, sizes.max_seqs, sizes.context_tokens))
    rng = random.Random(0)
    began_s, steps = time.monotonic(), shared.count(Count.STEPS)
    done = 0
    for probe in itertools.cycle(one_round):
        if time.monotonic() - began_s > seconds or (short and llm.has_work()):
            break
        await _run(llm, probe, rng, f"profile-{done}")
        done += 1
    copies = [] if short else await llm.on_workers("kv_copy")
    await _save(llm, shared, rng)
    return {
        "seconds": round(time.monotonic() - began_s, 1),
        "probes": done,
        "steps": int(shared.count(Count.STEPS) - steps),
        "ready": bool(shared[Field.READY]),
        "ratio_p50": shared.count(Count.ERROR_P50),
        "ratio_p99": shared.count(Count.ERROR_P99),
        "kv_copy": copies[0] if copies else None,
    }


async def _run(llm: TokenEngine, probe: Probe, rng: random.Random, name: str) -> None:
    """Prompts are random, so that none is found in the prefix cache."""
    vocabulary = llm.sizes.vocabulary

    async def one(number: int) -> None:
        ids = [rng.randrange(vocabulary // 2, vocabulary) for _ in range(probe.prompt)]
        await llm.complete(f"{name}-{number}", ids, max_tokens=probe.answer, extra={JOB_ARG: PROFILE}, sampling={"ignore_eos": True})

    await asyncio.gather(*(one(number) for number in range(probe.requests)))


async def _save(llm: TokenEngine, shared: SharedState, rng: random.Random) -> None:
    wish = shared[Field.SAVE_PROFILE] + 1
    shared[Field.SAVE_PROFILE] = wish
    end_s = time.monotonic() + SAVE_WAIT_S
    while shared[Field.SAVED_PROFILE] < wish:
        if time.monotonic() > end_s:
            raise EngineError("the engine core did not write the profile; see its log")
        await _run(llm, Probe(1, 16, 2), rng, f"save-{time.monotonic_ns()}")  # the engine core looks for the request after a step


async def profile_when_absent(llm: TokenEngine, shared: SharedState, known: bool) -> None:
    """Run the short form while a new engine that has no profile yet is idle; go on later if other work interrupts it. Never raises;
    cancelled with its task."""
    left_s = 0.0 if known else SHORT_S
    with suppress(EngineError, UsageError):
        while left_s > 0.0:
            await idle(llm)
            began_s = time.monotonic()
            await profile(llm, shared, left_s, short=True)
            left_s -= time.monotonic() - began_s


async def idle(llm: TokenEngine) -> None:
    """Wait until no request was seen for `IDLE_S`."""
    looks = 0
    while looks * LOOK_S < IDLE_S:
        await asyncio.sleep(LOOK_S)
        looks = 0 if llm.has_work() else looks + 1
