"""How much offline work fits beside the online work of a step (ConServe Alg. 1 ``calc_budget``, 4.5)."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from harvester.policy.latency import LatencyModel
from harvester.policy.load import DECODE_CONTEXT, StepLoad


@dataclass(frozen=True, slots=True)
class Budget:
    """Of one step. ``decodes``: how many of the offline decodes, from the first; ``prefill_tokens``: of offline prompts beside them."""

    decodes: int
    prefill_tokens: int

    @property
    def tokens(self) -> int:
        return self.decodes + self.prefill_tokens


def offline_budget(
    model: LatencyModel,
    online: StepLoad,
    limit_s: float,
    offline_decodes: Sequence[int],
    prefill_context: int,
    most_tokens: int,
    prefill_seqs: int = 1,
) -> Budget:
    """The largest budget whose step stays within ``limit_s`` by ``model.bound``, decodes before prompts; O(len(offline_decodes)).

    ``offline_decodes``: their context tokens, in the order in which they are to run. Prompts are counted as one chunk behind
    ``prefill_context`` tokens, and as ``prefill_seqs`` sequences; they get nothing while a decode is left out, which would only
    make more decodes that do not fit. Decodes and prompt tokens together stay within ``most_tokens``. Nothing fits where the online
    work alone takes longer than ``limit_s``. A higher limit never lowers either number.
    """
    most_tokens = max(0, most_tokens)
    margin = model.margin  # one look at it, not one a try
    contexts = [0, *accumulate(offline_decodes[:most_tokens])]

    def with_decodes(count: int) -> StepLoad:
        return online + StepLoad(0, 0.0, count, contexts[count], count)

    decodes = _largest(len(contexts) - 1, lambda count: margin * model.predict(with_decodes(count)) <= limit_s)
    if decodes < len(offline_decodes):
        return Budget(decodes, 0)
    beside = with_decodes(decodes) + StepLoad(seqs=max(0, prefill_seqs - 1))

    def with_prefill(tokens: int) -> StepLoad:
        return beside + StepLoad.prefill(tokens, prefill_context)

    tokens = _largest(most_tokens - decodes, lambda tokens: margin * model.predict(with_prefill(tokens)) <= limit_s)
    return Budget(decodes, tokens)


def longest_decode(model: LatencyModel, online: StepLoad, limit_s: float) -> float:
    """Context tokens of the longest offline decode that fits beside ``online`` by itself; negative where none does."""
    left_s = limit_s / model.margin - model.predict(online + StepLoad.decode(0))
    a_token_s = model.coefficients[DECODE_CONTEXT]
    if a_token_s <= 0.0:
        return math.inf if left_s >= 0.0 else -1.0
    return left_s / a_token_s


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest count in 0..most that fits, where fewer always fit if more do; 0 where not even one does."""
    if most <= 0:
        return 0
    if fits(most):
        return most
    return bisect_right(range(1, most + 1), False, key=lambda count: not fits(count))
