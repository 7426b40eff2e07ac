"""Scenario ``routing``: chat over two replicas, by HAProxy's least connections and by Serve's proxies with the router by predicted TTFT.

Lengths are those of real chats: a long prompt keeps one replica busy while the other is free. On a CPU each replica has cores of its own.
No request is refused for a long wait. A rate at which the client sent late, or a request was refused, is not judged: the result says why,
and has no ratios for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bench.harness.compare import Load, over
from bench.harness.knobs import Knobs, described, knobs, set_up
from bench.harness.load.arrivals import drawn, read_lengths
from bench.harness.measure.latency import online_summary
from bench.harness.measure.rounds import in_turns, ratio_of_percentiles, rounds_of, without
from bench.harness.measure.stretch import Stretch, stretch
from bench.harness.options import Options
from bench.harness.servers.systems import Harvester, SystemSetup
from bench.scenarios.order.capacity import ANY_WAIT, capacity_per_s, check_none_refused, check_sent_in_time
from harvester.errors import EngineError

MOST = (1024, 256)  # longest prompt and answer, tokens
FULL = Knobs(seconds=60.0, slots=8, step_tokens=1024, drain_s=120.0)
QUICK = replace(FULL, seconds=12.0, window_s=4.0, drain_s=60.0)
SHARES, QUICK_SHARES = (0.4, 0.7), (0.6,)  # of what both replicas serve
AT_ONCE, QUICK_AT_ONCE = 96, 32  # requests that measure the capacity
ROUNDS, QUICK_ROUNDS = 2, 1
REPLICAS = 2
LEAST, PREDICTED = "least_connections", "predicted_ttft"
INGRESS = {LEAST: "haproxy", PREDICTED: "proxy"}


def run(options: Options) -> dict[str, Any]:
    """``--set rounds=N``: how often each ingress gets all loads, on a server of its own each time."""
    given = knobs(without("rounds", options), FULL, QUICK)
    shares, at_once = (QUICK_SHARES, QUICK_AT_ONCE) if options.quick else (SHARES, AT_ONCE)
    rounds = rounds_of(options.set, QUICK_ROUNDS if options.quick else ROUNDS)
    with set_up(options, given, 1.0) as place:
        capacity = _capacity(place, given, at_once, options.seed)

        def measure(name: str, number: int) -> list[Stretch]:
            loads = [_load(given, share * capacity, [options.seed, number]) for share in shares]
            return _measure(place, given, name, number, loads, options.seed)

        found = in_turns(tuple(INGRESS), rounds, measure)
    lines = [
        line(share, capacity, {name: [turn[at] for turn in turns] for name, turns in found.items()}) for at, share in enumerate(shares)
    ]
    about = described(given, place) | {"replicas": REPLICAS, "rounds": rounds, "capacity_per_s": round(capacity, 4)}
    return about | {name: lines[-1][name] for name in ("verdict", "systems", "ratios", "spread")} | {"points": lines}


def _server(place: SystemSetup, name: str, label: str) -> Harvester:
    return Harvester(place, label, ANY_WAIT | {"replicas": REPLICAS, "ingress": INGRESS[name]}, counts_work=False)


def _load(given: Knobs, rate: float, seed: int | list[int]) -> Load:
    return drawn(rate, given.cv, given.seconds, read_lengths(), given.trace_scale, MOST, np.random.default_rng(seed))


def _capacity(place: SystemSetup, given: Knobs, count: int, seed: int) -> float:
    """Requests a second that both replicas serve."""
    load = [replace(one, at_s=0.0) for one in _load(replace(given, seconds=10.0 * count), 1.0, seed + 1)[:count]]
    with _server(place, LEAST, "capacity") as server:
        played = stretch(server, place, load, 1.0, 1.0, seed=seed, offline=False, drain_s=600.0)
    return capacity_per_s(played.requests, load, REPLICAS * round(given.slots))


def _measure(place: SystemSetup, given: Knobs, name: str, number: int, loads: Sequence[Load], seed: int) -> list[Stretch]:
    with _server(place, name, f"{name}-{number}") as server:
        return [
            stretch(server, place, load, given.seconds, given.window_s, seed=seed, offline=False, drain_s=given.drain_s) for load in loads
        ]


def why_not_judged(found: Mapping[str, Sequence[Stretch]]) -> str | None:
    """Why the first tokens of these rounds say nothing about the ingress; None where they do."""
    try:
        for name, turns in found.items():
            for one in turns:
                check_none_refused(one, name)
                check_sent_in_time(one.requests, name)
    except EngineError as error:
        return error.message
    return None


def line(share: float, capacity: float, found: Mapping[str, Sequence[Stretch]]) -> dict[str, Any]:
    """All rounds of one rate. Ratios and spread are empty where it is not judged."""
    systems = {name: online_summary([request for one in turns for request in one.requests]) for name, turns in found.items()}
    about = {"rate": round(share * capacity, 4), "share_of_capacity": share, "systems": systems}
    reason = why_not_judged(found)
    if reason is not None:
        return about | {"verdict": f"not judged: {reason}", "ratios": {}, "spread": {}}
    ttfts = {name: [one.ttft_ms() for one in turns] for name, turns in found.items()}
    ratios = {
        f"{kind}_ttft_{PREDICTED}_over_{LEAST}": over(systems[PREDICTED]["ttft_ms"][kind], systems[LEAST]["ttft_ms"][kind])
        for kind in ("p50", "p99")
    }
    spread = {f"p99_ttft_{PREDICTED}_over_{LEAST}": ratio_of_percentiles(ttfts[PREDICTED], ttfts[LEAST], 99, 0)}
    return about | {"verdict": "judged", "ratios": ratios, "spread": spread}
