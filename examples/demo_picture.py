"""The picture that the demo leaves: latencies of chat before and beside the job, and below them the tokens harvested."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo_chats import Sample, between, quantile

WINDOW_S = 6.0
P50, P99, PROMISE, HARVEST = "#4477aa", "#ee6677", "#222222", "#228833"  # Paul Tol's bright scheme, safe for colour-blind eyes


@dataclass(frozen=True, slots=True)
class Seen:
    """``tokens``: times, and the job's tokens until then. ``max_slowdown``: the latency promised to chat, as a multiple of chat alone."""

    ttft: Sequence[Sample]
    tpot: Sequence[Sample]
    tokens: Sequence[tuple[float, float]]
    began_s: float
    job_began_s: float
    ended_s: float
    max_slowdown: float


def draw(seen: Seen, path: Path) -> None:
    """Write it as PNG. Raises `ImportError` without Matplotlib."""
    figure: Any = importlib.import_module("matplotlib.figure").Figure(figsize=(10, 8), layout="constrained")
    ttft, tpot, tokens = figure.subplots(3, 1, sharex=True, height_ratios=(3, 3, 2))
    for axis, title, samples in ((ttft, "chat: time to first token, ms", seen.ttft), (tpot, "chat: time per output token, ms", seen.tpot)):
        _latency(axis, title, samples, seen)
    _tokens(tokens, seen)
    ends_s = seen.ended_s - seen.began_s
    for axis in (ttft, tpot, tokens):
        axis.axvspan(seen.job_began_s - seen.began_s, ends_s, color=HARVEST, alpha=0.07, linewidth=0)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_ylim(bottom=0)
        axis.set_xlim(0, ends_s)
    ttft.legend(loc="lower center", bbox_to_anchor=(0.5, 1.12), ncols=4, frameon=False)
    tokens.set_xlabel("seconds; shaded: the job runs beside the chats")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def _latency(axis: Any, title: str, samples: Sequence[Sample], seen: Seen) -> None:
    """P50 and P99 of the last `WINDOW_S`, the P99 of chat alone, and what is promised of it."""
    ends = [seen.began_s + second for second in range(2, int(seen.ended_s - seen.began_s) + 1)]
    windows = [(end_s - seen.began_s, between(samples, end_s - WINDOW_S, end_s)) for end_s in ends]
    for share, colour, name in ((0.5, P50, "P50"), (0.99, P99, "P99")):
        axis.plot([at for at, _ in windows], [quantile(values, share) for _, values in windows], color=colour, label=name)
    alone_ms = quantile(between(samples, seen.began_s, seen.job_began_s), 0.99)
    axis.axhline(alone_ms, color=P99, linestyle=":", linewidth=1.2, label="P99 of chat alone")
    label = f"SLO: {seen.max_slowdown:g} times chat alone"
    axis.axhline(alone_ms * seen.max_slowdown, color=PROMISE, linestyle="--", linewidth=1, label=label)
    axis.set_title(title, loc="left", fontsize=11)


def _tokens(axis: Any, seen: Seen) -> None:
    pairs = list(zip(seen.tokens, seen.tokens[1:], strict=False))
    at = [later - seen.began_s for (_, _), (later, _) in pairs]
    rates = [(after - before) / (later - earlier) for (earlier, before), (later, after) in pairs]
    axis.fill_between(at, rates, color=HARVEST, alpha=0.6, step="pre", linewidth=0)
    axis.set_title("job: tokens harvested per second", loc="left", fontsize=11)
