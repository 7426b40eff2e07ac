"""The front end's part of layer-wise preemption: it sees an arrival first, and ends steps where a first token would be late."""

from __future__ import annotations

import time

from harvester.engine.board import COEFFICIENTS, Board, Field
from harvester.policy.latency import FEATURES, GraphSizes, StepLoad, predict_with
from harvester.policy.preempt import Arrival, first_to_end

assert FEATURES <= COEFFICIENTS


class ArrivalSignal:
    """Of one replica. The board's writer is the engine core. ``intrusion``: see `Arrival`. ``graphs``: those that steps run as."""

    def __init__(self, board: Board, intrusion: float = 1.0, graphs: GraphSizes | None = None) -> None:
        self._board, self._intrusion, self._graphs = board, intrusion, graphs

    def arrived(self, prompt_tokens: int, ttft_slo_s: float, waited_s: float = 0.0) -> bool:
        """Tell of an online request that the engine core has been sent. Returns whether a step in flight was asked to end.

        ``waited_s``: since it reached the server.
        """
        steps = self._board.in_flight()
        if not any(step.endable for step in steps):
            return False
        now_s = time.monotonic()
        first = first_to_end(steps, now_s, Arrival(self._prompt_s(prompt_tokens), ttft_slo_s, waited_s, self._intrusion))
        if first is None:
            return False
        self._board.ask_to_end(first, now_s)
        return True

    def _prompt_s(self, tokens: int) -> float:
        if not self._board[Field.READY]:
            return 0.0
        coefficients = [self._board[Field.MODEL + place] for place in range(FEATURES)]
        return self._board[Field.MARGIN] * predict_with(coefficients, StepLoad.prefill(tokens), self._graphs)
