"""EconoServe's figures 1, 9, 10 and 13: every model and dataset, what each system sustains, and all of them at one rate.

That rate is the one at which today's vLLM reaches `BOUND_S`: the paper's (28 requests a second on ShareGPT) is ten times what its KV
carries, and every system would only queue.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bench.papers.figures.scale import Scale
from bench.papers.loads import DATASETS, Dataset, Load, mean_lengths, mean_times
from bench.papers.machines import PAPER, TODAY, Setting
from bench.papers.measure import mean_of, over, rounded, sustained_rate
from bench.papers.systems import SYSTEMS

SETTINGS = PAPER | TODAY
BASE, CURVES_OF = "vllm", "opt-13b"
COMPARED = ("orca", "vllm_2023", "vllm", "sarathi", "distserve", "econoserve", "econoserve_oracle", "curve_shortest", "curve_oracle")
PARTS = ("econoserve_d", "econoserve_sd", "econoserve_sdo")
SCHEDULERS = ("srtf", "multires", "greedy_shortest", "curve", "curve_deadline", "curve_econoserve")
SHARES = (0.5, 0.75, 1.0, 1.25, 1.5)  # of vLLM's rate, at which the curves of figure 9 are read
TODAYS = ("vllm", "greedy_shortest", "curve", "curve_shortest", "curve_oracle")


def guess(dataset: Dataset, setting: Setting) -> float:
    """About the rate that the KV carries, by Little's law."""
    prompt, output = mean_lengths(dataset)
    seqs = min(setting.max_seqs, setting.kv_tokens / (prompt + output / 2))
    return seqs / (output * mean_times(dataset, setting)[1])


def cell(setting_name: str, dataset_name: str, scale: Scale) -> dict[str, Any]:
    """One model and dataset: ``rates`` at the bound, ``at`` vLLM's rate the figures of every system, ``points`` of figure 9."""
    setting, dataset = SETTINGS[setting_name], scale.dataset(DATASETS[dataset_name])
    names = TODAYS if setting_name in TODAY else (*COMPARED, *PARTS, *SCHEDULERS)
    load = Load(dataset, guess(dataset, setting))
    base = sustained_rate(SYSTEMS[BASE], load, setting, scale.seeds)
    at_base = replace(load, rate=base)
    rates = {name: sustained_rate(SYSTEMS[name], at_base, setting, scale.seeds) for name in names}
    found = {name: rounded(mean_of(SYSTEMS[name], at_base, setting, scale.seeds)) for name in names}
    points = {
        name: {
            f"{share:g}": round(mean_of(SYSTEMS[name], replace(load, rate=share * base), setting, scale.seeds).normalized_s, 4)
            for share in SHARES
        }
        for name in (COMPARED if scale.curves and setting_name == CURVES_OF else ())
    }
    return {
        "kv_tokens": setting.kv_tokens,
        "rates": {name: round(rate, 4) for name, rate in rates.items()},
        "rate_over_vllm": over(rates, BASE),
        "at_rate_of_vllm": found,
        "normalized_s_by_share_of_its_rate": points,
    }


def ratios(cells: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Of rates at the bound, OPT-13B: what the goals are about."""
    pairs = [("curve_shortest", base) for base in ("vllm", "orca", "curve_oracle")] + [
        ("econoserve", base) for base in ("vllm", "vllm_2023", "orca", "sarathi", "distserve", "econoserve_oracle")
    ]
    found: dict[str, float] = {}
    for dataset, cell in cells["opt-13b"].items():
        rates = cell["rates"]
        found |= {f"{dataset}_rate_{name}_over_{base}": round(rates[name] / rates[base], 3) for name, base in pairs}
    return found
