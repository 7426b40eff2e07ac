"""The running requests by what they are in the step, found in one pass: a step is planned every few ms, over up to thousands of them."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

from harvester.policy.view import Running


@dataclass(slots=True)
class Batch:
    """Indices are places in ``StepView.running``; a place that is left out is in none of the lists."""

    kept: list[int] = field(default_factory=list)
    online: list[int] = field(default_factory=list)  # those that decode, oldest first, then prompts by rank
    decoding: list[Running] = field(default_factory=list)  # online, one token each
    prompts: list[Running] = field(default_factory=list)  # online, by rank
    decodes: list[int] = field(default_factory=list)  # offline, oldest first, as below
    contexts: list[int] = field(default_factory=list)  # tokens computed of each of ``decodes``
    prefills: list[int] = field(default_factory=list)
    final_blocks: int = 0  # KV blocks of the offline ones when they end
    growth_blocks: int = 0  # of those, what they will still ask for
    tpot_s: float = math.inf  # least promised to those whose first token is out
    due_s: float = math.inf  # when the earliest first token of the running is due
    unpromised: bool = False  # one of the online requests has no number for the token that it waits for

    @property
    def prompt_tokens(self) -> int:
        """Of the online prompts that run, all that is left of them."""
        return sum(request.step_tokens for request in self.prompts)


NO_RANKS: Mapping[str, int] = {}


def batch_of(running: Sequence[Running], left_out: Container[int] = (), ranks: Mapping[str, int] = NO_RANKS) -> Batch:
    """O(running), and the plan's largest part: each pass is one comprehension. ``ranks``: order of online prompts, by name."""
    kept = [place for place in range(len(running)) if place not in left_out] if left_out else list(range(len(running)))
    chat = [place for place in kept if not running[place].offline]
    offline = [place for place in kept if running[place].offline] if chat else kept
    decodes = [place for place in offline if running[place].step_tokens <= 1]
    final_blocks = sum([running[place].blocks_final for place in offline])
    batch = Batch(
        kept=kept,
        decodes=decodes,
        contexts=[running[place].context for place in decodes],
        prefills=[place for place in offline if running[place].step_tokens > 1] if len(decodes) < len(offline) else [],
        final_blocks=final_blocks,
        growth_blocks=final_blocks - sum([running[place].blocks_now for place in offline]),
    )
    if chat:
        _with_chat(batch, running, chat, ranks)
    return batch


def _with_chat(batch: Batch, running: Sequence[Running], chat: list[int], ranks: Mapping[str, int]) -> None:
    chat.sort(key=lambda place: (1, ranks.get(running[place].name, len(ranks))) if running[place].step_tokens > 1 else (0, 0))
    batch.online = chat
    for place in chat:
        request = running[place]
        (batch.decoding if request.step_tokens <= 1 else batch.prompts).append(request)
        due_s = request.tpot_s if request.decoding else request.due_s
        batch.unpromised |= due_s == math.inf
        if request.decoding:
            batch.tpot_s = min(batch.tpot_s, due_s)
        else:
            batch.due_s = min(batch.due_s, due_s)
