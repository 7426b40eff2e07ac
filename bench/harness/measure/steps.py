"""What `bench.harness.engine.step_record` wrote, and the step cost that fits it."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from harvester.errors import EngineError
from harvester.policy.model.latency import LatencyModel
from harvester.policy.model.load import StepLoad
from harvester.sim.cost import Cost

ALIKE_STEPS = 50  # fewest steps of one length to draw deviations from
IN_A_ROW = 32  # deviations that follow each other as measured, on average
SWEEPS = 400


@dataclass(frozen=True, slots=True)
class Row:
    """A request that ended. ``cached_tokens``: of its prompt."""

    at_s: float
    offline: bool
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Ran:
    """A step. ``ended_early``: for an arrival; its results were lost. ``again_tokens``: its recomputed tokens."""

    at_s: float
    load: StepLoad
    seconds: float
    ended_early: bool
    again_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    """The record of one engine."""

    blocks: int
    block_tokens: int
    steps: Sequence[Ran]
    rows: Sequence[Row]


def read_record(path: Path) -> Record:
    """Of an engine that may still run: a last line that is not yet whole is left out."""
    whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
    lines = [json.loads(line) for line in whole.splitlines() if line]
    kinds: dict[str, list[list[Any]]] = {"engine": [], "step": [], "request": []}
    for kind, *values in lines:
        kinds[kind].append(values)
    steps = [Ran(at_s, StepLoad(*load), seconds, early, again) for at_s, *load, seconds, early, again in kinds["step"]]
    blocks, block_tokens = kinds["engine"][0]
    return Record(blocks, block_tokens, steps, [Row(*values) for values in kinds["request"]])


class _Fit(LatencyModel):
    """The latency model without forgetting: every step counts the same."""

    MEMORY_STEPS = 1e15
    SPEED_CHANGE = math.inf

    def settle(self) -> None:
        self._refit(SWEEPS)


@dataclass(frozen=True, slots=True)
class StepFit:
    """``deviations``: actual over predicted seconds, by length of the step, in the order in which the steps ran.

    ``slower``: factor by which steps take longer in the simulated run than in the runs they were fitted to.
    """

    model: LatencyModel
    deviations: dict[int, Sequence[float]]
    steps: int
    slower: float = 1.0

    def cost(self, seed: int) -> Cost:
        """A random step cost: the prediction times the deviation of a measured step of about the same length.

        Deviations follow each other as measured, some dozen in a row: a slow machine stays slow for a while, and a brain that learns adapts
        to it.
        """
        rng, predict = random.Random(seed), self.model.predict
        places: dict[int, int] = {}

        def drawn(load: StepLoad) -> float:
            predicted_s = predict(load)
            length = min(self.deviations, key=lambda one: abs(one - length_of(predicted_s)))
            ratios = self.deviations[length]
            place = places.get(length, 0) + 1
            if length not in places or place >= len(ratios) or rng.random() < 1.0 / IN_A_ROW:
                place = rng.randrange(len(ratios))
            places[length] = place
            return self.slower * predicted_s * ratios[place]

        return drawn

    def bias(self, steps: Iterable[Ran]) -> float | None:
        """Actual over predicted seconds of all these steps together; None if there are none."""
        pairs = [(step.seconds, self.model.predict(step.load)) for step in steps if not step.ended_early]
        return round(fmean(actual for actual, _ in pairs) / fmean(predicted for _, predicted in pairs), 4) if pairs else None


def settled_model(steps: Iterable[Ran]) -> LatencyModel:
    """Least squares of the relative error."""
    model = _Fit()
    for step in steps:
        model.observe(step.load, step.seconds)
    model.settle()
    return model


def fit(steps: Sequence[Ran]) -> StepFit:
    """Least squares of the relative error, then the deviations that remain. Raises `EngineError` for too few steps."""
    model = settled_model(steps)
    found: dict[int, list[float]] = {}
    for step in steps:
        predicted_s = model.predict(step.load)
        found.setdefault(length_of(predicted_s), []).append(step.seconds / predicted_s)
    kept: dict[int, Sequence[float]] = {length: ratios for length, ratios in found.items() if len(ratios) >= ALIKE_STEPS}
    if not kept:
        raise EngineError(f"{len(steps)} steps are too few to fit a cost to; give the run more --seconds")
    return StepFit(model, kept, len(steps))


def length_of(seconds: float) -> int:
    """Class of a step's length; classes differ by a factor of 1.4."""
    return round(2.0 * math.log2(max(seconds, 1e-6)))
