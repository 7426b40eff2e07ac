"""Scenario ``admission``: how much offline work an engine with little KV does, by the rule that admits its rows.

- worst: a row is counted with its prompt and its longest allowed answer.
- expected: rows are counted with what they will hold together by the job's median answer.
- greedy: vLLM's own; a row is admitted while its prompt fits.

First on simulated GPUs. Then on this machine, one engine after the other in turns: there stock vLLM itself is the greedy one.
"""

from __future__ import annotations

import sys
from typing import Any

from bench.harness.options import Options
from bench.scenarios.admission.real import measure
from bench.scenarios.admission.simulated import CASES, run_case

GOALS = {"short_1024": 1.8, "short_4096": 6.0, "real": 1.5, "beside_chat_short_4096": 1.4}
OF_GREEDY = 0.2  # of what greedy admission computes again


def run(options: Options) -> dict[str, Any]:
    """``--seconds``: of each real engine in a round; ``--set rounds=N``: how many."""
    cases = {}
    for name, case in CASES.items():
        cases[name] = run_case(case, options.quick, options.seed)
        print(f"{name}: { ({rule: round(one['rows_per_s'], 3) for rule, one in cases[name].items()}) }", file=sys.stderr)
    real = measure(options)
    ratios = {name: ratios_of(case) for name, case in cases.items()}
    return {
        "model": real["model"],
        "engine": real["engine"],
        "systems": real["systems"],
        "tokens_identical": real["tokens_identical"],
        "simulated": cases,
        "ratios": ratios | {"real": real["ratios"]},
        "goals": goals_of(ratios | {"real": real["ratios"]}),
    }


def ratios_of(systems: dict[str, Any]) -> dict[str, float | None]:
    """Of `expected` and `greedy` over `worst`; what is computed again, over greedy; TTFT of chat over chat alone."""
    worst, ours, greedy = (systems[name] for name in ("worst", "expected", "greedy"))
    found: dict[str, float | None] = {}
    for name, one in (("expected", ours), ("greedy", greedy)):
        for figure in ("rows_per_s", "offline_tokens_per_s"):
            found[f"{figure}_{name}_over_worst"] = _over(one[figure], worst[figure])
        found[f"rows_per_s_from_the_start_{name}_over_worst"] = _over(*(each["from_the_start"]["rows_per_s"] for each in (one, worst)))
    found["recomputed_expected_over_greedy"] = _over(ours["recomputed_share"], greedy["recomputed_share"])
    if "chat_alone" in systems:
        for name in ("worst", "expected", "greedy"):
            found[f"ttft_p99_{name}_over_alone"] = _over(systems[name]["ttft_p99_s"], systems["chat_alone"]["ttft_p99_s"])
    return found


def goals_of(ratios: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Throughput over the worst case, and what is computed again over greedy; beside chat, P99 TTFT no worse than with the worst case."""
    goals: dict[str, Any] = {}
    for name, least in GOALS.items():
        figure = "rows_per_s_expected_over_worst" if name.startswith("beside") else "offline_tokens_per_s_expected_over_worst"
        found = ratios[name][figure]
        goals[f"{name}_{figure}"] = {"goal": least, "measured": found, "met": found is not None and found >= least}
        again = ratios[name]["recomputed_expected_over_greedy"]
        if not name.startswith("beside"):  # beside chat its reserve keeps greedy from filling the KV
            less = again is not None and again <= OF_GREEDY
            goals[f"{name}_recomputed_over_greedy"] = {"goal": OF_GREEDY, "measured": again, "met": less}
    beside = ratios["beside_chat_short_4096"]
    ours, worst = beside["ttft_p99_expected_over_alone"], beside["ttft_p99_worst_over_alone"]
    goals["beside_chat_ttft_p99"] = {"goal": worst, "measured": ours, "met": ours <= 1.02 * worst}
    return goals


def _over(one: float, other: float) -> float | None:
    return round(one / other, 3) if other else None
