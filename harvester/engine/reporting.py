"""What the engine core writes on the board: the step that runs, the latency model, and counters for `/metrics`."""

from __future__ import annotations

import time
from typing import Any

from harvester.engine.board import RING, Board, Count, Field
from harvester.engine.learning import Learning
from harvester.engine.safepoint import segments
from harvester.engine.settings import Settings
from harvester.engine.steps import Step
from harvester.policy.preempt import layers_between
from harvester.policy.view import Plan

MODEL_EVERY = 16  # steps


class Reporting:
    """Without a board nothing is written, and no step can be ended."""

    def __init__(self, settings: Settings, vllm_config: Any) -> None:
        self._board = Board(settings.board) if settings.board is not None else None
        parallel = vllm_config.parallel_config
        plain = parallel.pipeline_parallel_size == 1 and vllm_config.speculative_config is None
        self._may_end_steps = settings.schedule.safepoints == "auto" and plain
        self._detect_s = settings.schedule.preempt_detect_ms / 1000
        self._segments = segments(parallel.tensor_parallel_size, vllm_config.device_config.device_type != "cpu")
        self._told = 0

    @property
    def can_end_steps(self) -> bool:
        """Whether a step of offline work can end early: the workers have found places for safepoints."""
        return self._may_end_steps and self._board is not None and self._board[Field.PLACES] > 0

    def layers_between(self, step_s: float) -> int:
        """Every how many layers a step of ``step_s`` has a safepoint."""
        assert self._board is not None
        return layers_between(int(self._board[Field.PLACES]), step_s, self._board[Field.SAFEPOINT_S], self._detect_s, self._segments)

    def planned(self, plan: Plan, reserve: tuple[int, int] | None) -> None:
        if self._board is None:
            return
        self._board.add(Count.PREEMPTED, len(plan.preempt))
        self._board.add(Count.PAUSED_STEPS, len(plan.pause))
        if plan.offline_tokens is not None:
            self._board.set(Count.BUDGET_TOKENS, plan.offline_tokens)
        for count, value in zip((Count.RESERVED_SLOTS, Count.RESERVED_BLOCKS), reserve or (0, 0), strict=True):
            self._board.set(count, value)

    def sends(self, step: Step, *, endable: bool) -> None:
        """It is about to be sent to the workers."""
        if self._board is not None:
            self._board.planned(step.number, endable, step.estimate_s)

    def told_better(self, step: Step) -> None:
        """Its length is known better now."""
        if self._board is not None:
            self._board.told_better(step.number, step.estimate_s)

    def ends(self, step: Step, seconds: float, kv_used: float) -> None:
        """It is answered. ``kv_used``: the share of the KV blocks in use."""
        board = self._board
        if board is None or not step.number:
            return
        board[Field.ANSWERED] = step.number
        if step.void:
            return
        harvested = sum(step.served.values())
        whole = step.output.total_num_scheduled_tokens
        board.add(Count.STEPS, 1)
        board.set(Count.ONLINE_RUNNING, len(step.online))
        board.set(Count.OFFLINE_RUNNING, len(step.output.num_scheduled_tokens) - len(step.online))
        board.set(Count.KV_USED, kv_used)
        if step.offline_only:
            board[Field.STEPS_S + int(board.count(Count.OFFLINE_STEPS)) % RING] = seconds
        board.add(Count.OFFLINE_STEPS, step.offline_only)
        board.add(Count.MIXED_STEPS, 0 < harvested < whole)
        board.add(Count.OFFLINE_TOKENS, harvested)
        board.add(Count.ONLINE_TOKENS, whole - harvested)
        board.add(Count.BUSY_S, seconds)
        board.add(Count.HARVESTED_S, seconds if step.offline_only else 0.0)

    def took_back(self, step: Step, tokens: int) -> None:
        """``step`` ended early; with those planned after it ``tokens`` count for nothing."""
        board = self._board
        if board is None:
            return
        board.add(Count.ENDED_STEPS, 1)
        board.add(Count.TAKEN_BACK_TOKENS, tokens)
        if board.should_end(step.number) and board[Field.ENDED_STEP] == step.number:
            from_s = max(board[Field.ABORT_AT_S], board.flight(step.number).began_s or 0.0)  # it may have been asked before it began
            board.add(Count.DETECT_S, max(0.0, board[Field.ENDED_AT_S] - from_s))
            board.add(Count.DETECTED, 1)

    def learnt(self, learning: Learning, steps: int) -> None:
        """Show the latency model, now and then, and write its profile when asked."""
        board = self._board
        if board is None:
            return
        wish = board[Field.SAVE_PROFILE]
        if wish > board[Field.SAVED_PROFILE]:
            learning.save()
            board[Field.SAVED_PROFILE] = wish
        if steps - self._told < MODEL_EVERY:
            return
        self._told = steps
        learning.save_if_due(time.monotonic())
        model = learning.model
        for place, value in enumerate(model.coefficients):
            board[Field.MODEL + place] = value
        board[Field.MARGIN], board[Field.READY] = model.margin, float(model.ready)
        for count, value in zip((Count.ERROR_P50, Count.ERROR_P99), model.error(), strict=True):
            board.set(count, value)
