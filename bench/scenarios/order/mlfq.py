"""Scenario ``mlfq``: the order among online requests at rising load: latency for each output token (FastServe 6.3, Fig. 14).

All run on harvester with no offline work and few slots, so that requests wait for each other; only the order differs. Lengths are those
of real chats, since an order can only win where they differ. Nobody is refused for having to wait: that is what is compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bench.harness.compare import over
from bench.harness.knobs import Knobs, described, knobs, set_up
from bench.harness.load.arrivals import Arrival, drawn, read_lengths
from bench.harness.load.order_args import OrderArgs
from bench.harness.measure.latency import online_summary
from bench.harness.measure.rounds import in_turns, ratio_of_rounds, rounds_of, without
from bench.harness.measure.stretch import Stretch
from bench.harness.options import Options
from bench.scenarios.order.capacity import capacity_per_s
from bench.scenarios.order.one_engine import OneEngine, one_engine
from harvester.sim.measure import highest_rate

MOST = (2048, 256)
# An order shows in the slowest requests: they are waited for.
FULL = Knobs(seconds=30.0, slots=4, rate=1.0, step_tokens=1024, drain_s=180.0)
QUICK = Knobs(seconds=12.0, slots=4, rate=1.0, step_tokens=1024, window_s=4.0, drain_s=30.0)
PARTS, QUICK_PARTS = (0.5, 0.8, 1.1, 1.4, 1.8), (1.1,)  # of what the machine serves, times the knob `rate`
AT_ONCE, QUICK_AT_ONCE = 60, 24  # requests that measure the capacity
ORDERS = {"fcfs": "fcfs", "naive_mlfq": "naive_mlfq", "fixed_priority": "fixed", "skip_join_mlfq": "mlfq"}  # `schedule.online_order`
OURS = "skip_join_mlfq"
QUICK_ORDERS = ("fcfs", OURS)
ROUNDS, QUICK_ROUNDS = 2, 1
ANY_WAIT_S = 3600.0  # these orders go by no deadline
LATENCIES = (2, 5)  # times that of the lowest rate, at which rates are compared


def run(options: Options) -> dict[str, Any]:
    """``--set rounds=N``: of all orders under each load."""
    given = knobs(without("rounds", options), FULL, QUICK)
    parts, orders, at_once = (QUICK_PARTS, QUICK_ORDERS, QUICK_AT_ONCE) if options.quick else (PARTS, tuple(ORDERS), AT_ONCE)
    rounds = rounds_of(options.set, QUICK_ROUNDS if options.quick else ROUNDS)
    with set_up(options, given, 1.0) as place, one_engine(place, "mlfq", given, options.seed) as engine:
        capacity = _capacity(engine, at_once)
        lines = [_line(engine, part * given.rate, capacity, orders, rounds) for part in parts]
    ratios = {**lines[-1]["ratios"], **rates_at(lines)}
    about = described(given, place) | {"capacity_per_s": round(capacity, 4), "rounds": rounds}
    return about | {"systems": lines[-1]["systems"], "ratios": ratios, "spread": lines[-1]["spread"], "points": lines}


def _capacity(engine: OneEngine, count: int) -> float:
    """Requests a second, first come, first served."""
    many = drawn(1.0, 1.0, 10.0 * count, read_lengths(), engine.given.trace_scale, MOST, np.random.default_rng(engine.seed + 1))
    load = [_asked(replace(one, at_s=0.0), "fcfs") for one in many[:count]]
    return capacity_per_s(engine.play(load, 1.0, 600.0).requests, load, round(engine.given.slots))


def _line(engine: OneEngine, share: float, capacity: float, orders: Sequence[str], rounds: int) -> dict[str, Any]:
    """All orders under loads of one rate, ``share`` of the capacity: another load in each round, the same for all."""
    given, rate = engine.given, share * capacity
    loads = [
        drawn(rate, given.cv, given.seconds, read_lengths(), given.trace_scale, MOST, np.random.default_rng([engine.seed, number]))
        for number in range(rounds)
    ]

    def measure(order: str, number: int) -> Stretch:
        return engine.play([_asked(one, ORDERS[order]) for one in loads[number]], given.seconds, given.drain_s, order)

    found = in_turns(orders, rounds, measure)
    systems = {order: _together(stretches) for order, stretches in found.items()}
    rounds_ms = {order: system["rounds_normalized_ms"] for order, system in systems.items()}
    spread = {_name("mean", order): ratio_of_rounds(rounds_ms[OURS], theirs) for order, theirs in rounds_ms.items() if order != OURS}
    line = {"rate": round(rate, 4), "share_of_capacity": round(share, 4)}
    return line | {"systems": systems, "ratios": _ratios(systems), "spread": spread}


def _together(found: Sequence[Stretch]) -> dict[str, Any]:
    """The requests of all rounds, and the mean latency of each round."""
    every = [request for one in found for request in one.requests]
    counts = [one.summary(None) for one in found]
    means = [online_summary(one.requests)["normalized_ms"]["mean"] for one in found]
    sums = {name: sum(count[name] for count in counts) for name in ("cached_tokens", "preemptions")}
    return online_summary(every) | {"rounds_normalized_ms": means} | sums


def _asked(one: Arrival, order: str) -> Arrival:
    told = OrderArgs(order, one.output_tokens, 0, ANY_WAIT_S, ANY_WAIT_S)
    return replace(one, body={"max_tokens": MOST[1], "vllm_xargs": told.to_args()})


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
            if order != OURS:
                found[f"rate_at_{times}x_latency_{OURS}_over_{order}"] = over(borne[OURS], rate)
    return found


def _ratios(systems: dict[str, Any]) -> dict[str, float | None]:
    """Below 1: skip-join is faster."""
    ours = systems[OURS]["normalized_ms"]
    return {
        _name(kind, order): over(ours[kind], system["normalized_ms"][kind])
        for order, system in systems.items()
        if order != OURS
        for kind in ("mean", "p95")
    }


def _name(kind: str, order: str) -> str:
    return f"{kind}_normalized_{OURS}_over_{order}"
