"""Admission of chat at a simulated replica, in virtual time: the policy that refuses chat and pauses offline work.

The counterpart of `harvester.engine.frontend.overload`. It knows what a front end knows: the requests it let in, the number of first
tokens, and the latency model as the engine core reports it.
"""

from __future__ import annotations

import math

from harvester.policy.admission.chat import (
    TYPICAL_ANSWER,
    Asked,
    ChatAdmission,
    Crowd,
    in_its_slot_s,
    place_wait_s,
    places,
    typical_answer_s,
)
from harvester.policy.brain import Brain
from harvester.policy.model.load import StepLoad
from harvester.sim.engine import SimEngine
from harvester.sim.trace import Request

RECENT = 32  # prompts, and answers, that a mean is taken over


class SimDoor:
    """The door of one simulation. ``told_tokens``: reported over actual prompt length, since a front end counts characters."""

    def __init__(self, engine: SimEngine, brain: Brain, policy: ChatAdmission, told_tokens: float = 1.0) -> None:
        self.refused: list[Request] = []
        self.yield_until_s = -math.inf
        self._engine, self._brain, self._policy, self._told = engine, brain, policy, told_tokens
        self._let_in = 0
        self._prompt_tokens = 0.0  # of the last prompts, on average
        self._answer_s: float | None = None  # of the last answers, in a slot of their own, on average
        self._answer_tokens = float(TYPICAL_ANSWER)  # of the last answers, on average

    def lets_in(self, request: Request, coming: int) -> bool:
        """Whether an online request that arrives now is let in. ``coming``: requests let in that the engine does not know yet."""
        times, now_s = self._brain.chat_times, request.arrival_s
        awaiting = max(0, self._let_in - times.first_tokens - times.gone)
        going, slots = self._brain.online + coming, self._engine.max_seqs
        self._policy.look(times.first_tokens, awaiting, now_s)
        told = round(self._told * request.prompt_tokens)
        prompt_s = self._bound_s(StepLoad.prefill(min(told, self._engine.max_tokens)))
        asked = Asked(1, request.ttft_s, prompt_s, told / self._prompt_tokens if self._prompt_tokens else 1.0)
        engine = self._engine
        held = places(slots, engine.total_blocks * engine.block_tokens, (self._prompt_tokens or told) + self._answer_tokens)
        crowd = Crowd(
            awaiting,
            self._prompts_s(awaiting),
            going,
            going,
            slots_free=max(awaiting, going) < slots,
            place_wait_s=place_wait_s(going, 1, held, self._typical_s(slots) / slots),
        )
        yield_s = self._policy.yield_s(asked, crowd, now_s)
        if yield_s:
            self.yield_until_s = max(self.yield_until_s, now_s + yield_s)
        if self._policy.refused_s(asked, crowd, now_s) is not None:
            self.refused.append(request)
            return False
        self._let_in += 1
        tokens = request.prompt_tokens
        self._prompt_tokens += (tokens - self._prompt_tokens) / RECENT if self._prompt_tokens else tokens
        return True

    def ended(self, seconds: float, tokens: int) -> None:
        """A request that was let in has ended, ``seconds`` after its arrival, with ``tokens``."""
        self._answer_tokens += (tokens - self._answer_tokens) / RECENT
        answer_s = in_its_slot_s(seconds, self._brain.online + 1, self._engine.max_seqs)
        self._answer_s = answer_s if self._answer_s is None else self._answer_s + (answer_s - self._answer_s) / RECENT

    def _typical_s(self, slots: int) -> float:
        """Time of a typical answer, from the door to its end."""
        return self._answer_s if self._answer_s is not None else typical_answer_s(slots, round(self._prompt_tokens), self._bound_s)

    def _prompts_s(self, awaiting: int) -> float:
        """Time of the prompts of ``awaiting`` requests, by the latency model."""
        whole, rest = divmod(round(awaiting * self._prompt_tokens), self._engine.max_tokens)
        return whole * self._bound_s(StepLoad.prefill(self._engine.max_tokens)) + self._bound_s(StepLoad.prefill(rest))

    def _bound_s(self, load: StepLoad) -> float:
        model = self._brain.parts.model
        return model.bound(load) if model.ready and load.seqs else 0.0
