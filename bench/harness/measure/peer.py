"""Chooses the setting of a peer that harvester is compared with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

NEAR = 0.95  # of the highest throughput

K = TypeVar("K")


class PeerRun(NamedTuple):
    """``ttft_p99_ms``: None where no chat was answered."""

    total_tokens_per_s: float
    ttft_p99_ms: float | None


def best_peer(found: Mapping[K, PeerRun]) -> K:
    """The setting with the lowest P99 TTFT among those within 5% of the highest total throughput.

    A setting that answered no chat comes last.
    """
    enough = NEAR * max(run.total_tokens_per_s for run in found.values())
    able = {setting: run.ttft_p99_ms for setting, run in found.items() if run.total_tokens_per_s >= enough}
    return min(able, key=lambda setting: able[setting] or math.inf)
