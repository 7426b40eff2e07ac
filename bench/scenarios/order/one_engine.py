"""The one engine of an order scenario: it starts once, and the orders take turns on it, since a machine's speed changes by the minute."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from bench.harness.compare import Load
from bench.harness.knobs import Knobs
from bench.harness.measure.stretch import Stretch, stretch
from bench.harness.servers.systems import Harvester, SystemSetup
from bench.scenarios.order.capacity import ANY_WAIT, check_none_refused


@dataclass(frozen=True, slots=True)
class OneEngine:
    """The prompts of each load are new, so that none is in the prefix cache, where the first order would have left it for the next."""

    server: Harvester
    place: SystemSetup
    given: Knobs
    seed: int
    _played: Iterator[int] = field(default_factory=count)

    def play(self, load: Load, seconds: float, drain_s: float, order: str = "chat") -> Stretch:
        """Chat alone, in the order that each request names (`order_args.OrderArgs`). Raises `EngineError` if one was refused."""
        window_s = min(self.given.window_s, seconds)
        seed = 1000 * self.seed + next(self._played)
        found = stretch(self.server, self.place, load, seconds, window_s, seed=seed, offline=False, drain_s=drain_s)
        check_none_refused(found, order)
        return found


@contextmanager
def one_engine(place: SystemSetup, name: str, given: Knobs, seed: int, **options: Any) -> Iterator[OneEngine]:
    """``options``: of the engine."""
    scheduler = f"bench.harness.engine.ordered_harvest.Ordered{'' if place.cpu else 'Async'}Harvest"
    with Harvester(place, name, ANY_WAIT, scheduler_cls=scheduler, **options) as server:
        yield OneEngine(server, place, given, seed)
