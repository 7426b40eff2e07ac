"""The running requests grouped by their role in the step, in one pass: a step is planned every few ms, over up to thousands of them.

Most steps repeat the last one with one token more for each request. So everything that a plan needs of the whole batch is a sum here. A
batch that was prepared while the previous step ran only drops the requests that ended (`Batch.without`): planning then visits no request.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from harvester.policy.view import Running


@dataclass(slots=True)
class Batch:
    """Indices are places in ``StepView.running``; a place that is left out is in none of the lists."""

    kept: list[int] = field(default_factory=list)
    online: list[int] = field(default_factory=list)  # those that decode, oldest first, then prompts by rank
    decoding: list[Running] = field(default_factory=list)  # online, one token each
    drafting: list[Running] = field(default_factory=list)  # online: they decode too, with drafts
    prompts: list[Running] = field(default_factory=list)  # online, by rank
    decodes: list[int] = field(default_factory=list)  # offline, oldest first, as below
    contexts: list[int] = field(default_factory=list)  # tokens computed of each of ``decodes``
    context_sums: list[int] = field(default_factory=lambda: [0])  # sums over the first 0, 1, 2 .. of those
    prefills: list[int] = field(default_factory=list)
    final_blocks: int = 0  # KV blocks of the offline ones when they end
    growth_blocks: int = 0  # of those, what they will still ask for
    step_blocks: int = 0  # KV blocks that all but the offline prompts ask for in this step
    chat_blocks: int = 0  # KV blocks that the online ones hold
    decoding_tokens: int = 0  # of ``decoding``
    decoding_context: int = 0  # tokens computed of those
    tpot_s: float = math.inf  # strictest TPOT SLO of those whose first token is out
    due_s: float = math.inf  # when the earliest first token of the running is due
    first_tokens: bool = False  # one of the online requests has not made its first token
    unpromised: bool = False  # one of the online requests has no SLO for its next token

    @property
    def prompt_tokens(self) -> int:
        """Tokens left of all running online prompts."""
        return sum(request.step_tokens for request in self.prompts)

    @property
    def online_tokens(self) -> int:
        """Tokens left of all running online requests."""
        return self.decoding_tokens + sum(request.step_tokens for request in self.drafting) + self.prompt_tokens

    def without(self, gone: Sequence[int], rows: Sequence[Running]) -> Batch:
        """The batch once the requests at the places ``gone`` (ascending) have left ``rows``, and those behind have moved up.

        Only for a batch in which each request decodes one token.
        """
        assert not [*self.drafting, *self.prompts, *self.prefills], "what computes several tokens is looked at in each step"
        left = [rows[place] for place in gone]
        lost = [one for one in left if one.offline]
        contexts = list(self.contexts)
        for place in reversed(gone):
            if rows[place].offline:
                del contexts[bisect_left(self.decodes, place)]
        rest = replace(
            self,
            kept=list(range(len(self.kept) - len(gone))),
            online=_moved_up(self.online, gone),
            decodes=_moved_up(self.decodes, gone),
            contexts=contexts,
            context_sums=[0, *accumulate(contexts)] if lost else self.context_sums,
            final_blocks=self.final_blocks - sum([one.blocks_final for one in lost]),
            growth_blocks=self.growth_blocks - sum([one.blocks_final - one.blocks_now for one in lost]),
            step_blocks=self.step_blocks - sum([one.blocks_step for one in left]),
        )
        if len(lost) < len(left):
            rest._lose_chat([one for one in left if not one.offline])
        return rest

    def with_prompt(self, place: int, row: Running) -> Batch:
        """The batch plus an online prompt at its ``place``, which `batch_of` had left out. The batch must hold no other prompt of chat."""
        assert row.step_tokens > 1, "what computes one token stands among the decodes"
        assert not row.drafting, "so does what decodes with drafts"
        return replace(
            self,
            kept=list(range(len(self.kept) + 1)),
            online=[*self.online, place],
            prompts=[row],
            step_blocks=self.step_blocks + row.blocks_step,
            chat_blocks=self.chat_blocks + row.blocks_now,
            tpot_s=min(self.tpot_s, row.tpot_s) if row.decoding else self.tpot_s,
            due_s=self.due_s if row.decoding else min(self.due_s, row.due_s),
            first_tokens=self.first_tokens or not row.decoding,
            unpromised=self.unpromised or (row.tpot_s if row.decoding else row.due_s) == math.inf,
        )

    def _lose_chat(self, left: Sequence[Running]) -> None:
        """Drop the online requests ``left``. The result is that of `_take_chat` with those that stay."""
        names = {one.name for one in left}
        decoding = [one for one in self.decoding if one.name not in names]
        if self.first_tokens:
            self._take_chat(decoding)
            return
        self.decoding = decoding
        self.decoding_tokens -= sum([one.step_tokens for one in left])
        self.decoding_context -= sum([one.context for one in left])
        self.chat_blocks -= sum([one.blocks_now for one in left])
        tpots_s = {one.tpot_s for one in decoding}
        self.tpot_s, self.unpromised = min(tpots_s, default=math.inf), math.inf in tpots_s

    def _take_chat(self, requests: list[Running]) -> None:
        """Set the online requests and their sums. ``requests``: in the order of ``online``."""
        self.decoding = [one for one in requests if one.step_tokens <= 1]
        several = [one for one in requests if one.step_tokens > 1] if len(self.decoding) < len(requests) else []
        self.drafting, self.prompts = [one for one in several if one.drafting], [one for one in several if not one.drafting]
        self.decoding_tokens = sum([one.step_tokens for one in self.decoding])
        self.decoding_context = sum([one.context for one in self.decoding])
        self.chat_blocks = sum([one.blocks_now for one in requests])
        tpots_s = [one.tpot_s for one in requests if one.decoding]
        dues_s = [one.due_s for one in requests if not one.decoding] if len(tpots_s) < len(requests) else []
        self.tpot_s, self.due_s = min(tpots_s, default=math.inf), min(dues_s, default=math.inf)
        self.first_tokens, self.unpromised = bool(dues_s), math.inf in tpots_s or math.inf in dues_s


def _moved_up(places: Sequence[int], gone: Sequence[int]) -> list[int]:
    """``places`` without those that are ``gone``, each lowered by the number of those before it. Both ascend."""
    moved, start = list[int](), 0
    for before, place in enumerate(gone):
        end = bisect_left(places, place, start)
        moved += [other - before for other in places[start:end]]
        start = end + (end < len(places) and places[end] == place)
    return moved + [other - len(gone) for other in places[start:]]


NO_RANKS: Mapping[str, int] = {}


def batch_of(running: Sequence[Running], left_out: Container[int] = (), ranks: Mapping[str, int] = NO_RANKS) -> Batch:
    """Group the running requests; O(running), the costliest part of a plan: each pass is one comprehension.

    ``ranks``: order of online prompts, by name.
    """
    kept = [place for place in range(len(running)) if place not in left_out] if left_out else list(range(len(running)))
    chat = [place for place in kept if not running[place].offline]
    offline = [place for place in kept if running[place].offline] if len(chat) < len(kept) else []
    batch = Batch(kept=kept)
    if offline:
        _with_rows(batch, running, offline)
    if chat:
        _with_chat(batch, running, chat, ranks)
    return batch


def _with_rows(batch: Batch, running: Sequence[Running], offline: list[int]) -> None:
    rows = [running[place] for place in offline]
    decodes = [one for one in rows if one.step_tokens <= 1]
    if len(decodes) < len(rows):
        batch.decodes = [place for place in offline if running[place].step_tokens <= 1]
        batch.prefills = [place for place in offline if running[place].step_tokens > 1]
    else:
        batch.decodes = offline
    batch.contexts = [one.context for one in decodes]
    batch.context_sums = [0, *accumulate(batch.contexts)]
    batch.final_blocks = sum([one.blocks_final for one in rows])
    batch.growth_blocks = batch.final_blocks - sum([one.blocks_now for one in rows])
    batch.step_blocks = sum([one.blocks_step for one in decodes])


def _with_chat(batch: Batch, running: Sequence[Running], chat: list[int], ranks: Mapping[str, int]) -> None:
    requests = [running[place] for place in chat]
    if max([one.step_tokens for one in requests]) > 1:
        chat.sort(key=lambda place: _turn(running[place], ranks))
        requests = [running[place] for place in chat]
    batch.online = chat
    batch.step_blocks += sum([one.blocks_step for one in requests])
    batch._take_chat(requests)


def _turn(one: Running, ranks: Mapping[str, int]) -> tuple[int, int]:
    """Decodes go first, with drafts or without: a prompt may take all tokens of the step."""
    return (0, 0) if one.step_tokens <= 1 or one.drafting else (1, ranks.get(one.name, len(ranks)))
