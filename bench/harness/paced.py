"""The pace of chat: a given rate, or a share of the engine's capacity for chat alone, which is measured first.

The same rate is a quarter of one machine's capacity and four fifths of another's, where every ratio is near 1 and says little.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.harness.compare import Comparison, Load, lead, offline_beside, play_all
from bench.harness.load.arrivals import Arrival
from bench.harness.measure import counters
from bench.harness.measure.prices import Capacity, capacity_of
from bench.harness.measure.steps import Ran
from bench.harness.measure.stretch import Span, Stretch, stretch
from bench.harness.options import Options
from bench.harness.servers.systems import Stock
from harvester.errors import EngineError, UsageError

SHARES, QUICK_SHARES = (0.25, 0.5), (0.25,)
BACKLOG = 8  # chats for each slot, sent at once to measure an engine
MEASURE_SEED = 500  # added to the load's seed: none of its prompts may be in the prefix cache
CHAT = ("share", "rate", "share_drawn", "capacity")
EMPTY_S = 60.0
TRIES = 20
LEAST_RATE = 1e-4

Make = Callable[[float], Sequence[Load]]  # the loads of a scenario at a rate; the lengths of the first define the capacity


@dataclass(frozen=True, slots=True)
class Pace:
    """A rate in chats a second, or shares of what the engine can do, each a point of the result."""

    rate: float | None
    shares: tuple[float, ...]

    @classmethod
    def of(cls, options: Options, shares: tuple[float, ...] = SHARES, quick: tuple[float, ...] = QUICK_SHARES) -> Pace:
        """What the user wants, or the scenario's shares. Raises `UsageError` for a rate beside shares, and for no share."""
        rate = options.rate if options.rate is not None else options.set.get("rate")
        if rate is not None and (options.shares or (options.rate is not None and "rate" in options.set)):
            raise UsageError("chat has one pace: give --rate, or --share, or --set rate=N")
        if rate is not None and rate <= 0:
            raise UsageError(f"--rate {rate:g}: give a number above 0")
        for share in options.shares:
            if not 0.0 < share < 1.0:
                raise UsageError(f"--share {share:g}: give a number between 0 and 1, such as 0.25")
        return cls(rate, () if rate is not None else options.shares or (quick if options.quick else shares))

    @property
    def points(self) -> int:
        return max(1, len(self.shares))


@dataclass(frozen=True, slots=True)
class Paced:
    """The loads at one pace. ``share`` and ``capacity`` are None where the rate was given; ``chat_s``: how long chat comes in a load."""

    share: float | None
    rate: float
    capacity: Capacity | None
    loads: Sequence[Load]
    chat_s: float

    def line(self) -> dict[str, Any]:
        """In a result. ``rate``: of the process that draws arrivals."""
        load, capacity = self.loads[0], self.capacity
        return {"rate": self.rate, **self.shares(1.0, load), "capacity": capacity.line(load) if capacity else None}

    def shares(self, part: float, load: Load) -> dict[str, float | None]:
        """A load at ``part`` of the rate, as a share of the capacity: as meant, and as its arrivals were drawn."""
        if self.share is None or self.capacity is None:
            return {"share": None, "share_drawn": None}
        return {"share": round(part * self.share, 4), "share_drawn": round(self.capacity.share_of(load, self.chat_s), 4)}


def first_of(points: Sequence[dict[str, Any]], pace: Pace) -> dict[str, Any]:
    """The part of a result that has a point for each share: the first one's figures at the top, all of them under ``shares``."""
    chat = {name: points[0][name] for name in CHAT}
    figures = {name: value for name, value in points[0].items() if name not in CHAT}
    return {"chat": chat, **figures, **({"shares": list(points)} if pace.rate is None else {})}


def paced_alone(
    comparison: Comparison, pace: Pace, make: Make, chat_s: float, *, offline_too: bool
) -> tuple[list[tuple[Paced, list[Stretch]]], Span | None]:
    """Stock vLLM, fcfs: its capacity if ``pace`` is in shares, then the loads at each pace, then offline work alone.

    ``chat_s``: how long chat comes in a load.
    """
    with Stock(comparison.setup, "online_only", concurrency=round(comparison.knobs.concurrency)) as server:
        if pace.rate is not None:
            chosen = [Paced(None, pace.rate, None, make(pace.rate), chat_s)]
        else:
            capacity = measured(comparison, server, make(comparison.knobs.rate)[0])
            chosen = [at_share(share, capacity, make, comparison.knobs.rate, chat_s) for share in pace.shares]
        for one in chosen:
            print(f"chat: {json.dumps(one.line())}", file=sys.stderr, flush=True)
        lead(comparison, server, chosen[0].loads, offline=False)
        found = [(one, play_all(comparison.point(k), server, one.loads, offline=False)) for k, one in enumerate(chosen)]
        return found, offline_beside(comparison, server) if offline_too else None


def at_share(share: float, capacity: Capacity, make: Make, rate: float, chat_s: float) -> Paced:
    """The rate at which the first load, as its arrivals are drawn, is nearest to ``share`` of the capacity; ``rate``: where to begin.

    A faster load has its arrivals nearer to each other, and more of them. Raises `EngineError` where no chat comes.
    """
    off: dict[float, float] = {}
    low, high = 0.0, math.inf
    for _ in range(TRIES):
        drawn = capacity.share_of(make(rate)[0], chat_s)
        off[rate] = abs(drawn - share)
        low, high = (rate, high) if drawn < share else (low, rate)
        rate = max(LEAST_RATE, round(2.0 * rate if math.isinf(high) else (low + high) / 2.0, 4))
    best = min(off, key=lambda one: off[one])
    if not make(best)[0]:
        raise EngineError(f"{share:g} of what the engine can do is no chat in so short a run; give it more --seconds, or set --rate")
    return Paced(share, best, capacity, make(best), chat_s)


def measured(comparison: Comparison, server: Stock, load: Load) -> Capacity:
    """Capacity of the engine for chat alone. Leaves the server idle.

    The engine gets many chats with the lengths of ``load`` at once, for `Knobs.measure_s`.
    """
    given, slots = comparison.knobs, round(comparison.knobs.slots)
    seed = comparison.seed + MEASURE_SEED
    backlog = backlog_of(load, BACKLOG * slots, np.random.default_rng(seed))
    seconds = given.measure_s
    found = stretch(server, comparison.setup, backlog, seconds, seconds, seed=seed, offline=False, drain_s=0.0)
    await_empty(server)
    return capacity_of(while_full(found, slots))


def backlog_of(load: Load, count: int, generator: np.random.Generator) -> list[Arrival]:
    """``count`` requests at once with the lengths of ``load``, shuffled and repeated as needed.

    Raises `EngineError` for an empty load.
    """
    if not load:
        raise EngineError("no chat comes in so short a run; give it more --seconds")
    order = [index for _ in range(-(-count // len(load))) for index in generator.permutation(len(load)).tolist()]
    return [Arrival(0.0, load[index].prompt_tokens, load[index].output_tokens) for index in order[:count]]


def while_full(found: Stretch, slots: int) -> list[Ran]:
    """The steps until fewer than ``slots`` requests were left: later ones do not show what an engine can do."""
    ends_s = sorted(request.seen_until_s for request in found.requests if request.ended)
    most = max(0, len(found.requests) - slots)
    if len(ends_s) <= most:
        return list(found.steps)
    end_s = found.samples[0].at_s + (ends_s[most - 1] if most else 0.0)
    return [step for step in found.steps if step.at_s <= end_s]


def await_empty(server: Stock) -> None:
    """Wait until the requests that were given up have left the engine. Raises `EngineError` where they do not."""
    end_s = time.monotonic() + EMPTY_S
    while counters.open_requests(server.url):
        if time.monotonic() > end_s:
            raise EngineError(f"{server.label} still computes chats that were given up {EMPTY_S:.0f} s ago")
        time.sleep(0.25)
