"""How many offline tokens a step takes: the two rules that a deployment may choose from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from harvester.policy.model.alone import MAX_SAVED
from harvester.policy.model.latency import LatencyModel
from harvester.policy.model.load import StepLoad
from harvester.policy.step.batch import Batch
from harvester.policy.step.budget import Prompts, StepBudget, longest_decode, offline_budget
from harvester.policy.step.guarantee import stretched_s
from harvester.policy.step.slo import Online, added_s, online_work
from harvester.policy.step.view import StepPlan, StepView
from harvester.policy.view import PolicyConfig

MIN_CHUNK = 64  # tokens
SPENT_FROM = 0.25  # of a step's time alone, saved by the steps before it: enough for one that fits more
PROMPTS_PER_STEP = 16  # most offline prompts in a step beside online work

Space = tuple[int, int]
"""Slots and KV blocks that new offline requests may take."""


class Budget(Protocol):
    """A rule for the offline tokens of a step. Called once a step: O(running)."""

    def alone_tokens(self, view: StepView, batch: Batch) -> int | None:
        """Most tokens of a step of offline work alone; None: no bound."""

    def beside_chat(self, view: StepView, batch: Batch, config: PolicyConfig, limit_s: float, space: Space) -> StepPlan:
        """The plan of a step that holds online work and may last ``limit_s`` by its SLO; victims are left out of ``batch``."""


class FixedShare:
    """`PolicyConfig.offline_step_tokens` beside online work, whatever the step takes."""

    def alone_tokens(self, view: StepView, batch: Batch) -> int | None:
        return None

    def beside_chat(self, view: StepView, batch: Batch, config: PolicyConfig, limit_s: float, space: Space) -> StepPlan:
        share = config.offline_step_tokens
        if view.online_waiting:  # its prompt takes what the step can hold; offline prompts wait a step
            fit, rest = batch.decodes[:share], batch.decodes[share:]
            return StepPlan((*batch.online, *fit), (*rest, *batch.prefills), (), None, 0, 0, offline_tokens=share)
        tokens = sum(view.running[i].step_tokens for i in batch.online) + view.returning_tokens + share
        return StepPlan((*batch.online, *batch.decodes, *batch.prefills), (), (), tokens, *space, offline_tokens=share)


class SloBudget:
    """The largest offline token budget whose predicted P99 step time meets the SLO (ConServe Alg. 1 ``calc_budget``, 4.5).

    The fixed share, until ``model`` is ready or where no SLO is set.
    """

    def __init__(self, model: LatencyModel) -> None:
        self._model, self._fixed = model, FixedShare()

    def alone_tokens(self, view: StepView, batch: Batch) -> int | None:
        """What fits `StepView.offline_step_s`, but never less than a small prompt chunk.

        An arrival may end such a step, and what it computed is lost: where arrivals are frequent, steps are kept short relative to the time
        between two of them.
        """
        model = self._model
        if not model.ready or view.offline_step_s == math.inf or view.max_tokens is None:
            return None
        step_s = model.margin * view.offline_step_s  # the best length on average, no promise
        prompts = _prompts(view, *_drafted_first(view, batch), view.max_seqs)
        fit = offline_budget(model, StepLoad(), step_s, batch.contexts, prompts, view.max_tokens, batch.context_sums)
        return min(view.max_tokens, max(fit.tokens, len(batch.contexts) + MIN_CHUNK))

    def beside_chat(self, view: StepView, batch: Batch, config: PolicyConfig, limit_s: float, space: Space) -> StepPlan:
        is_free = limit_s == math.inf and config.ttft_s == math.inf and config.max_slowdown is None
        if is_free or not (self._model.ready or _is_unpromised(view, batch, config)):
            return self._fixed.beside_chat(view, batch, config, limit_s, space)
        return _budgeted(view, batch, config, self._model, limit_s, space)


def _is_unpromised(view: StepView, batch: Batch, config: PolicyConfig) -> bool:
    """Whether chat in the step is bound by `PolicyConfig.max_slowdown` and not by an SLO."""
    return config.max_slowdown is not None and bool(batch.unpromised or view.waiting_unpromised or view.returning_tokens)


def _drafted_first(view: StepView, batch: Batch) -> tuple[list[int], int]:
    """Places of rows that compute several tokens, and how many of them decode: those come first, with drafts or lost KV to recompute.

    Prompts follow, as many as a step takes: the others can wait. A row that decodes should not wait, so all of those are considered.
    """
    if not batch.prefills:
        return [], 0
    drafted = [i for i in batch.prefills if view.running[i].decoding]
    prompts = [i for i in batch.prefills if not view.running[i].decoding] if len(drafted) < len(batch.prefills) else []
    return [*drafted, *prompts[:PROMPTS_PER_STEP]], len(drafted)


def _prompts(view: StepView, prefills: Sequence[int], drafted: int, slots: int) -> Prompts:
    """The running ones, the first ``drafted`` of which decode, then those that may be admitted into ``slots``."""
    running = [(view.running[i].step_tokens, view.running[i].context) for i in prefills]
    return Prompts([*running, *((tokens, 0) for tokens in view.offline_next[:slots])][: PROMPTS_PER_STEP + drafted])


def _budgeted(view: StepView, batch: Batch, config: PolicyConfig, model: LatencyModel, step_s: float, space: Space) -> StepPlan:
    running, online = view.running, online_work(view, batch, config, model)
    load, alone_s, decodes_s = online.load, model.predict(online.load), model.predict(online.decodes)
    # `offline_budget` uses the margin over all steps, short ones included: convert the limit to the margin of this length.
    step_s *= model.margin / model.margin_at(step_s) if step_s < math.inf else 1.0
    prefills, drafted = _drafted_first(view, batch)
    prompts, max_tokens = _prompts(view, prefills, drafted, space[0]), _max_tokens(view, config, model, load) - load.tokens

    def fitting(saved_s: float) -> _Fit:
        limit_s = min(step_s, model.margin * (alone_s + added_s(view, batch, config, alone_s, decodes_s, saved_s)))
        if not (model.ready and model.knows(load)) and _is_unpromised(view, batch, config):
            limit_s = -1.0  # the time of chat alone is not known: a step of chat alone will tell
        return _fit(view, batch, model, load, stretched_s(limit_s, view, model.margin * alone_s), prompts, max_tokens)

    fit = fitting(0.0)
    if view.saved_s >= SPENT_FROM * alone_s > 0.0 and not (batch.first_tokens or view.online_waiting) and fit.stands_still(batch, prompts):
        fit = fitting(min(view.saved_s, MAX_SAVED * alone_s))
    decodes, budget = fit
    run, tokens = decodes[: budget.decodes], budget.tokens
    if view.online_waiting or online.prompt_tokens is not None:
        run += prefills[: min(drafted, prompts.count(budget.prefill_tokens))]
        with_drafts = sum([running[i].step_tokens for i in run[budget.decodes :]])
        # Running offline prompts would take the tokens of online prompts that wait.
        tokens, space = budget.decodes + min(with_drafts, budget.prefill_tokens), (0, 0)
    elif budget.prefill_tokens == 0:
        space = (0, 0)
    else:
        run += prefills
        space = min(space[0], max(0, prompts.count(budget.prefill_tokens) - len(prefills))), space[1]
    pause: tuple[int, ...] = ()
    if len(run) < len(batch.decodes) + len(batch.prefills):
        chosen = frozenset(run)
        pause = tuple([i for i in (*batch.decodes, *batch.prefills) if i not in chosen])
    return StepPlan((*batch.online, *run), pause, (), _whole(view, batch, online, tokens), *space, offline_tokens=tokens)


class _Fit(NamedTuple):
    """What fits a step beside chat. ``decodes``: places of those not too long for it; ``budget``: how many of them, and prompt tokens."""

    decodes: list[int]
    budget: StepBudget

    def stands_still(self, batch: Batch, prompts: Prompts) -> bool:
        """Whether work is left out that fits in no such step: a long decode, or, though all decodes fit, the first prompt token."""
        if len(self.decodes) < len(batch.decodes):
            return True
        return self.budget.prefill_tokens == 0 and self.budget.decodes == len(self.decodes) and len(prompts) > 0


def _fit(view: StepView, batch: Batch, model: LatencyModel, load: StepLoad, step_s: float, prompts: Prompts, max_tokens: int) -> _Fit:
    longest = longest_decode(model, load, step_s)  # a decode that fits in no step beside chat must not keep the others out
    decodes, contexts = batch.decodes, batch.contexts
    sums: Sequence[int] | None = batch.context_sums
    if longest < math.inf and contexts and max(contexts) > longest:
        decodes = [i for i, context in zip(decodes, contexts, strict=True) if context <= longest]
        contexts, sums = [view.running[i].context for i in decodes], None
    return _Fit(decodes, offline_budget(model, load, step_s, contexts, prompts, max_tokens, sums))


def _whole(view: StepView, batch: Batch, online: Online, offline_tokens: int) -> int | None:
    """Tokens of the whole step; None where waiting prompts may take all that it can hold."""
    if online.prompt_tokens is not None:
        return online.decodes.tokens + online.prompt_tokens + offline_tokens
    if view.online_waiting:
        return None
    return batch.online_tokens + view.returning_tokens + offline_tokens


def _max_tokens(view: StepView, config: PolicyConfig, model: LatencyModel, load: StepLoad) -> int:
    """No step grows past twice what the model has seen: one that saw only small steps knows nothing of large ones."""
    reach = max(model.reach_tokens, load.tokens + config.offline_step_tokens)
    return reach if view.max_tokens is None else min(reach, view.max_tokens)
