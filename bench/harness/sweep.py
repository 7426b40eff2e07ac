"""Finds the peer's best setting on this machine: stock vLLM's priority policy, with steps of several sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from bench.harness.compare import SUMMARIES, Comparison, Load, Setting, priority
from bench.harness.measure.latency import online_summary
from bench.harness.measure.peer import PeerRun, best_peer
from bench.harness.measure.stretch import Stretch

STEPS = (256, 512, 1024, 2048)  # tokens; harvester's are 2,048 at most, and vLLM's default is that here too
PART, MAX_S = 3, 30.0  # each setting gets 1/PART of the load, at most MAX_S


def swept(comparison: Comparison, load: Load, *, quick: bool) -> tuple[Setting, list[dict[str, Any]]]:
    """The best setting, and a line for each that was tried with the first part of the load. ``quick``: the usual one, untried.

    All step sizes with slots left free for arrivals; the best of them again with more offline requests open than there are slots.
    """
    given = comparison.knobs
    if quick:
        return Setting.usual(given), []
    seconds = min(MAX_S, comparison.seconds / PART)
    short, part = replace(comparison, seconds=seconds), [arrival for arrival in load if arrival.at_s < seconds]
    found = {setting: priority(short, [part], setting)[0] for setting in settings(given.slots)}
    full = replace(best_priority(found), concurrency=round(given.concurrency))
    found[full] = priority(short, [part], full)[0]
    return best_priority(found), [sweep_line(setting, stretch) for setting, stretch in found.items()]


def settings(slots: float) -> list[Setting]:
    return [Setting(steps, round(slots) * 3 // 4) for steps in STEPS]


def best_priority(found: Mapping[Setting, Stretch]) -> Setting:
    """See `bench.harness.measure.peer`."""
    return best_peer({setting: _run(stretch) for setting, stretch in found.items()})


def _run(found: Stretch) -> PeerRun:
    return PeerRun(found.rates()["total_tokens_per_s"], online_summary(found.requests)["ttft_ms"]["p99"])


def sweep_line(setting: Setting, found: Stretch) -> dict[str, Any]:
    """A figure without anything to measure is None."""
    online = online_summary(found.requests)
    p99 = {f"{kind.removesuffix('_ms')}_p99_ms": online[kind]["p99"] for kind in SUMMARIES}
    return {**asdict(setting), **p99, **found.rates()}
