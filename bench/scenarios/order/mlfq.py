"""Scenario ``mlfq``: the order among online requests at rising load: latency for each output token (FastServe 6.3, Fig. 14).

All run on harvester with no offline work and few slots, so that requests wait for each other; only the order differs. Lengths are those
of real chats, since an order can only win where they differ. Nobody is refused for having to wait: that is what is compared.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from bench.harness.compare import Load, over
from bench.harness.knobs import Knobs, described, knobs, set_up
from bench.harness.load.arrivals import drawn, read_lengths
from bench.harness.measure.stretch import Stretch, stretch
from bench.harness.options import Options
from bench.harness.servers.systems import Harvester, SystemSetup
from bench.scenarios.order.capacity import ANY_WAIT, capacity_per_s, check_none_refused
from harvester.sim.measure import highest_rate

MOST = (2048, 256)
# An order shows in the slowest requests: they are waited for.
FULL = Knobs(seconds=90.0, slots=4, rate=1.0, step_tokens=1024, drain_s=180.0)
QUICK = Knobs(seconds=12.0, slots=4, rate=1.0, step_tokens=1024, window_s=4.0, drain_s=30.0)
PARTS, QUICK_PARTS = (0.5, 0.8, 1.1, 1.4), (1.1,)  # of what the machine serves, times the knob `rate`
AT_ONCE, QUICK_AT_ONCE = 60, 24  # requests that measure it
ORDERS = {"fcfs": "fcfs", "naive_mlfq": "naive_mlfq", "fixed_priority": "fixed", "skip_join_mlfq": "mlfq"}  # `schedule.online_order`
QUICK_ORDERS = ("fcfs", "skip_join_mlfq")
LATENCIES = (2, 5)  # times that of the lowest rate, at which rates are compared


def run(options: Options) -> dict[str, Any]:
    given = knobs(options, FULL, QUICK)
    lengths = read_lengths()
    parts, orders = (QUICK_PARTS, QUICK_ORDERS) if options.quick else (PARTS, tuple(ORDERS))
    with set_up(options, given, 1.0) as place:
        capacity = _capacity(place, given, QUICK_AT_ONCE if options.quick else AT_ONCE, options.seed)
        rates = [part * given.rate * capacity for part in parts]
        loads: list[Load] = [
            drawn(rate, given.cv, given.seconds, lengths, given.trace_scale, MOST, np.random.default_rng(options.seed)) for rate in rates
        ]
        found = {order: _measure(place, order, given, loads, options.seed) for order in orders}
        lines: list[dict[str, Any]] = []
        for index, (rate, part) in enumerate(zip(rates, parts, strict=True)):
            systems = {order: stretches[index].summary(None) for order, stretches in found.items()}
            share = round(part * given.rate, 4)
            lines.append({"rate": round(rate, 4), "share_of_capacity": share, "systems": systems, "ratios": _ratios(systems)})
        ratios = {**lines[-1]["ratios"], **rates_at(lines)}
        about = described(given, place) | {"capacity_per_s": round(capacity, 4)}
        return about | {"systems": lines[-1]["systems"], "ratios": ratios, "points": lines}


def _capacity(place: SystemSetup, given: Knobs, count: int, seed: int) -> float:
    """Requests a second, first come, first served."""
    many = drawn(1.0, 1.0, 10.0 * count, read_lengths(), given.trace_scale, MOST, np.random.default_rng(seed + 1))[:count]
    load = [replace(one, at_s=0.0) for one in many]
    with Harvester(place, "capacity", ANY_WAIT | {"schedule": {"online_order": "fcfs"}}) as server:
        played = stretch(server, place, load, 1.0, 1.0, seed=seed, offline=False, drain_s=600.0)
    return capacity_per_s(played.requests, load, round(given.slots))


def _measure(place: SystemSetup, order: str, given: Knobs, loads: list[Load], seed: int) -> list[Stretch]:
    """Each load in turn; the next begins when every answer of the one before it has ended, or the knob `drain_s` is over."""
    with Harvester(place, order, ANY_WAIT | {"schedule": {"online_order": ORDERS[order]}}) as server:
        found = [
            stretch(server, place, load, given.seconds, given.window_s, seed=seed, offline=False, drain_s=given.drain_s) for load in loads
        ]
    for one in found:
        check_none_refused(one, order)
    return found


def rates_at(lines: list[dict[str, Any]]) -> dict[str, float | None]:
    """Request rates that skip-join bears over those of each other order, at the same mean latency: so many times first come, first served
    at the lowest rate. Between two measured rates it is interpolated; None where one of both stays below it at all rates.
    """
    lowest = lines[0]["systems"]["fcfs"]["normalized_ms"]["mean"]
    found: dict[str, float | None] = {}
    for times in LATENCIES if lowest else ():
        borne: dict[str, float | None] = {}
        for order in lines[0]["systems"]:
            mean = {line["rate"]: float(line["systems"][order]["normalized_ms"]["mean"] or math.inf) for line in lines}
            crossed = max(mean.values()) > times * lowest
            borne[order] = highest_rate(mean.__getitem__, times * lowest, list(mean)) if crossed else None
        for order, rate in borne.items():
            if order != "skip_join_mlfq":
                found[f"rate_at_{times}x_latency_skip_join_mlfq_over_{order}"] = over(borne["skip_join_mlfq"], rate)
    return found


def _ratios(systems: dict[str, Any]) -> dict[str, float | None]:
    """Below 1: skip-join is faster."""
    ours = systems["skip_join_mlfq"]["normalized_ms"]
    return {
        f"{kind}_normalized_skip_join_mlfq_over_{name}": over(ours[kind], system["normalized_ms"][kind])
        for name, system in systems.items()
        if name != "skip_join_mlfq"
        for kind in ("mean", "p95")
    }
