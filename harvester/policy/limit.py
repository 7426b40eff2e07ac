"""How long a step that holds online work may take, and how many tokens of online prompts go into it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from harvester.policy.budget import offline_budget
from harvester.policy.latency import LatencyModel
from harvester.policy.load import StepLoad
from harvester.policy.view import Limits, Running, View

LEAST_PROMPT_CHUNK = 64  # tokens


@dataclass(frozen=True, slots=True)
class Online:
    """The online work of a step. ``prompt_tokens``: most that fit, of all prompts together; None: as many as there are."""

    load: StepLoad
    prompt_tokens: int | None


def limit_s(view: View) -> float:
    """Seconds that the step may take: inf where nothing is promised, 0 or less where a first token is already late.

    The least TPOT of those that decode, and the time left until the earliest first token is due. Where the prompts need several steps,
    each gets an equal part of that time.
    """
    slack_s = first_token_slack_s(view)
    if view.max_tokens is not None and slack_s > 0:
        tokens = sum(r.step_tokens for r in view.running if not r.offline)
        slack_s /= max(1, math.ceil((tokens + view.waiting_tokens) / view.max_tokens))
    return min(least_tpot_s(view), slack_s)


def least_tpot_s(view: View) -> float:
    """Of the online requests that decode; inf where none does."""
    return min((r.tpot_s for r in view.running if not r.offline and r.decoding), default=math.inf)


def first_token_slack_s(view: View) -> float:
    """Seconds until the earliest first token is due; inf where none is awaited."""
    due_s = min((r.due_s for r in view.running if not r.offline and not r.decoding), default=math.inf)
    return min(due_s, view.waiting_due_s if view.online_waiting else math.inf) - view.now_s


def added_s(view: View, limits: Limits, alone_s: float) -> float:
    """Seconds that offline work may add to a step whose online work takes ``alone_s``.

    A step beside chat that decodes keeps an arrival waiting to its end: it grows by at most a share of the time to first token. Steps that
    compute prompts follow each other while chat comes in a burst, and what each adds, the last of the burst waits for: they grow by that
    share of their own length.
    """
    if limits.ttft_s == math.inf:
        return math.inf
    prompts = view.online_waiting > 0 or any(not r.offline and not r.decoding for r in view.running)
    return limits.intrusion * (min(alone_s, limits.ttft_s) if prompts else limits.ttft_s)


def online_work(view: View, model: LatencyModel) -> Online:
    """What the online requests compute in the step, those that wait among them.

    Prompts are cut where the step would break the TPOT of those that decode, as long as no first token comes late by it.
    """
    whole = online_load(view)
    tpot_s = least_tpot_s(view)
    if whole.prefill_tokens == 0 or tpot_s == math.inf:
        return Online(whole, None)
    margin = model.margin_at(tpot_s)
    if margin * model.predict(whole) <= tpot_s:
        return Online(whole, None)
    decodes = StepLoad(0, 0.0, whole.decode_seqs, whole.decode_context, whole.decode_seqs)
    behind = round(whole.prefill_attention / whole.prefill_tokens)
    fit = offline_budget(
        model, decodes, tpot_s * model.margin / margin, (), behind, whole.prefill_tokens, max(1, whole.seqs - whole.decode_seqs)
    )
    chunk = max(LEAST_PROMPT_CHUNK, fit.prefill_tokens)
    tokens = view.waiting_tokens + sum(r.step_tokens for r in view.running if not r.offline and r.step_tokens > 1)
    if chunk >= whole.prefill_tokens or math.ceil(tokens / chunk) * tpot_s > first_token_slack_s(view):
        return Online(whole, None)
    return Online(online_load(view, whole.decode_seqs + chunk), chunk)


def online_load(view: View, most_tokens: int | None = None) -> StepLoad:
    """What the online requests compute: all that run, decodes first, then all that wait, within ``most_tokens`` (None: the view's)."""
    most = view.max_tokens if most_tokens is None else most_tokens
    left = math.inf if most is None else most
    online = [r for r in view.running if not r.offline]
    decoding = [r for r in online if r.step_tokens <= 1][: None if left == math.inf else int(left)]
    left -= sum(r.step_tokens for r in decoding)
    chunks = seqs = 0
    attention = 0.0
    for r in sorted((r for r in online if r.step_tokens > 1), key=_rank):
        tokens = int(min(r.step_tokens, left))
        if tokens <= 0:
            break
        left -= tokens
        seqs += 1
        chunks += tokens
        attention += tokens * (r.context + tokens / 2)
    decodes, contexts = sum(r.step_tokens for r in decoding), sum(r.context for r in decoding)
    load = StepLoad(chunks, attention, decodes, contexts, len(decoding) + seqs)
    waiting = int(min(view.waiting_tokens, left)) if view.online_waiting else 0
    return load + StepLoad.prefill(waiting) + StepLoad(seqs=view.online_waiting - 1) if waiting else load


def _rank(request: Running) -> int:
    return request.rank
