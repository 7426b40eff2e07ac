"""The door before a simulated replica: the policy that refuses chat and has offline work stand still, in virtual time.

The counterpart of `harvester.engine.frontend.overload`. It knows what a front end knows: whom it let in, how many first tokens were made,
and the latency model as the engine core tells it.
"""

from __future__ import annotations

import math

from harvester.policy.admission.chat import Asked, ChatAdmission, Crowd
from harvester.policy.brain import Brain
from harvester.policy.model.load import StepLoad
from harvester.sim.engine import Engine
from harvester.sim.trace import Request

RECENT = 32  # prompts that a mean length is taken over


class Door:
    """Of one simulation. ``told_tokens``: what the length of a prompt is told as, times its tokens: a front end counts characters."""

    def __init__(self, engine: Engine, brain: Brain, policy: ChatAdmission, told_tokens: float = 1.0) -> None:
        self.refused: list[Request] = []
        self.yield_until_s = -math.inf
        self._engine, self._brain, self._policy, self._told = engine, brain, policy, told_tokens
        self._let_in = 0
        self._prompt_tokens = 0.0  # of the last prompts, on average

    def lets_in(self, request: Request, coming: int) -> bool:
        """Whether an online request that comes now may wait. ``coming``: those that were let in and that the engine does not know yet."""
        times, now_s = self._brain.chat_times, request.arrival_s
        awaiting = max(0, self._let_in - times.first_tokens - times.gone)
        self._policy.look(times.first_tokens, awaiting, now_s)
        told = round(self._told * request.prompt_tokens)
        prompt_s = self._bound_s(min(told, self._engine.max_tokens))
        asked = Asked(1, request.ttft_s, prompt_s, told / self._prompt_tokens if self._prompt_tokens else 1.0)
        going = self._brain.online + coming
        slots_free = max(awaiting, going) + 1 <= self._engine.max_seqs
        crowd = Crowd(awaiting, self._prompts_s(awaiting), going, going, slots_free=slots_free)
        if self._policy.must_yield(asked, crowd, now_s):
            self.yield_until_s = now_s + self._policy.wait_s(asked, crowd, now_s)
        if self._policy.refused_s(asked, crowd, now_s) is not None:
            self.refused.append(request)
            return False
        self._let_in += 1
        tokens = request.prompt_tokens
        self._prompt_tokens += (tokens - self._prompt_tokens) / RECENT if self._prompt_tokens else tokens
        return True

    def _prompts_s(self, awaiting: int) -> float:
        """What the prompts of those that await take by the latency model."""
        whole, rest = divmod(round(awaiting * self._prompt_tokens), self._engine.max_tokens)
        return whole * self._bound_s(self._engine.max_tokens) + self._bound_s(rest)

    def _bound_s(self, tokens: int) -> float:
        model = self._brain.parts.model
        return model.bound(StepLoad.prefill(tokens)) if model.ready and tokens else 0.0
