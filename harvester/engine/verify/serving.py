"""Verification of the engine that serves: runs at the first start of a model on a device, and shows from then on what it turned off."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from harvester.engine.frontend.engine import TokenEngine
from harvester.engine.shared.state import SharedState
from harvester.engine.verify import kept
from harvester.engine.verify.short import WORTH, verify_short
from harvester.engine.verify.verdict import Aspect, Verdict
from harvester.errors import EngineError, UsageError

MAX_S = 60.0

log = logging.getLogger(__name__)


class Verified(Collector):
    """Verification of one engine. Shown on `/metrics` as ``harvester_verified``, 1 for a part that is right and 0 for a wrong one."""

    def __init__(self, llm: TokenEngine, shared: SharedState, registry: CollectorRegistry = REGISTRY) -> None:
        self._llm, self._shared = llm, shared
        self._found: Sequence[Verdict] = ()
        registry.register(self)

    async def when_absent(self, profile: Path) -> None:
        """Use the verdicts kept beside ``profile``; if there are none, run the short form and keep its verdicts there.

        The short form also runs if a part is undecided, unless because steps are too short for signals, or if signals ended too few steps
        the last time. Wrong parts are turned off. Never raises.
        """
        known = kept.read(profile)
        found = known or []
        if known is None or any(map(self._is_open, known)):
            found = kept.merged(found, await self._look())
            if found:
                kept.write(profile, found)
        self._take(found)

    def _is_open(self, one: Verdict) -> bool:
        if one.ok is None:
            return one.shorter_than_s is None or WORTH * self._detect_s < one.shorter_than_s
        return one.ok is False and one.part is Aspect.SIGNALS

    @property
    def _detect_s(self) -> float:
        return self._llm.settings.schedule.preempt_detect_ms / 1000

    async def _look(self) -> list[Verdict]:
        detect_s, safepoints = self._detect_s, self._llm.settings.schedule.safepoints != "off"
        try:
            found = await verify_short(self._llm, self._shared, detect_s, safepoints, MAX_S)
            if any(one.ok is False for one in found):  # a busy machine may have done that once
                found = kept.better(found, await verify_short(self._llm, self._shared, detect_s, safepoints, MAX_S))
            return found
        except (EngineError, UsageError) as error:
            log.warning("this machine could not be verified: %s", error)
            return []

    def _take(self, found: Sequence[Verdict]) -> None:
        self._found = found
        for one in found:
            if one.ok is False:
                log.warning(kept.line(one))
        if any(one.part is Aspect.SIGNALS and one.ok is False for one in found):
            self._llm.stop_signals()

    def wrong(self) -> list[str]:
        """A line for each part that is wrong here."""
        return [kept.line(one) for one in self._found if one.ok is False]

    def collect(self) -> Iterator[Metric]:
        gauge = GaugeMetricFamily("harvester_verified", "Whether a part of harvester is right on this machine, by part.", labels=["part"])
        for one in self._found:
            if one.ok is not None:
                gauge.add_metric([one.part.value], float(one.ok))
        yield gauge
