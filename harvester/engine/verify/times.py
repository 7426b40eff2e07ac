"""Whether the engine's step times are right: against its own predictions, and their sum against the clock on the wall."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from harvester.engine.frontend.engine import TokenEngine
from harvester.engine.launch import profiler
from harvester.engine.shared.state import Count, SharedState
from harvester.engine.verify.ask import busy

STREAMS, ANSWER_TOKENS = 8, 32
STEPS = 20  # least steps in a stretch, which is extended for them
MAX_FACTOR = 4  # a stretch is extended to at most so many times its length


@dataclass(frozen=True, slots=True)
class Times:
    """``ratio_p50``, ``ratio_p99``: actual over predicted step time, None if too few steps were predicted. ``sum_over_wall``: sum of all
    step times in a stretch without a pause, over its wall time."""

    ratio_p50: float | None
    ratio_p99: float | None
    sum_over_wall: float


async def times(llm: TokenEngine, shared: SharedState, learn_s: float, stretch_s: float) -> Times:
    """Let the engine learn for about ``learn_s``, then keep it busy for ``stretch_s``. Raises `EngineError` where it does not answer."""
    await profiler.profile(llm, shared, learn_s, short=True)
    sum_over_wall, _ = await sum_of_steps(llm, shared, stretch_s)
    return Times(*error(shared), sum_over_wall)


def error(shared: SharedState) -> tuple[float | None, float | None]:
    """Actual over predicted time of the last steps, p50 and p99. Both are exactly 1 before any were predicted."""
    p50, p99 = shared.count(Count.ERROR_P50), shared.count(Count.ERROR_P99)
    return (None, None) if p99 == 0.0 or p50 == p99 == 1.0 else (p50, p99)


async def sum_of_steps(llm: TokenEngine, shared: SharedState, stretch_s: float) -> tuple[float, int]:
    """Time in steps over wall time, for a stretch in which there is always work; and how many steps it had.

    A step counts when it ends, so that each end of the stretch is put at the end of a step.
    """
    limits = llm.sizes
    prompt_tokens = max(16, min(limits.step_tokens, limits.context_tokens - ANSWER_TOKENS - 1))
    async with busy(llm, min(STREAMS, limits.max_seqs), prompt_tokens, ANSWER_TOKENS, "stretch"):
        await _end_of_step(shared, stretch_s)
        began_s, busy_s, steps = time.monotonic(), shared.count(Count.BUSY_S), shared.count(Count.STEPS)
        await asyncio.sleep(stretch_s)
        while shared.count(Count.STEPS) < steps + STEPS and time.monotonic() < began_s + MAX_FACTOR * stretch_s:
            await _end_of_step(shared, stretch_s)
        await _end_of_step(shared, stretch_s)
        wall_s = time.monotonic() - began_s
        return (shared.count(Count.BUSY_S) - busy_s) / wall_s, int(shared.count(Count.STEPS) - steps)


async def _end_of_step(shared: SharedState, max_s: float) -> None:
    steps, until_s = shared.count(Count.STEPS), time.monotonic() + max_s
    while shared.count(Count.STEPS) == steps and time.monotonic() < until_s:  # noqa: ASYNC110  # another process writes it
        await asyncio.sleep(0.0005)
