"""How much offline work fits beside the online work of a step (ConServe Alg. 1 ``calc_budget``, 4.5)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from harvester.policy.model.latency import LatencyModel
from harvester.policy.model.load import DECODE_CONTEXT, StepLoad


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
    max_tokens: int,
    prefill_seqs: int = 1,
) -> Budget:
    """The largest budget whose step stays within ``limit_s`` by ``model.bound``, decodes before prompts; O(len(offline_decodes)).

    Both are found by bisection: time never falls as decodes are added, nor as prompt tokens are. Where CUDA graphs make it a staircase, the
    budget fills a stair to its edge. The first prompt token may cost a jump to another kind of step, so that none fits where decodes do.

    ``offline_decodes``: their context tokens, in the order in which they are to run. Prompts are counted as one chunk behind
    ``prefill_context`` tokens, and as ``prefill_seqs`` sequences; they get nothing while a decode is left out, which would only
    make more decodes that do not fit. Decodes and prompt tokens together stay within ``max_tokens``. Nothing fits where the online
    work alone takes longer than ``limit_s``. A higher limit never lowers either number.
    """
    max_tokens = max(0, max_tokens)
    margin, predict = model.margin, model.predict  # one look at them, not one a try
    contexts = [0, *accumulate(offline_decodes[:max_tokens])]

    chunk, attention, seqs, context, sequences = online

    def decodes_fit(count: int) -> bool:
        load = StepLoad(chunk, attention, seqs + count, context + contexts[count], sequences + count)
        return margin * predict(load) <= limit_s

    decodes = _largest(len(contexts) - 1, decodes_fit)
    if decodes < len(offline_decodes):
        return Budget(decodes, 0)
    seqs, context, sequences = seqs + decodes, context + contexts[decodes], sequences + decodes + max(1, prefill_seqs)

    def prompts_fit(tokens: int) -> bool:
        load = StepLoad(chunk + tokens, attention + tokens * (prefill_context + tokens / 2), seqs, context, sequences)
        return margin * predict(load) <= limit_s

    return Budget(decodes, _largest(max_tokens - decodes, prompts_fit))


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
    fit, beyond = 0, most
    while beyond - fit > 1:
        middle = (fit + beyond) // 2
        if fits(middle):
            fit = middle
        else:
            beyond = middle
    return fit
