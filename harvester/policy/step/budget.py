"""How much offline work fits beside the online work of a step (ConServe Alg. 1 ``calc_budget``, 4.5)."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from harvester.policy.bisection import largest
from harvester.policy.model.latency import LatencyModel
from harvester.policy.model.load import DECODE_CONTEXT, StepLoad


@dataclass(frozen=True, slots=True)
class StepBudget:
    """Offline work of one step. ``decodes``: how many of the offline decodes, from the first; ``prefill_tokens``: of offline prompts."""

    decodes: int
    prefill_tokens: int

    @property
    def tokens(self) -> int:
        return self.decodes + self.prefill_tokens


class Prompts:
    """Offline prompts in the order in which steps compute them, to get the load of their first so many tokens.

    A step that takes prompts from a queue computes a few of them, the last one in part. Only those are its sequences. Counting a sequence
    for each waiting prompt would leave no tokens for any.
    """

    def __init__(self, prompts: Iterable[tuple[int, int]] = ()) -> None:
        """``prompts``: of each, the tokens left (at least 1) and the tokens computed before."""
        self._contexts: list[int] = []
        self._ends = [0]  # tokens of all prompts up to each
        self._attention = [0.0]
        for tokens, context in prompts:
            self._contexts.append(context)
            self._ends.append(self._ends[-1] + tokens)
            self._attention.append(self._attention[-1] + tokens * (context + tokens / 2))

    def __len__(self) -> int:
        return len(self._contexts)

    def count(self, tokens: int) -> int:
        """How many prompts the first ``tokens`` belong to."""
        return min(bisect_left(self._ends, tokens), len(self)) if tokens > 0 else 0

    def beside(self, load: StepLoad, tokens: int) -> StepLoad:
        """``load`` plus the first ``tokens`` (at least 1). Tokens past the last known prompt count as part of it."""
        chunk, attention, seqs, context, sequences = load
        whole = max(0, self.count(tokens) - 1)
        rest, behind = tokens - self._ends[whole], self._contexts[whole] if self._contexts else 0
        attention += self._attention[whole] + rest * (behind + rest / 2)
        return StepLoad(chunk + tokens, attention, seqs, context, sequences + whole + 1)


def offline_budget(
    model: LatencyModel,
    online: StepLoad,
    limit_s: float,
    offline_decodes: Sequence[int],
    prompts: Prompts,
    max_tokens: int,
    context_sums: Sequence[int] | None = None,
) -> StepBudget:
    """The largest budget whose step stays within ``limit_s`` by ``model.bound``, decodes before prompts; O(log) of both.

    Both are found by bisection: time never falls as decodes are added, nor as prompt tokens are. Where CUDA graphs make it a staircase, the
    budget fills a stair to its edge. The first prompt token may cost a jump to another kind of step, so that none fits where decodes do.

    ``offline_decodes``: their context tokens, in the order in which they are to run. ``context_sums``: sums over the first 0, 1, 2 .. of
    them; None: computed here. Prompts get nothing while a decode is left out: they would only become more decodes that do not fit.
    Decodes and prompt tokens together stay within ``max_tokens``. Nothing fits where the online work alone takes longer than ``limit_s``.
    A higher limit never lowers either number.
    """
    max_tokens = max(0, max_tokens)
    margin, predict = model.margin, model.predict  # looked up once, not once a try
    contexts = [0, *accumulate(offline_decodes)] if context_sums is None else context_sums

    chunk, attention, seqs, context, sequences = online

    def with_decodes(count: int) -> StepLoad:
        return StepLoad(chunk, attention, seqs + count, context + contexts[count], sequences + count)

    decodes = largest(min(len(offline_decodes), max_tokens), lambda count: margin * predict(with_decodes(count)) <= limit_s)
    if decodes < len(offline_decodes):
        return StepBudget(decodes, 0)
    load = with_decodes(decodes)
    return StepBudget(decodes, largest(max_tokens - decodes, lambda tokens: margin * predict(prompts.beside(load, tokens)) <= limit_s))


def longest_decode(model: LatencyModel, online: StepLoad, limit_s: float) -> float:
    """Context tokens of the longest offline decode that fits beside ``online`` by itself; negative where none does."""
    left_s = limit_s / model.margin - model.predict(online + StepLoad.decode(0))
    a_token_s = model.coefficients[DECODE_CONTEXT]
    if a_token_s <= 0.0:
        return math.inf if left_s >= 0.0 else -1.0
    return left_s / a_token_s
