"""How far predictions of step times were off, by kind of step and by the kind of CUDA graph that it ran as."""

from __future__ import annotations

from typing import Any

from bench.harness.measure.latency import percentiles

# As `bench.gpu.engines.recording` writes it: when, prompt tokens, decodes, their context, predicted seconds, actual seconds.
Row = tuple[float, int, int, int, float | None, float]


def residuals(rows: list[Row], picked: dict[str, Any]) -> dict[str, Any]:
    """By ``KIND/GRAPH``: steps, actual over predicted, and the error as a share of the actual time."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row[4] is not None:
            groups.setdefault(f"{kind_of(row)}/{graph_of(row, picked)}", []).append(row)
    return {name: _figures(group) for name, group in sorted(groups.items())}


def kind_of(row: Row) -> str:
    return "mixed" if row[1] and row[2] else "prefill" if row[1] else "decode"


def graph_of(row: Row, picked: dict[str, Any]) -> str:
    """What vLLM runs a step as, by its mode and sizes: ``full``, ``piecewise`` or ``none``."""
    mode, sizes, tokens = str(picked["cudagraph_mode"]).upper(), picked["cudagraph_sizes"], row[1] + row[2]
    if not sizes or tokens > max(sizes) or mode.endswith("NONE"):
        return "none"
    if not row[1]:
        return "full" if "FULL" in mode else "piecewise"
    return "piecewise" if "PIECEWISE" in mode else "full" if mode.endswith("FULL") else "none"


def _figures(rows: list[Row]) -> dict[str, Any]:
    pairs = [(predicted, actual) for *_, predicted, actual in rows if predicted is not None]
    return {
        "steps": len(pairs),
        "step_ms": percentiles(1e3 * actual for _, actual in pairs),
        "ratio": percentiles(actual / max(1e-9, predicted) for predicted, actual in pairs),
        "error": percentiles(abs(predicted - actual) / actual for predicted, actual in pairs),
    }
