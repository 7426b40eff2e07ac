"""The front end's part of layer-wise preemption: it sees an arrival first, and ends steps where a first token would be late."""

from __future__ import annotations

import time

from harvester.engine.shared.state import COEFFICIENTS, Field, SharedState
from harvester.policy.model.latency import FEATURES, GraphSizes, StepLoad, predict_with
from harvester.policy.step.preempt import Arrival, first_to_end

assert FEATURES <= COEFFICIENTS


class ArrivalSignal:
    """Of one replica. ``max_ttft_delay_fraction`` and ``max_slowdown``: see `Arrival`. ``graphs``: CUDA graphs of the engine."""

    def __init__(
        self,
        shared: SharedState,
        max_ttft_delay_fraction: float = 1.0,
        max_slowdown: float | None = None,
        graphs: GraphSizes | None = None,
    ) -> None:
        self._shared, self._graphs = shared, graphs
        self._max_ttft_delay_fraction, self._max_slowdown = max_ttft_delay_fraction, max_slowdown

    def arrived(self, prompt_tokens: int, ttft_slo_s: float, waited_s: float = 0.0) -> bool:
        """An online request was sent to the engine core. Returns whether a step in flight was asked to end.

        ``waited_s``: since it reached the server.
        """
        steps = self._shared.in_flight()
        if not any(step.endable for step in steps):
            return False
        now_s = time.monotonic()
        prompt_s, step_s = self.bound_s(StepLoad.prefill(prompt_tokens)), self.bound_s(StepLoad(seqs=1))
        alone_s = self._predicted_s(StepLoad.prompt(prompt_tokens, self._shared[Field.CHAT_FRESH]))
        arrival = Arrival(prompt_s, ttft_slo_s, waited_s, self._max_ttft_delay_fraction, step_s, self._max_slowdown, alone_s)
        first = first_to_end(steps, now_s, arrival)
        if first is None:
            return False
        self._shared.ask_to_end(first, now_s)
        return True

    def bound_s(self, load: StepLoad) -> float:
        """P99 time of a step with this load; 0 until the latency model is ready."""
        return self._shared[Field.MARGIN] * self._predicted_s(load)

    def _predicted_s(self, load: StepLoad) -> float:
        if not self._shared[Field.READY]:
            return 0.0
        coefficients = [self._shared[Field.MODEL + place] for place in range(FEATURES)]
        return predict_with(coefficients, load, self._graphs)
