"""How long a step that holds online work may take, and how many tokens of online prompts go into it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harvester.policy.model.latency import LatencyModel
from harvester.policy.model.load import StepLoad
from harvester.policy.step.batch import Batch
from harvester.policy.step.budget import Prompts, offline_budget
from harvester.policy.step.preempt import PLANNED_SLOWDOWN
from harvester.policy.step.view import StepView
from harvester.policy.view import PolicyConfig, Running

MIN_PROMPT_CHUNK = 64  # tokens
CUT_GAIN = 1.05  # times the TPOT SLO: a step up to this long is not cut, since that saves less than the step it adds
FULL_STEP = 4.0  # times its decodes alone: a step to which offline work adds so much is used well enough


@dataclass(frozen=True, slots=True)
class Online:
    """The online work of a step. ``decodes``: the same without prompts. ``prompt_tokens``: most that fit, of all prompts together; None: as
    many as there are.
    """

    load: StepLoad
    decodes: StepLoad
    prompt_tokens: int | None


def limit_s(view: StepView, batch: Batch) -> float:
    """Seconds that the step may take: inf without an SLO, 0 or less where a first token is already late.

    It is the smaller of the strictest TPOT SLO and the time until the earliest first token is due. Where the prompts need several steps,
    each gets an equal part of that time.
    """
    slack_s = first_token_slack_s(view, batch)
    if view.max_tokens is not None and slack_s > 0:
        slack_s /= max(1, math.ceil((batch.online_tokens + view.waiting_tokens) / view.max_tokens))
    return min(batch.tpot_s, slack_s)


def first_token_slack_s(view: StepView, batch: Batch) -> float:
    """Seconds until the earliest first token is due; inf where none is awaited."""
    return min(batch.due_s, view.waiting_due_s if view.online_waiting else math.inf) - view.now_s


def added_s(view: StepView, batch: Batch, config: PolicyConfig, alone_s: float, decodes_s: float, saved_s: float = 0.0) -> float:
    """Seconds that offline work may add to a step. ``alone_s``: time of its online work; ``decodes_s``: the same without prompts.

    An arrival waits for the end of a step in which chat decodes. So the step grows by at most a share of the TTFT SLO: by half of that
    share, and by more only where the decodes alone take long, since most of a shorter step would be what any step costs.

    A step with prompts of chat grows to the same length and no further. Such steps follow each other in a burst of chat, and the last
    request of the burst waits for what each of them adds.

    Where chat has no SLO, every step grows by a share of its time without offline work: `PolicyConfig.max_slowdown`. ``saved_s``: what it
    may use of the share of steps before it.
    """
    unpromised_s = math.inf
    if config.max_slowdown is not None and (batch.unpromised or view.waiting_unpromised or view.returning_tokens):
        unpromised_s = max(0.0, PLANNED_SLOWDOWN * (config.max_slowdown - 1.0) * alone_s + saved_s - view.debt_s)
    return min(unpromised_s, _promised_s(config, alone_s, decodes_s))


def _promised_s(config: PolicyConfig, alone_s: float, decodes_s: float) -> float:
    if config.ttft_s == math.inf:
        return math.inf
    most_s = config.max_ttft_delay_fraction * config.ttft_s
    filled_s = decodes_s + min(most_s, max(most_s / 2, FULL_STEP * decodes_s))
    return max(0.0, filled_s - alone_s)


def online_work(view: StepView, batch: Batch, config: PolicyConfig, model: LatencyModel) -> Online:
    """What the online requests compute in the step, including those that wait.

    Prompts are cut where the step would exceed the TPOT SLO by more than a twentieth. The cut must make no first token late, or its extra
    steps must delay first tokens by less than `PolicyConfig.max_ttft_delay_fraction` of the TTFT SLO. Each extra step costs one more
    round of decodes.
    """
    decodes = _decodes(view, batch)
    whole = _with_prompts(decodes, view, batch, view.max_tokens)
    tokens = whole.tokens - decodes.tokens
    if tokens == 0 or batch.tpot_s == math.inf:
        return Online(whole, decodes, None)
    margin = model.margin_at(batch.tpot_s)
    if margin * model.predict(whole) <= CUT_GAIN * batch.tpot_s:
        return Online(whole, decodes, None)
    behind = round((whole.prefill_attention - decodes.prefill_attention) / tokens)
    beside = decodes + StepLoad(seqs=max(0, whole.seqs - decodes.seqs - 1))
    fit = offline_budget(model, beside, batch.tpot_s * model.margin / margin, (), Prompts([(tokens, behind)]), tokens)
    chunk = max(MIN_PROMPT_CHUNK, fit.prefill_tokens)
    steps = math.ceil((view.waiting_tokens + batch.prompt_tokens) / chunk)
    in_time = steps * batch.tpot_s <= first_token_slack_s(view, batch)
    if chunk >= tokens or not (in_time or (steps - 1) * model.predict(decodes) <= config.max_ttft_delay_fraction * config.ttft_s):
        return Online(whole, decodes, None)
    return Online(_with_prompts(decodes, view, batch, decodes.tokens + chunk), decodes, chunk)


def online_load(view: StepView, batch: Batch) -> StepLoad:
    """Load of the online requests: all that run or return, decodes first, then those that wait, as far as the step's tokens go."""
    return _with_prompts(_decodes(view, batch), view, batch, view.max_tokens)


def _decodes(view: StepView, batch: Batch) -> StepLoad:
    """Load of the online requests that decode, and of those that return. One with drafts computes several tokens, and counts as a chunk."""
    most = math.inf if view.max_tokens is None else view.max_tokens
    seqs, decodes, contexts = len(batch.decoding), batch.decoding_tokens, batch.decoding_context
    if seqs > most:
        decoding = batch.decoding[: int(most)]
        seqs, decodes, contexts = len(decoding), sum(r.step_tokens for r in decoding), sum(r.context for r in decoding)
    load = _first(batch.drafting, StepLoad(0, 0.0, decodes, contexts, seqs), most)
    if view.returning_tokens:
        load += StepLoad(0, 0.0, view.returning_tokens, view.returning_context, view.returning_tokens)
    return load


def _with_prompts(decodes: StepLoad, view: StepView, batch: Batch, max_tokens: int | None) -> StepLoad:
    """``decodes`` plus the online prompts, first those that run and then those that wait, within ``max_tokens`` (None: no bound)."""
    most = math.inf if max_tokens is None else max_tokens
    load = _first(batch.prompts, decodes, most)
    waiting = int(min(view.waiting_tokens, most - load.tokens)) if view.online_waiting else 0
    if waiting <= 0:
        return load
    seqs = math.ceil(view.online_waiting * waiting / view.waiting_tokens)  # those whose tokens are in the step, if all are equally long
    return load + StepLoad.prefill(waiting) + StepLoad(seqs=seqs - 1)


def _first(requests: Sequence[Running], load: StepLoad, most: float) -> StepLoad:
    """``load`` plus the first of ``requests``, until it has ``most`` tokens."""
    for one in requests:
        tokens = int(min(one.step_tokens, most - load.tokens))
        if tokens <= 0:
            break
        load += StepLoad.prefill(tokens, one.context)
    return load
