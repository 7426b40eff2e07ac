"""How long a step that holds online work may take, and how many tokens of online prompts go into it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from harvester.policy.model.latency import LatencyModel
from harvester.policy.model.load import StepLoad
from harvester.policy.step.batch import Batch
from harvester.policy.step.budget import Prompts, offline_budget
from harvester.policy.step.preempt import PLANNED_SLOWDOWN
from harvester.policy.step.view import StepView
from harvester.policy.view import PolicyConfig

MIN_PROMPT_CHUNK = 64  # tokens
CUT_GAIN = 1.05  # times the TPOT SLO: a step up to this long is not cut, since that saves less than the step it adds
FULL_STEP = 4.0  # times its decodes alone: a step to which offline work adds so much is used well enough


@dataclass(frozen=True, slots=True)
class Online:
    """The online work of a step. ``prompt_tokens``: most that fit, of all prompts together; None: as many as there are."""

    load: StepLoad
    prompt_tokens: int | None


def limit_s(view: StepView, batch: Batch) -> float:
    """Seconds that the step may take: inf without an SLO, 0 or less where a first token is already late.

    It is the smaller of the strictest TPOT SLO and the time until the earliest first token is due. Where the prompts need several steps,
    each gets an equal part of that time.
    """
    slack_s = first_token_slack_s(view, batch)
    if view.max_tokens is not None and slack_s > 0:
        tokens = batch.decoding_tokens + batch.prompt_tokens
        slack_s /= max(1, math.ceil((tokens + view.waiting_tokens) / view.max_tokens))
    return min(batch.tpot_s, slack_s)


def first_token_slack_s(view: StepView, batch: Batch) -> float:
    """Seconds until the earliest first token is due; inf where none is awaited."""
    return min(batch.due_s, view.waiting_due_s if view.online_waiting else math.inf) - view.now_s


def added_s(view: StepView, batch: Batch, config: PolicyConfig, alone_s: float, decodes_s: float) -> float:
    """Seconds that offline work may add to a step. ``alone_s``: time of its online work; ``decodes_s``: the same without prompts.

    An arrival waits for the end of a step in which chat decodes. So the step grows by at most a share of the TTFT SLO: by half of that
    share, and by more only where the decodes alone take long, since most of a shorter step would be what any step costs.

    A step with prompts of chat grows to the same length and no further. Such steps follow each other in a burst of chat, and the last
    request of the burst waits for what each of them adds.

    Where chat has no SLO, every step grows by a share of its time without offline work: `PolicyConfig.max_slowdown`.
    """
    unpromised_s = math.inf
    if config.max_slowdown is not None and (batch.unpromised or view.waiting_unpromised or view.returning_tokens):
        unpromised_s = max(0.0, PLANNED_SLOWDOWN * (config.max_slowdown - 1.0) * alone_s - view.debt_s)
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
    whole = online_load(view, batch)
    if whole.prefill_tokens == 0 or batch.tpot_s == math.inf:
        return Online(whole, None)
    margin = model.margin_at(batch.tpot_s)
    if margin * model.predict(whole) <= CUT_GAIN * batch.tpot_s:
        return Online(whole, None)
    decodes = decodes_of(whole)
    behind = round(whole.prefill_attention / whole.prefill_tokens)
    prompts = Prompts([(whole.prefill_tokens, behind)])
    beside = decodes + StepLoad(seqs=max(0, whole.seqs - whole.decode_seqs - 1))
    fit = offline_budget(model, beside, batch.tpot_s * model.margin / margin, (), prompts, whole.prefill_tokens)
    chunk = max(MIN_PROMPT_CHUNK, fit.prefill_tokens)
    steps = math.ceil((view.waiting_tokens + batch.prompt_tokens) / chunk)
    in_time = steps * batch.tpot_s <= first_token_slack_s(view, batch)
    if chunk >= whole.prefill_tokens or not (
        in_time or (steps - 1) * model.predict(decodes) <= config.max_ttft_delay_fraction * config.ttft_s
    ):
        return Online(whole, None)
    return Online(online_load(view, batch, whole.decode_seqs + chunk), chunk)


def decodes_of(load: StepLoad) -> StepLoad:
    """``load`` without its prompts."""
    return StepLoad(0, 0.0, load.decode_seqs, load.decode_context, load.decode_seqs)


def online_load(view: StepView, batch: Batch, max_tokens: int | None = None) -> StepLoad:
    """Load of the online requests: all that run or return, decodes first, then those that wait, as far as the step's tokens go.

    ``max_tokens``: maximum of the step; None: the view's.
    """
    most = view.max_tokens if max_tokens is None else max_tokens
    left = math.inf if most is None else most
    seqs, decodes, contexts = len(batch.decoding), batch.decoding_tokens, batch.decoding_context
    if seqs > left:
        decoding = batch.decoding[: int(left)]
        seqs, decodes, contexts = len(decoding), sum(r.step_tokens for r in decoding), sum(r.context for r in decoding)
    left -= decodes
    load = StepLoad(0, 0.0, decodes, contexts, seqs)
    if view.returning_tokens:
        load += StepLoad(0, 0.0, view.returning_tokens, view.returning_context, view.returning_tokens)
        left = max(0, left - view.returning_tokens)
    for r in batch.prompts:
        tokens = int(min(r.step_tokens, left))
        if tokens <= 0:
            break
        left -= tokens
        load += StepLoad.prefill(tokens, r.context)
    waiting = int(min(view.waiting_tokens, left)) if view.online_waiting else 0
    if not waiting:
        return load
    seqs = math.ceil(view.online_waiting * waiting / view.waiting_tokens)  # those whose tokens are in the step, if all are equally long
    return load + StepLoad.prefill(waiting) + StepLoad(seqs=seqs - 1)
