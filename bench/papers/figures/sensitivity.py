"""EconoServe's figures 11, 12 and 15, and what its rates depend on: OPT-13B unless said, ShareGPT unless said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bench.papers.figures.econoserve import guess
from bench.papers.figures.scale import Scale
from bench.papers.loads import DATASETS, Load
from bench.papers.machines import PAPER, Setting
from bench.papers.measure import mean_of, rounded, sustained_rate
from bench.papers.systems import SYSTEMS

SHAREGPT = DATASETS["sharegpt"]
OPT = PAPER["opt-13b"]
USE = ("orca", "vllm", "sarathi", "distserve", "econoserve", "curve_shortest")
SHARES = (0.2, 0.35, 0.5, 0.65, 0.8)
GPU_SYSTEMS = ("econoserve", "vllm", "curve_shortest")
PAIRS, MOST_GPUS = 4, 16
SLO_SCALES = (0.5, 1.0, 1.5, 2.0, 2.5)
PADDINGS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
RESERVES = (0.0, 0.01, 0.02, 0.03, 0.04, 0.06)
BUFFERS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25)
KV_TIMES = (1.0, 2.0, 4.0, 10.0)
SSR_RATE, SSR_SECONDS, SSR_SEEDS = 3.0, 600.0, 12  # just past what the KV carries, where runs differ much
LENGTHS_S = (300.0, 900.0, 3600.0)
ERRORS = (0.25, 0.5, 1.0)


def utilization(setting_name: str, scale: Scale) -> dict[str, Any]:
    """Figure 11: shares of KV and of reachable FLOP/s in use, at shares of the rate that the KV carries."""
    setting, dataset = PAPER[setting_name], scale.dataset(SHAREGPT)
    carried = guess(dataset, setting)
    found: dict[str, Any] = {}
    for name in USE:
        runs = {share: mean_of(SYSTEMS[name], Load(dataset, share * carried), setting, scale.seeds) for share in SHARES}
        found[name] = {f"{share:g}": {"kv": round(run.kv, 3), "compute": round(run.compute, 3)} for share, run in runs.items()}
    return {"rate_carried": round(carried, 3), "systems": found}


def gpus(setting_name: str, scale: Scale) -> dict[str, Any]:
    """Figure 12: copies of the model that reach the goodput of DistServe on `PAIRS` pairs of them, at the rate of its highest goodput."""
    setting, dataset = PAPER[setting_name], scale.dataset(SHAREGPT)
    first = guess(dataset, setting)
    pair = max(
        (mean_of(SYSTEMS["distserve"], Load(dataset, share * first), setting, scale.seeds).goodput, share * first)
        for share in (0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)
    )
    goal, rate = PAIRS * pair[0], PAIRS * pair[1]
    needed = {name: _fewest(name, Load(dataset, rate), setting, scale, goal) for name in GPU_SYSTEMS}
    return {"rate": round(rate, 3), "goodput": round(goal, 3), "distserve": 2 * PAIRS, **needed}


def _fewest(name: str, load: Load, setting: Setting, scale: Scale, goodput: float) -> int | None:
    """Copies that share the load evenly and reach ``goodput`` together, found by bisection; None: more than `MOST_GPUS`."""

    def reached(count: int) -> bool:
        each = mean_of(SYSTEMS[name], replace(load, rate=load.rate / count), setting, scale.seeds)
        return count * each.goodput >= goodput

    if not reached(MOST_GPUS):
        return None
    few, enough = 0, MOST_GPUS
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (few, middle) if reached(middle) else (middle, enough)
    return enough


def factors(dataset_name: str, scale: Scale) -> dict[str, Any]:
    """Figure 15: EconoServe by SLO scale, padding, reserve and buffer, at the rate at which it reaches the bound."""
    dataset, system = scale.dataset(DATASETS[dataset_name]), SYSTEMS["econoserve"]
    load = Load(dataset, guess(dataset, OPT))
    load = replace(load, rate=sustained_rate(system, load, OPT, scale.seeds))

    def at(load: Load) -> dict[str, float]:
        found = rounded(mean_of(system, load, OPT, scale.seeds))
        return {name: found[name] for name in ("jct_s", "rate", "ssr", "kv", "preemptions")}

    return {
        "rate": round(load.rate, 3),
        "slo_scale": {f"{value:g}": at(replace(load, slo_scale=value)) for value in SLO_SCALES},
        "padding": {f"{value:g}": at(replace(load, padding=value)) for value in PADDINGS},
        "reserve": {f"{value:g}": at(replace(load, dataset=replace(dataset, reserve=value))) for value in RESERVES},
        "buffer": {f"{value:g}": at(replace(load, dataset=replace(dataset, buffer=value))) for value in BUFFERS},
    }


def goals(scale: Scale) -> dict[str, Any]:
    """Share of requests within their SLO at 3 requests a second, for ten minutes: the mean over seeds, the lowest and the highest."""
    load = Load(SHAREGPT.for_seconds(scale.seconds(SSR_SECONDS)), SSR_RATE)
    names = ("vllm", "vllm_2023", "sarathi", "curve", "curve_shortest", "curve_deadline", "curve_econoserve", "econoserve")
    seeds = range(1, SSR_SEEDS + 1)
    runs = {name: [SYSTEMS[name].simulate(replace(load, seed=seed), OPT).ssr for seed in seeds] for name in names}
    return {
        "rate": SSR_RATE,
        "ssr": {name: round(sum(found) / len(found), 3) for name, found in runs.items()},
        "spread": {name: {"from": round(min(found), 3), "to": round(max(found), 3)} for name, found in runs.items()},
    }


def causes(scale: Scale) -> dict[str, Any]:
    """The rates at the bound over vLLM's, when one thing is changed: more KV, longer overload, worse predictions."""
    dataset = scale.dataset(SHAREGPT)

    def ratio(name: str, load: Load, setting: Setting = OPT) -> float:
        load = replace(load, rate=guess(load.dataset, setting))
        base = sustained_rate(SYSTEMS["vllm"], load, setting, scale.seeds)
        return round(sustained_rate(SYSTEMS[name], replace(load, rate=base), setting, scale.seeds) / base, 3)

    load = Load(dataset, 1.0)
    kv = {f"{times:g}": replace(OPT, kv_bytes=times * OPT.kv_bytes) for times in KV_TIMES}
    return {
        "econoserve_by_times_the_kv": {times: ratio("econoserve", load, setting) for times, setting in kv.items()},
        "curve_shortest_by_times_the_kv": {times: ratio("curve_shortest", load, setting) for times, setting in kv.items()},
        "curve_shortest_by_seconds_of_load": {
            f"{seconds:g}": ratio("curve_shortest", replace(load, dataset=SHAREGPT.for_seconds(scale.seconds(seconds))))
            for seconds in LENGTHS_S
        },
        "curve_shortest_by_prediction_error": {f"{error:g}": ratio("curve_shortest", replace(load, error=error)) for error in ERRORS},
    }
