"""The report of an executed step to the brain."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from harvester.policy.model.latency import LatencyModel
from harvester.policy.model.load import StepLoad

NO_LOAD = StepLoad()
FRESH_STEPS = 8  # steps with admissions that `Shares` are the means of


@dataclass(frozen=True, slots=True)
class StepRan:
    """What a step computed. ``online``: names of its online requests; ``served``: offline tokens by job.

    ``online_load``: load of those alone. ``first_tokens``: names of the online requests that got their first token
    in it; ``gaps``: number of those that got a further token.
    Empty ``load``: the step ended early and computed nothing.
    ``admitted_tokens``: tokens of the offline rows that it admitted; ``cached_tokens``: those of them that were found in a cache. The same
    of its online requests: ``chat_admitted_tokens`` and ``chat_cached_tokens``. ``chat_blocks``: KV blocks that those ask for;
    ``chat_taken_blocks``: of these, the ones that no request that ran before holds.
    ``recomputed``: tokens to compute again, by offline row that had lost its KV and was admitted again in this step.
    """

    load: StepLoad
    online: Collection[str] = ()
    served: Mapping[str, int] = field(default_factory=dict)
    admitted_tokens: int = 0
    cached_tokens: int = 0
    online_load: StepLoad = NO_LOAD
    first_tokens: Sequence[str] = ()
    gaps: int = 0
    recomputed: Mapping[str, int] = field(default_factory=dict)
    chat_admitted_tokens: int = 0
    chat_cached_tokens: int = 0
    chat_blocks: int = 0
    chat_taken_blocks: int = 0

    def online_share(self, model: LatencyModel) -> float:
        """Time of its online work alone over its whole time, both as predicted."""
        if not self.served:
            return 1.0 if self.online else 0.0
        whole_s = model.predict(self.load)
        return min(1.0, model.predict(self.online_load) / whole_s) if self.online and whole_s > 0.0 else 0.0


@dataclass(slots=True)
class Shares:
    """Running means over the steps that admit requests.

    ``fresh``: share of an offline row's tokens that is computed, and not found in the prefix cache. ``chat_fresh``: the same of an online
    request. ``chat_own``: share of an online request's KV blocks that no request held before.
    """

    fresh: float = 1.0
    chat_fresh: float = 1.0
    chat_own: float = 1.0

    def ran(self, ran: StepRan) -> None:
        self.fresh = _averaged(self.fresh, ran.cached_tokens, ran.admitted_tokens)
        self.chat_fresh = _averaged(self.chat_fresh, ran.chat_cached_tokens, ran.chat_admitted_tokens)
        self.chat_own = _averaged(self.chat_own, ran.chat_blocks - ran.chat_taken_blocks, ran.chat_blocks)


def _averaged(before: float, less: int, whole: int) -> float:
    """The running mean of the share of ``whole`` that is not ``less``: tokens that were not cached, or blocks that were not shared."""
    return before + (1.0 - less / whole - before) / FRESH_STEPS if whole else before
