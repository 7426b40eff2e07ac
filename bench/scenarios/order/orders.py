"""Scenario ``orders``: every order among online requests at rising load on one engine: latency a token, SSR, and who starves.

Lengths are those of real chats with their long tail. KV and slots are few, so that requests wait for each other; there is no offline work.
The engine does not know an answer's length. Where an order predicts it, it is told with a log-normal error of `SIGMA`, as an outside
predictor would; ``sjf_by_quantiles`` uses what the brain has learned from earlier answers. Rates are shares of what the machine serves of
such requests when all are there at once. The SLO is EconoServe's: twice a prompt and each token of the answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import httpx
import numpy as np

from bench.harness.knobs import Knobs, described, knobs, set_up
from bench.harness.load.arrivals import Arrival, drawn, read_lengths
from bench.harness.load.order_args import OrderArgs
from bench.harness.measure.counters import total
from bench.harness.measure.latency import percentile
from bench.harness.measure.stretch import Stretch
from bench.harness.options import Options
from bench.scenarios.order.capacity import capacity_per_s
from bench.scenarios.order.one_engine import OneEngine, one_engine
from bench.scenarios.order.served import SLO_SCALE, Served, SloTimes, figures

MOST = (1024, 256)
MODEL_LEN = 2048
SIGMA = 0.25
FULL = Knobs(seconds=90.0, slots=16, step_tokens=1024, drain_s=180.0, kv_mib=96)
QUICK = replace(FULL, seconds=12.0, window_s=4.0, drain_s=30.0)
PARTS, QUICK_PARTS = (0.7, 0.9, 1.1, 1.3), (1.3,)  # of what the machine serves
AT_ONCE, QUICK_AT_ONCE = 96, 40  # requests that measure the capacity
ALONE, QUICK_ALONE = 16, 6  # requests that tell what a prompt takes alone
APART_S = 2.5


@dataclass(frozen=True, slots=True)
class System:
    order: str
    told: bool = True  # of lengths, from outside


SYSTEMS = {
    "fcfs": System("fcfs"),
    "mlfq": System("mlfq"),
    "sjf": System("sjf"),
    "edf": System("edf"),
    "econo": System("econo"),
    "sjf_by_quantiles": System("sjf", told=False),
}


def run(options: Options) -> dict[str, Any]:
    given = knobs(options, FULL, QUICK)
    parts, at_once, alone_count = (QUICK_PARTS, QUICK_AT_ONCE, QUICK_ALONE) if options.quick else (PARTS, AT_ONCE, ALONE)
    with set_up(options, given, 1.0) as place, one_engine(place, "orders", given, options.seed, max_model_len=MODEL_LEN) as engine:
        prompt_s = measured_prompt_s(engine, alone_count)
        capacity, token_s = measured_full(engine, at_once)
        times = SloTimes(prompt_s, token_s)
        lines = [_line(engine, part * capacity, part, times) for part in parts]
        predicted = _predicted(engine.server.url)
    found = {"capacity_per_s": round(capacity, 4), "slo_times": asdict(times), "sigma": SIGMA}
    ratios = {f"{name}_over_fcfs": _over(system, lines[-1]["systems"]["fcfs"]) for name, system in lines[-1]["systems"].items()}
    return described(given, place) | found | {"predicted": predicted, "systems": lines[-1]["systems"], "ratios": ratios, "points": lines}


def measured_prompt_s(engine: OneEngine, count: int) -> float:
    """Mean time to the first token of requests so far apart that they do not meet."""
    load = [replace(one, at_s=APART_S * index) for index, one in enumerate(_drawn(engine, count))]
    requests = engine.play(load, APART_S * count, 60.0).requests
    return round(sum(one.ttft_ms for one in requests) / count / 1e3, 5)


def measured_full(engine: OneEngine, count: int) -> tuple[float, float]:
    """Requests a second, first come, first served, where ``count`` are there at once.

    And seconds of a token in such a batch: the median gap, as few gaps hold a prompt.
    """
    load = [replace(one, at_s=0.0) for one in _drawn(engine, count)]
    requests = engine.play(load, 1.0, 600.0).requests
    gap_ms = percentile((gap_ms for request in requests for _, gap_ms in request.gaps()), 50) or 0.0
    return capacity_per_s(requests, load, round(engine.given.slots)), round(gap_ms / 1e3, 5)


def _drawn(engine: OneEngine, count: int) -> list[Arrival]:
    """So many requests with the scenario's lengths."""
    load = drawn(1.0, 1.0, 10.0 * count, read_lengths(), engine.given.trace_scale, MOST, np.random.default_rng(engine.seed + 1))
    return [_asked(one, SYSTEMS["fcfs"], 1.0, SloTimes(1.0, 1.0)) for one in load[:count]]


def _line(engine: OneEngine, rate: float, part: float, times: SloTimes) -> dict[str, Any]:
    """Every system under one load."""
    given, generator = engine.given, np.random.default_rng(engine.seed)
    load = drawn(rate, given.cv, given.seconds, read_lengths(), given.trace_scale, MOST, generator)
    errors = np.exp(generator.normal(0.0, SIGMA, len(load))).tolist()
    systems: dict[str, Any] = {}
    for name, system in SYSTEMS.items():
        asked = [_asked(one, system, error, times) for one, error in zip(load, errors, strict=True)]
        found = engine.play(asked, given.seconds, given.drain_s, name)
        counts = found.summary(None)
        systems[name] = figures(_served(found, load), times) | {key: counts[key] for key in ("preemptions", "recomputed_share")}
    return {"rate": round(rate, 4), "share_of_capacity": part, "systems": systems}


def _asked(one: Arrival, system: System, error: float, times: SloTimes) -> Arrival:
    """The same request as it is sent to one system."""
    expected = max(1, round(one.output_tokens * error)) if system.told else 0
    told = OrderArgs(system.order, one.output_tokens, expected, SLO_SCALE * times.prompt_s, SLO_SCALE * times.token_s)
    return replace(one, body={"max_tokens": MOST[1], "vllm_xargs": told.to_args()})


def _served(found: Stretch, load: Sequence[Arrival]) -> list[Served]:
    return [
        Served(one.prompt_tokens, asked.output_tokens, one.ttft_ms / 1e3, one.seen_until_s - one.sent_s, one.ended)
        for one, asked in zip(found.requests, load, strict=True)
    ]


def _over(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, float]:
    """Below 1: faster than first come, first served."""
    return {kind: round(value / theirs["normalized_s"][kind], 3) for kind, value in ours["normalized_s"].items()}


def _predicted(url: str) -> dict[str, float]:
    """How well the brain's quantiles told lengths, by the server's own metrics."""
    text = httpx.get(f"{url}/metrics", timeout=60, trust_env=False).text
    answers, error = total(text, "harvester_predicted_answers_total"), total(text, "harvester_predicted_length_error")
    covered = {
        share: total(
            "\n".join(line for line in text.splitlines() if f'quantile="{share}"' in line), "harvester_predicted_answers_covered_total"
        )
        for share in ("0.5", "0.9")
    }
    shares = {f"within_{share}": round(count / answers, 3) if answers else math.nan for share, count in covered.items()}
    return {"answers": answers, "median_error_share": round(error, 3), **shares}
