"""A picture of a result beside its JSON file: FILE.png for FILE.json.

Matplotlib draws. It is no dependency of harvester: without it there is no picture.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

COLOURS = ("#4477aa", "#ee6677", "#228833", "#aa3377", "#ccbb44", "#66ccee", "#777777")  # Paul Tol's bright ones: told apart by all eyes


def draw(result: Mapping[str, Any], file: Path) -> Path | None:
    """The picture written beside ``file``; None for a scenario that has none, and without Matplotlib."""
    maker = MAKERS.get(result["scenario"])
    if maker is None or find_spec("matplotlib") is None:
        return None
    picture = file.with_suffix(".png")
    _figure(maker, result).savefig(picture, dpi=120)
    return picture


def _figure(maker: Callable[[Any, Mapping[str, Any]], None], result: Mapping[str, Any]) -> Any:
    """A figure that needs no display and no global state of Matplotlib."""
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(11, 8), layout="constrained")
    maker(figure, result)
    machine = result["machine"]
    figure.suptitle(f"{result['scenario']}: {result['model']} on {machine['cpu']}, {machine['cores']} cores", fontsize=11)
    return figure


def _over_time(figure: Any, result: Mapping[str, Any]) -> None:
    """P99 TTFT and TPOT, and tokens per second, of each window (ConServe Fig. 5 and 6)."""
    rows = figure.subplots(3, 1, sharex=True)
    systems = {name: system for name, system in result["systems"].items() if system.get("windows")}
    for axis, key, label in zip(rows, ("ttft_p99_ms", "tpot_p99_ms", "total_tokens_per_s"), LABELS, strict=True):
        for colour, (name, system) in zip(COLOURS, systems.items(), strict=False):
            points = [(line["from_s"], line[key]) for line in system["windows"] if line[key] is not None]
            axis.plot(*zip(*points, strict=True), color=colour, label=name, marker=".") if points else None
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
    for axis, key in zip(rows, ("ttft_ms", "tpot_ms"), strict=False):
        axis.set_yscale("log")
        slo = result["systems"]["online_only"]["slo"]
        axis.axhline(slo[key], color="red", linewidth=1, linestyle="--", label="SLO")
    rows[-1].set_xlabel("seconds")
    rows[0].legend(ncols=5, fontsize=8)


LABELS = ("TTFT P99, ms", "TPOT P99, ms", "all tokens/s")
PANELS = (("ttft_ms", LABELS[0]), ("tpot_ms", LABELS[1]), ("offline_tokens_per_s", "offline tokens/s"))


def _points(figure: Any, result: Mapping[str, Any]) -> None:
    """The same over CV at the base rate, and over the rate at the base CV (ConServe Fig. 7)."""
    base = result["points"][0]
    grid = figure.subplots(3, 2, sharex="col", squeeze=False)
    for column, (key, fixed) in enumerate((("cv", "rate"), ("rate", "cv"))):
        lines = sorted((line for line in result["points"] if line[fixed] == base[fixed]), key=lambda line: float(line[key]))
        for row, (kind, label) in enumerate(PANELS):
            _lines(grid[row][column], [line[key] for line in lines], lines, kind, "p99")
            grid[row][column].set_ylabel(label)
        grid[-1][column].set_xlabel({"cv": "coefficient of variation", "rate": "online requests/s"}[key])
    grid[0][0].legend(fontsize=8)


def _orders(figure: Any, result: Mapping[str, Any]) -> None:
    """Mean and P95 of normalized latency over the rate (FastServe 6.2)."""
    axes = figure.subplots(1, 2)
    lines = result["points"]
    for axis, kind in zip(axes, ("mean", "p95"), strict=True):
        _lines(axis, [line["rate"] for line in lines], lines, "normalized_ms", kind)
        axis.set_xlabel("online requests/s")
        axis.set_ylabel(f"{kind} latency, ms for each output token")
    axes[0].legend(fontsize=8)


def _lines(axis: Any, places: Sequence[float], lines: Sequence[Mapping[str, Any]], kind: str, part: str) -> None:
    for colour, name in zip(COLOURS, lines[0]["systems"], strict=False):
        values = [line["systems"][name][kind] for line in lines]
        axis.plot(places, [value[part] if isinstance(value, dict) else value for value in values], color=colour, label=name, marker="o")
    if kind != "offline_tokens_per_s":
        axis.set_yscale("log")
    axis.grid(alpha=0.3)


def _bars(figure: Any, result: Mapping[str, Any]) -> None:
    """P99 TTFT and offline tokens per second of each variant (ConServe Fig. 8)."""
    axes = figure.subplots(2, 1, sharex=True)
    systems = result["systems"]
    axes[0].bar(list(systems), [system["ttft_ms"]["p99"] or 0.0 for system in systems.values()], color=COLOURS[0])
    axes[1].bar(list(systems), [system["offline_tokens_per_s"] for system in systems.values()], color=COLOURS[2])
    for axis, label in zip(axes, ("TTFT P99, ms", "offline tokens/s"), strict=True):
        axis.set_ylabel(label)
        axis.grid(alpha=0.3, axis="y")


MAKERS: dict[str, Callable[[Any, Mapping[str, Any]], None]] = {
    "coserve": _over_time,
    "phases": _over_time,
    "cycle": _over_time,
    "burst": _points,
    "ablation": _bars,
    "mlfq": _orders,
}
