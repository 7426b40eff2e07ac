"""Draw docs/images/promise.png, the picture of README, from bench/results/coserve.json. Needs Matplotlib.

    python tools/promise.py

The picture holds a digest of the figures in it, by which a test sees that it is not older than the result.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "bench" / "results" / "coserve.json"
PICTURE = ROOT / "docs" / "images" / "promise.png"
SYSTEMS = {"online_only": "chat alone\n", "vllm_priority": "vLLM priority\n+ batch job", "harvester": "harvester\n+ batch job"}
COLOURS = ("#777777", "#ee6677", "#228833")  # Paul Tol's bright scheme, safe for colour-blind eyes
BATCH = "#ccbb44"


def figures() -> dict[str, Any]:
    """For each system: P99 TTFT and P99 TPOT in ms, tokens per second of chat and of batch. And the SLO in ms."""
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    found = {name: result["systems"][name] for name in SYSTEMS}
    return {
        "ttft_ms": [system["ttft_ms"]["p99"] for system in found.values()],
        "tpot_ms": [system["tpot_ms"]["p99"] for system in found.values()],
        "chat": [system["online_tokens_per_s"] for system in found.values()],
        "batch": [system["offline_tokens_per_s"] for system in found.values()],
        "slo": {key: found["harvester"]["slo"][key] for key in ("ttft_ms", "tpot_ms")},
    }


def digest(drawn: dict[str, Any]) -> str:
    """Digest of the figures, as the picture's metadata has it."""
    return hashlib.sha256(json.dumps(drawn, sort_keys=True).encode()).hexdigest()


def draw(drawn: dict[str, Any]) -> None:
    """Two panels of latency with their SLO, one of throughput."""
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(11, 3.6), layout="constrained")
    ttft, tpot, tokens = figure.subplots(1, 3)
    places = range(len(SYSTEMS))
    for axis, key, title in ((ttft, "ttft_ms", "P99 time to first token"), (tpot, "tpot_ms", "P99 time per output token")):
        axis.bar(places, drawn[key], color=COLOURS)
        axis.axhline(drawn["slo"][key], color="black", linestyle="--", linewidth=1)
        _label(axis, f"{title} (SLO {drawn['slo'][key]:.0f} ms)", [f"{value:,.0f} ms" for value in drawn[key]])
    tokens.bar(places, drawn["chat"], color=COLOURS)
    batch = tokens.bar(places, drawn["batch"], bottom=drawn["chat"], color=BATCH, label="batch job")
    tokens.set_ylim(top=1.2 * max(map(sum, zip(drawn["chat"], drawn["batch"], strict=True))))  # room for the legend
    tokens.legend(handles=[batch], loc="upper left", frameon=False)
    _label(tokens, "tokens per second", [f"{sum(pair):,.0f}" for pair in zip(drawn["chat"], drawn["batch"], strict=True)])
    figure.savefig(PICTURE, dpi=120, metadata={"Source": digest(drawn), "Software": None})


def _label(axis: Any, title: str, values: list[str]) -> None:
    """The title, and under each bar its system and value."""
    axis.set_title(title, fontsize=11)
    axis.set_xticks(range(len(values)), [f"{name}\n{value}" for name, value in zip(SYSTEMS.values(), values, strict=True)])
    axis.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    draw(figures())
