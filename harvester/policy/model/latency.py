"""The latency model: predicts step time, fitted to the steps that were run (ConServe 4.5), and tracks its error.

    seconds = c0 + c1 tokens + hinges in tokens + c5 prefill attention + c6 decode context + c7 sequences
              + c8 if the step is no graph of decodes alone + c9 if it is no graph + closer hinges in tokens,   every c >= 0

With no negative coefficient the time never falls as a step grows, so that a budget can be found by bisection. The hinges make it convex: a
GPU takes nearly the same time up to a few hundred tokens, then time in proportion. The second line applies only to machines with CUDA
graphs. Tokens are then those that the step is padded to, and its time is a staircase with a jump from one kind of step to the next.

The fit is least squares of the relative error with exponential forgetting, on normal equations. Plans use `LatencyModel.bound`: the
prediction times the P99 of actual over predicted in the last steps. A noisy machine or a wrong profile makes that margin large, which costs
offline throughput and not the SLO.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from operator import mul
from typing import Any

from harvester.errors import ConfigError
from harvester.policy.model.graphs import EAGER, GraphSizes
from harvester.policy.model.load import FEATURES, PLAIN_FEATURES, StepLoad, feature_count, features, predict_with

__all__ = ["FEATURES", "PLAIN_FEATURES", "GraphSizes", "LatencyModel", "StepLoad", "features", "predict_with"]

VERSION = 2


class LatencyModel:
    """Step time over step load. Not thread-safe; `observe` is called once a step and takes some microseconds.

    ``graphs``: the CUDA graphs of the machine that runs the steps; None: it has none.
    Ready after ``READY_STEPS`` steps, or ``CHECK_STEPS`` where it began from a profile, so that one of another machine is detected first.
    """

    READY_STEPS = 64
    CHECK_STEPS = 16
    WARM_UP_STEPS = 32  # without a profile: the errors of the first fits say nothing about later ones
    KIND_STEPS = 8  # the first steps of a kind are fitted, but their errors do not count
    MEMORY_STEPS = 512.0  # an observation this old weighs 1/e of a new one
    PROFILE_STEPS = 128.0  # maximum weight of a loaded profile, in steps
    ERROR_STEPS = 256  # window of the error
    ALIKE_STEPS = 32  # minimum steps of similar length for a margin of their own
    MAX_MARGIN = 8.0
    REFIT_STEPS = 4
    SPEED_CHANGE = 1.5  # a median error beyond this factor, either way, means that the machine changed its speed

    def __init__(self, graphs: GraphSizes | None = None) -> None:
        self.graphs = graphs
        places = feature_count(graphs)
        self._coefficients = [0.0] * places
        self._normal = [[0.0] * places for _ in range(places)]
        self._moment = [0.0] * places
        self._weight = 1.0  # of the next observation: grows instead of all others shrinking
        self._steps = 0
        self._unready_steps, self._warm_up_steps = self.READY_STEPS, self.WARM_UP_STEPS
        self._max_tokens = 0
        self._kinds: dict[tuple[int, int, bool], int] | None = {}  # steps seen, by `_kind`; None: a profile covers all kinds
        self._ratios: deque[tuple[float, float]] = deque()  # predicted seconds, actual over predicted
        self._sorted: list[float] = []
        self._latest: deque[float] = deque(maxlen=self.CHECK_STEPS)
        self._margins: dict[int, float] = {}  # by step length, cached for a few steps

    @property
    def coefficients(self) -> tuple[float, ...]:
        return tuple(self._coefficients)

    @property
    def ready(self) -> bool:
        return self._steps >= self._unready_steps

    @property
    def reach_tokens(self) -> int:
        """Tokens of the largest step whose prediction is more than a guess: twice the largest step seen."""
        return 2 * self._max_tokens

    @property
    def margin(self) -> float:
        """The factor by which `bound` multiplies a prediction."""
        return min(max(self.error()[1], 1.0), self.MAX_MARGIN) if self._sorted else self.MAX_MARGIN

    def margin_at(self, seconds: float) -> float:
        """The margin for steps of about ``seconds``: by the errors of steps of a sixth to twice that length, or `margin` where few.

        A stall of some ms is a large error of a short step and a small one of a long step, and budgets are made for long ones.
        """
        if seconds <= 0.0:
            return self.margin
        length = round(2.0 * math.log2(seconds))  # rounded to factors of 1.4 for the cache: this is called several times a step
        if length not in self._margins:
            middle_s = 2.0 ** (length / 2.0)
            alike = sorted(ratio for predicted, ratio in self._ratios if middle_s / 6 <= predicted <= 2 * middle_s)
            enough = len(alike) >= self.ALIKE_STEPS
            high = alike[min(len(alike), math.ceil(0.99 * (len(alike) + 1))) - 1] if enough else self.margin
            self._margins[length] = min(max(high, 1.0), self.MAX_MARGIN)
        return self._margins[length]

    def predict(self, load: StepLoad) -> float:
        """Seconds, without a margin."""
        return predict_with(self._coefficients, load, self.graphs)

    def high_s(self, load: StepLoad) -> float | None:
        """P99 of the step's seconds, by the errors of steps of about that length; None before the model is ready."""
        if not self.ready:
            return None
        predicted_s = self.predict(load)
        return predicted_s * self.margin_at(predicted_s)

    def median_s(self, load: StepLoad) -> float | None:
        """Median of the step's seconds; None before the model is ready."""
        return self.predict(load) * self.error()[0] if self.ready else None

    def bound(self, load: StepLoad) -> float:
        """P99 of the step's seconds, by the errors of the last ``ERROR_STEPS`` steps."""
        return self.margin * self.predict(load)

    def error(self) -> tuple[float, float]:
        """P50 and P99 of actual over predicted seconds in the last steps; (1, 1) before there are any.

        The P99 is that of the next step: the value at rank 0.99 (n + 1), or the largest where n is below 99.
        """
        n = len(self._sorted)
        if n == 0:
            return 1.0, 1.0
        return self._sorted[n // 2], self._sorted[min(n, math.ceil(0.99 * (n + 1))) - 1]

    def observe(self, load: StepLoad, seconds: float) -> None:
        """Learn from a step that took ``seconds``. Empty steps and times that are not positive and finite are ignored.

        A stall of a second moves the fit by less than one ordinary step does: a row weighs 1 / max(actual, predicted) squared.
        """
        if load.tokens <= 0 or not 0.0 < seconds < math.inf:
            return
        predicted = self.predict(load)
        self._add(features(load, self.graphs), seconds, max(seconds, predicted))
        self._max_tokens = max(self._max_tokens, load.tokens)
        self._steps += 1
        is_new = self._seen(load) < self.KIND_STEPS
        if not is_new and predicted > 0.0 and self._steps > self._warm_up_steps:
            self._watch(predicted, seconds / predicted)
        if is_new or self._steps % self.REFIT_STEPS == 0:
            self._refit(sweeps=16 if is_new or not self.ready else 2)

    def knows(self, load: StepLoad) -> bool:
        """Whether enough steps of its kind were seen, or a profile covers it. Predictions of other kinds may be off by a factor of ten."""
        return self._kinds is None or self._kinds.get(self._kind(load), 0) >= self.KIND_STEPS

    def _kind(self, load: StepLoad) -> tuple[int, int, bool]:
        eager = self.graphs is None or self.graphs.padded(load.prefill_tokens, load.decode_seqs)[0] == EAGER
        return load.prefill_tokens.bit_length(), load.decode_seqs.bit_length(), eager

    def _seen(self, load: StepLoad) -> float:
        """Count this step. Returns the number of earlier steps of its kind; inf with a profile.

        The prediction of a new kind is a guess: its error is no sign that the machine's speed changed. Long offline steps say little about
        the shortest steps: until the fit has seen a few of those it is far off, for both.
        """
        if self._kinds is None:
            return math.inf
        kind = self._kind(load)
        self._kinds[kind] = self._kinds.get(kind, 0) + 1
        return self._kinds[kind] - 1

    def _add(self, row: tuple[float, ...], seconds: float, scale: float) -> None:
        self._weight *= 1.0 + 1.0 / self.MEMORY_STEPS
        if self._weight > 1e9:
            self._rescale(1.0 / self._weight, 1.0 / self._weight)
            self._weight = 1.0
        weight = self._weight / (scale * scale)
        for i, value in enumerate(row):
            if value:
                factor = weight * value
                self._normal[i] = [old + factor * x for old, x in zip(self._normal[i], row, strict=True)]
                self._moment[i] += factor * seconds

    def _rescale(self, normal: float, moment: float) -> None:
        self._normal = [[value * normal for value in row] for row in self._normal]
        self._moment = [value * moment for value in self._moment]

    def _refit(self, sweeps: int) -> None:
        """Coordinate descent from the last solution; each coefficient is set to its best value at or above 0, given the others."""
        found, moment = self._coefficients, self._moment
        for _ in range(sweeps):
            for i, row in enumerate(self._normal):
                if row[i] > 0.0:
                    found[i] = max(0.0, found[i] + (moment[i] - sum(map(mul, row, found))) / row[i])

    def _watch(self, predicted: float, ratio: float) -> None:
        if self._steps % self.REFIT_STEPS == 0:
            self._margins.clear()
        self._ratios.append((predicted, ratio))
        insort(self._sorted, ratio)
        if len(self._ratios) > self.ERROR_STEPS:
            del self._sorted[bisect_left(self._sorted, self._ratios.popleft()[1])]
        self._latest.append(ratio)
        if len(self._latest) == self.CHECK_STEPS and self._steps % self.REFIT_STEPS == 0:
            median = sorted(self._latest)[self.CHECK_STEPS // 2]
            if not 1.0 / self.SPEED_CHANGE < median < self.SPEED_CHANGE:
                self._change_speed(median)

    def _change_speed(self, factor: float) -> None:
        """Scale the fit by ``factor``. A slower machine is slower for every kind of step, also those not run since: so nothing is dropped.

        The errors stay in their window: a machine that changes its speed once may do so again.
        """
        self._rescale(1.0 / (factor * factor), 1.0 / factor)
        self._coefficients = [value * factor for value in self._coefficients]
        self._latest.clear()

    def state(self) -> dict[str, Any]:
        """What a profile file holds, as JSON values."""
        p50, p99 = self.error()
        return {
            "version": VERSION,
            "graphs": None if self.graphs is None else self.graphs.state(),
            "coefficients": list(self._coefficients),
            "normal": [[value / self._weight for value in row] for row in self._normal],
            "moment": [value / self._weight for value in self._moment],
            "steps": self._steps,
            "max_tokens": self._max_tokens,
            "error": {"p50": p50, "p99": p99},
        }

    @classmethod
    def from_state(cls, state: dict[str, Any], graphs: GraphSizes | None = None) -> LatencyModel:
        """A model that begins from a profile of a machine with the same ``graphs``.

        Raises `ConfigError` where ``state`` is not what `state` returns, or was learnt with other graphs.
        """
        model = cls(graphs)
        try:
            if state["version"] != VERSION:
                raise ValueError(f"version {state['version']!r}")
            if GraphSizes.from_state(state["graphs"]) != graphs:
                raise ValueError("it was learnt with CUDA graphs of other sizes")
            model._coefficients = [max(0.0, float(value)) for value in state["coefficients"]]
            model._normal = [[float(value) for value in row] for row in state["normal"]]
            model._moment = [float(value) for value in state["moment"]]
            model._max_tokens = int(state["max_tokens"])
            steps = min(float(state["steps"]), cls.MEMORY_STEPS)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"profile is not a latency profile of version {VERSION} ({error}); make it again with harvester profile"
            ) from error
        shapes = {len(model._coefficients), len(model._moment), len(model._normal), *map(len, model._normal)}
        if shapes != {feature_count(graphs)}:
            raise ConfigError(
                f"profile holds {sorted(shapes)} coefficients, not {feature_count(graphs)}; make it again with harvester profile"
            )
        if steps > cls.PROFILE_STEPS:
            model._rescale(cls.PROFILE_STEPS / steps, cls.PROFILE_STEPS / steps)
        model._unready_steps, model._warm_up_steps, model._kinds = cls.CHECK_STEPS, 0, None
        return model
