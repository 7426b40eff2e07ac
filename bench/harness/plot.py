"""A picture of a result beside its JSON file: FILE.png, and FILE.html with the same picture and the figures in tables.

Matplotlib draws. It is no dependency of harvester: without it the page has the tables alone.
"""

from __future__ import annotations

import html
import importlib
import io
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

COLOURS = ("#4477aa", "#ee6677", "#228833", "#aa3377", "#ccbb44", "#66ccee", "#777777")  # Paul Tol's bright ones: told apart by all eyes
FIGURES = ("p50", "p90", "p99")
STYLE = "body{font:15px sans-serif;margin:2em;max-width:72em}table{border-collapse:collapse;margin:1em 0}"
STYLE += "td,th{padding:.2em .7em;text-align:right}"
STYLE += "th:first-child,td:first-child{text-align:left}tr:nth-child(even){background:#f3f3f3}svg{max-width:100%;height:auto}"


def draw(result: Mapping[str, Any], file: Path) -> list[Path]:
    """What was written beside ``file``; nothing for a scenario that has no picture."""
    maker = MAKERS.get(result["scenario"])
    if maker is None:
        return []
    written: list[Path] = []
    picture = ""
    if find_spec("matplotlib") is not None:
        figure = _figure(maker, result)
        written.append(file.with_suffix(".png"))
        figure.savefig(written[0], dpi=120)
        svg = io.StringIO()
        figure.savefig(svg, format="svg")
        picture = svg.getvalue()[svg.getvalue().index("<svg") :]
    page = file.with_suffix(".html")
    page.write_text(page_of(result, picture), encoding="utf-8")
    return [*written, page]


def _figure(maker: Callable[[Any, Mapping[str, Any]], None], result: Mapping[str, Any]) -> Any:
    """A figure that no display and no global state of the library knows."""
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
    "burst": _points,
    "ablation": _bars,
    "mlfq": _orders,
}


def page_of(result: Mapping[str, Any], picture: str) -> str:
    """One file that needs nothing beside it. A scenario with points has a table for each."""
    points = result.get("points") or [result]
    tables = "".join(_caption(point) + _systems(point["systems"]) for point in points)
    lines = [[name, _text(value)] for name, value in result["ratios"].items()]
    title = f"{result['scenario']}, {result['started_at']}"
    machine = result["machine"]
    facts = f"{result['model']} on {machine['cpu']}, {machine['cores']} cores; commit {result['commit']}; seed {result['seed']}"
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style>'
    return f"{head}<h1>{html.escape(title)}</h1><p>{html.escape(facts)}</p>{picture}{tables}{_table(['ratio', ''], lines)}</html>\n"


def _caption(point: Mapping[str, Any]) -> str:
    known = [f"{key} {point[key]}" for key in ("cv", "rate") if key in point]
    return f"<h2>{html.escape(', '.join(known))}</h2>" if known else ""


def _systems(systems: Mapping[str, Any]) -> str:
    rates = ("online_tokens_per_s", "offline_tokens_per_s", "total_tokens_per_s", "recomputed_share", "preemptions", "online_requests")
    heads = [
        "system",
        *(f"{kind} {figure}, ms" for kind in ("TTFT", "TPOT") for figure in FIGURES),
        *(name.replace("_", " ") for name in rates),
    ]
    lines = [
        [
            name,
            *(_text(system[kind][figure]) for kind in ("ttft_ms", "tpot_ms") for figure in FIGURES),
            *(_text(system[rate]) for rate in rates),
        ]
        for name, system in systems.items()
    ]
    return _table(heads, lines)


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(text)}</th>" for text in heads)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(text)}</td>' for text in line)}</tr>" for line in lines)
    return f"<table><tr>{head}</tr>{body}</table>"


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, int) else f"{value:,.3f}".rstrip("0").rstrip(".")
