"""SRTF of EconoServe's section 2: ORCA's batch and KV, the shortest answer first, known beforehand.

A running request keeps its place, since what is left of it only shrinks. A true SRTF would also preempt one with more left.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.papers.engine.order import SHORTEST
from bench.papers.systems.orca import rules, worst
from bench.papers.systems.system import Parts, System
from harvester.policy.order.offline import Fcfs, OfflineOrder, OfflineRow


class ShortestAnswer(Fcfs):
    """By the predicted answer; those that lost their KV first, in the order in which they came."""

    def __init__(self, predicted: Mapping[str, int]) -> None:
        super().__init__()
        self._predicted = predicted

    def _key(self, row: OfflineRow) -> tuple[Any, ...]:
        return not row.begun, 0 if row.begun else self._predicted[row.name], row.arrival_s


def shortest(predicted: Mapping[str, int]) -> OfflineOrder:
    return ShortestAnswer(predicted)


SRTF = System(
    "srtf",
    lambda setting, dataset: {**rules(setting, dataset), "order": SHORTEST},
    padded=False,
    knows=True,
    parts=Parts(shortest, worst),
)
