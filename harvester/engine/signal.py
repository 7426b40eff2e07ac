"""The front end's part of layer-wise preemption: it sees an arrival first, and ends the running step where a first token would be late."""

from __future__ import annotations

import time

from harvester.engine.board import COEFFICIENTS, Board, Field
from harvester.policy.latency import FEATURES, GraphSizes, StepLoad, predict_with
from harvester.policy.preempt import RunningStep, must_end

assert FEATURES <= COEFFICIENTS


class ArrivalSignal:
    """Of one replica. The board's writer is the engine core. ``intrusion``: see `must_end`. ``graphs``: those that steps run as."""

    def __init__(self, board: Board, intrusion: float = 1.0, graphs: GraphSizes | None = None) -> None:
        self._board, self._intrusion, self._graphs = board, intrusion, graphs

    def arrived(self, prompt_tokens: int, ttft_slo_s: float, waited_s: float = 0.0) -> bool:
        """Tell of an online request that the engine core has been sent. Returns whether the running step was asked to end.

        ``waited_s``: since it reached the server.
        """
        board = self._board
        number = board[Field.STEP]
        if not number:
            return False
        step = RunningStep(bool(board[Field.OFFLINE_ONLY]), board[Field.STARTED_S], board[Field.ESTIMATE_S])
        now_s = time.monotonic()
        if not must_end(step, now_s, self._prompt_s(prompt_tokens), ttft_slo_s, waited_s, self._intrusion):
            return False
        board[Field.ABORT_AT_S] = now_s
        board[Field.ABORT_STEP] = number
        return True

    def _prompt_s(self, tokens: int) -> float:
        if not self._board[Field.READY]:
            return 0.0
        coefficients = [self._board[Field.MODEL + place] for place in range(FEATURES)]
        return self._board[Field.MARGIN] * predict_with(coefficients, StepLoad.prefill(tokens), self._graphs)
