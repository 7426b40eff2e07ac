"""What the engine core writes into the shared state: the step that runs, the latency model, and counters for `/metrics`."""

from __future__ import annotations

import time
from typing import Any

from harvester.engine.core.profile import Profile
from harvester.engine.core.steps import Step
from harvester.engine.shared.settings import Settings
from harvester.engine.shared.state import RING, Count, Field, SharedState
from harvester.engine.worker.safepoint import segments
from harvester.policy.model.alone import ChatTimes
from harvester.policy.model.prediction import Accuracy, LengthPredictor
from harvester.policy.step.preempt import layers_between
from harvester.policy.view import Plan
from jobs.hint import is_job

MODEL_EVERY = 16  # steps
SAVE_S = 60.0
SAVE_STEPS = 500  # least steps from one save to the next


class Reporting:
    """Writes to the shared state. Without one nothing is written, and no step can end early."""

    def __init__(self, settings: Settings, vllm_config: Any, shared: SharedState | None) -> None:
        self._shared = shared
        parallel = vllm_config.parallel_config
        plain = parallel.pipeline_parallel_size == 1 and vllm_config.speculative_config is None
        self._may_end_steps = settings.schedule.safepoints != "off" and plain
        self._beside_chat = settings.schedule.safepoints == "all"
        self._detect_s = settings.schedule.preempt_detect_ms / 1000
        self._segments = segments(parallel.tensor_parallel_size, vllm_config.device_config.device_type != "cpu")
        self._told = self._saved = 0  # step numbers: of the last model written, and of the last profile saved
        self._saved_s = time.monotonic()
        self._wish: float | None = None  # the request of the front end that the profile being saved meets

    @property
    def can_end_steps(self) -> bool:
        """Whether a step can end early: the workers have found places for safepoints."""
        return self._may_end_steps and self._shared is not None and self._shared[Field.PLACES] > 0

    def may_end(self, plan: Plan) -> bool:
        """Whether a step that is run by ``plan`` gets safepoints."""
        return self.can_end_steps and plan.may_end and (plan.alone or self._beside_chat)

    @property
    def max_segments(self) -> int:
        """Most parts that safepoints can cut a step into, each as long as what still runs after a signal; 0: no step can end early."""
        assert self._shared is not None or not self.can_end_steps
        return int(self._shared[Field.PLACES]) // self._segments if self._shared is not None and self.can_end_steps else 0

    def layers_between(self, step_s: float, detect_s: float) -> int:
        """Layers from one safepoint to the next in a step of ``step_s``, so that it ends within ``detect_s`` of a signal."""
        assert self._shared is not None
        bound_s = min(self._detect_s, detect_s)
        return layers_between(int(self._shared[Field.PLACES]), step_s, self._shared[Field.SAFEPOINT_S], bound_s, self._segments)

    def chat_only(self, now_s: float) -> bool:
        """Whether the front end sees chat wait so long that offline work should stand still."""
        return self._shared is not None and now_s < self._shared[Field.YIELD_UNTIL_S]

    def planned(self, plan: Plan) -> None:
        if self._shared is None:
            return
        self._shared.add(Count.PREEMPTED, len(plan.preempt))
        self._shared.add(Count.SWAPPED, len(plan.swap_out))
        self._shared.add(Count.PAUSED_STEPS, len(plan.pause))
        if plan.offline_tokens is not None:
            self._shared.set(Count.BUDGET_TOKENS, plan.offline_tokens)
        for count, value in zip((Count.RESERVED_SLOTS, Count.RESERVED_BLOCKS), plan.reserve, strict=True):
            self._shared.set(count, value)

    def sends(self, step: Step, tpot_s: float, *, endable: bool) -> None:
        """The step is about to be sent to the workers. ``tpot_s``: the tightest TPOT SLO of chat that decodes in it."""
        if self._shared is not None and step.number is not None:
            self._shared.planned(step.number, endable, step.estimate_s, beside_chat=not step.alone, tpot_s=tpot_s)

    def refine_estimate(self, step: Step) -> None:
        """A better estimate of the step's duration is known."""
        if self._shared is not None and step.number is not None:
            self._shared.refine_estimate(step.number, step.estimate_s)

    def ends(self, step: Step, seconds: float, kv_used: float) -> None:
        """The step is answered. ``kv_used``: the share of the KV blocks in use."""
        shared = self._shared
        if shared is None or step.number is None:
            return
        shared[Field.ANSWERED] = step.number
        if step.rolled_back:
            return
        harvested = sum(step.served.values())
        whole = step.tokens
        shared.add(Count.STEPS, 1)
        shared.set(Count.ONLINE_RUNNING, len(step.online))
        shared.set(Count.OFFLINE_RUNNING, len(step.output.num_scheduled_tokens) - len(step.online))
        shared.set(Count.KV_USED, kv_used)
        if step.alone:
            shared[Field.STEPS_S + int(shared.count(Count.OFFLINE_STEPS)) % RING] = seconds
        shared.add(Count.OFFLINE_STEPS, step.alone)
        shared.add(Count.MIXED_STEPS, 0 < harvested < whole)
        shared.add(Count.OFFLINE_TOKENS, harvested)
        shared.add(Count.ONLINE_TOKENS, whole - harvested)
        shared.add(Count.BUSY_S, seconds)
        shared.add(Count.HARVESTED_S, seconds if step.alone else 0.0)
        of_jobs = sum(tokens for name, tokens in step.served.items() if is_job(name))
        shared.add(Count.JOBS_S, seconds * of_jobs / harvested if step.alone and harvested else 0.0)

    def chat(self, times: ChatTimes) -> None:
        """Publish chat's latencies so far, and as they would have been without offline work."""
        if self._shared is None:
            return
        for count, value in (
            (Count.FIRST_TOKENS, times.first_tokens),
            (Count.CHATS_GONE, times.gone),
            (Count.TTFT_S, times.ttft_s),
            (Count.TTFT_ALONE_S, times.ttft_alone_s),
            (Count.GAPS, times.gaps),
            (Count.GAP_S, times.gap_s),
            (Count.GAP_ALONE_S, times.gap_alone_s),
        ):
            self._shared.set(count, value)

    def took_back(self, step: Step, tokens: int) -> None:
        """``step`` ended early. ``tokens``: planned in it and in the steps behind it, all of them rolled back."""
        shared = self._shared
        if shared is None or step.number is None:
            return
        shared.add(Count.ENDED_STEPS, 1)
        shared.add(Count.TAKEN_BACK_TOKENS, tokens)
        if shared.should_end(step.number) and shared[Field.ENDED_STEP] == step.number:
            from_s = max(shared[Field.ABORT_AT_S], shared.flight(step.number).began_s or 0.0)  # it may have been asked before it began
            shared.add(Count.DETECT_S, max(0.0, shared[Field.ENDED_AT_S] - from_s))
            shared.add(Count.DETECTED, 1)

    def learnt(self, profile: Profile, step: Step, predictor: LengthPredictor, chat_fresh: float) -> None:
        """Publish the latency model and the accuracy of predicted lengths now and then. Save the profile when asked, or when it is old."""
        shared = self._shared
        if shared is None or step.number is None:
            return
        if not profile.is_saving:
            self._keep(profile, step.number, shared)
        if step.number - self._told < MODEL_EVERY:
            return
        self._told = step.number
        model = profile.model
        for place, value in enumerate(model.coefficients):
            shared[Field.MODEL + place] = value
        shared[Field.CHAT_FRESH] = chat_fresh
        shared[Field.MARGIN], shared[Field.READY] = model.margin, float(model.ready)
        for count, value in zip((Count.ERROR_P50, Count.ERROR_P99), model.error(), strict=True):
            shared.set(count, value)
        self._predicted(shared, predictor.accuracy())

    @staticmethod
    def _predicted(shared: SharedState, found: Accuracy) -> None:
        shared.set(Count.PREDICTED_ANSWERS, found.judged)
        shared.set(Count.WITHIN_MEDIAN, found.within_median)
        shared.set(Count.WITHIN_HIGH, found.within_high)
        if found.error is not None:
            shared.set(Count.LENGTH_ERROR, found.error)

    def _keep(self, profile: Profile, number: int, shared: SharedState) -> None:
        """Tell the front end which of its requests is met by what was saved, and save when it asked again or the file is old."""
        if self._wish is not None:
            shared[Field.SAVED_PROFILE], self._wish = self._wish, None
        wish, now_s = shared[Field.SAVE_PROFILE], time.monotonic()
        if wish > shared[Field.SAVED_PROFILE] or (number - self._saved >= SAVE_STEPS and now_s - self._saved_s >= SAVE_S):
            profile.save()
            self._wish, self._saved, self._saved_s = wish, number, now_s
