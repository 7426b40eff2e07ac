"""Whether a signal ends the step that it is meant for, and after how long."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from harvester.engine.frontend.engine import TokenEngine
from harvester.engine.shared.state import Count, SharedState
from harvester.engine.verify.ask import busy

STREAMS, ANSWER_TOKENS = 8, 4
PAUSE_S = (0.01, 0.12)
LOOK_S = 0.0005
STEPS_AFTER = 3  # two may be in flight: once so many more were answered, the step that was asked to end is over
ANSWER_S = 10.0


@dataclass(slots=True)
class Signals:
    """How many steps were asked to end; for those that did, seconds from the signal to the end of the step.

    ``short``: how often the running step could end early, and took less time than one that gets a signal.
    """

    asked: int = 0
    detect_s: list[float] = field(default_factory=list)
    short: int = 0

    @property
    def ended(self) -> int:
        return len(self.detect_s)


def end_running_step(shared: SharedState, min_s: float = 0.0) -> bool:
    """Ask the running step to end. False if none runs that may end early, it takes less than ``min_s``, or more than half of it is over:
    then it may end by itself first."""
    now_s, steps = time.monotonic(), shared.in_flight()
    step = next(iter(steps), None)
    if step is None or not step.endable or step.estimate_s < min_s:
        return False
    if step.estimate_s > 0.0 and step.began_s is not None and now_s - step.began_s > step.estimate_s / 2:
        return False
    shared.ask_to_end(step.number, now_s)
    return True


def _is_short(shared: SharedState, min_s: float) -> bool:
    step = next(iter(shared.in_flight()), None)
    return step is not None and step.endable and 0.0 < step.estimate_s < min_s


async def signals(
    llm: TokenEngine, shared: SharedState, count: int, max_s: float, stop: Callable[[], bool] = lambda: False, min_s: float = 0.0
) -> Signals:
    """``count`` signals at random moments of full steps of offline work, or as many as ``max_s`` allows.

    ``stop``: checked between two signals; ``min_s``: shorter steps get no signal.
    """
    limits, rng, found = llm.sizes, random.Random(1), Signals()
    prompt_tokens = max(16, min(limits.step_tokens * 2, limits.context_tokens - ANSWER_TOKENS - 1))
    until_s = time.monotonic() + max_s
    async with busy(llm, min(STREAMS, limits.max_seqs), prompt_tokens, ANSWER_TOKENS, "signals"):
        while found.asked < count and time.monotonic() < until_s and not stop():
            await asyncio.sleep(rng.uniform(*PAUSE_S))
            await _one(shared, found, min_s)
    return found


async def _one(shared: SharedState, found: Signals, min_s: float) -> None:
    detected, seconds, steps = shared.count(Count.DETECTED), shared.count(Count.DETECT_S), shared.count(Count.STEPS)
    if not end_running_step(shared, min_s):
        found.short += _is_short(shared, min_s)
        return
    found.asked += 1
    until_s = time.monotonic() + ANSWER_S

    def is_over() -> bool:
        return shared.count(Count.DETECTED) > detected or shared.count(Count.STEPS) >= steps + STEPS_AFTER

    while not is_over() and time.monotonic() < until_s:  # noqa: ASYNC110  # another process writes it
        await asyncio.sleep(LOOK_S)
    if shared.count(Count.DETECTED) > detected:
        found.detect_s.append(shared.count(Count.DETECT_S) - seconds)
