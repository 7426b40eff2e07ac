"""How much KV rows may hold together beside chat, its reserve and the margin: the caps of their curve, in tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from harvester.policy.admission.rule import kept, rows_and_chat_blocks
from harvester.policy.order.offline import OfflineRow
from harvester.policy.step.batch import Batch
from harvester.policy.step.view import StepView
from harvester.policy.view import PolicyConfig

PARTS = 8  # of a token, which tokens per block are counted in


class Caps(NamedTuple):
    """Maximum peaks of the curve, in tokens: all KV less chat's, the margin and the reserve.

    ``alone``: without the margin, for a row by itself; ``calm``: without chat.
    """

    beside: float
    alone: float
    calm: float


@dataclass(frozen=True, slots=True)
class Room:
    """What the rows of one step may hold.

    ``idle``: no request runs or has its KV read back; ``others``: a row does. ``first``: caps of the rows that ``owed`` names; ``usual``:
    of the others. ``shared_tokens``: whose KV a row shares with others, on average.
    """

    idle: bool
    others: bool
    usual: Caps
    first: Caps
    owed: frozenset[str]
    tokens_per_block: float
    block_tokens: int
    shared_tokens: float

    @property
    def spare_tokens(self) -> float:
        """What a row holds beyond its tokens: half a block, less what it shares."""
        return self.block_tokens / 2 - self.shared_tokens

    def caps_of(self, row: OfflineRow) -> Caps:
        return self.first if row.name in self.owed else self.usual

    def waits_for_rows(self, row: OfflineRow, left_tokens: float) -> bool:
        """Whether other rows are what it waits for. One that needs the margin only because of chat waits for chat, unless alone."""
        need, caps = row.tokens + left_tokens + self.block_tokens / 2, self.caps_of(row)
        return need <= caps.beside or (need <= caps.alone and (not self.others or need > caps.calm))


def room_of(view: StepView, batch: Batch, config: PolicyConfig, margin: float, row_tokens: float, given_blocks: int | None = None) -> Room:
    """The room of a step; O(prompts + chats). ``margin``: share of the KV kept free; ``row_tokens``: of the next row when it ends.

    ``given_blocks``: KV blocks that offline work may hold for the rows of `StepView.owed`, whatever the reserve. None: those that it holds
    by now, and those that their job lacks.
    """
    rows, chat = rows_and_chat_blocks(view, batch)
    in_use = view.total_blocks - view.free_blocks - chat  # blocks in use, without those of running chat
    chat_blocks = chat + _chat_growth(view, batch) + max(0, in_use - rows)  # and those in use for requests that do not run
    each = _tokens_per_block(view, batch, row_tokens)
    usual = first = _caps(view, config, chat_blocks, margin, None, each)
    if view.owed is not None:
        given_blocks = _rows_hold(view, batch) + view.owed.blocks if given_blocks is None else given_blocks
        first = _caps(view, config, chat_blocks, margin, given_blocks, each)
    count = len(batch.decodes) + len(batch.prefills) + len(view.loading_rows)
    return Room(
        idle=not view.running and not view.loading_rows,
        others=count > 0,
        usual=usual,
        first=first,
        owed=view.owed.names if view.owed is not None else frozenset(),
        tokens_per_block=each,
        block_tokens=view.block_tokens,
        shared_tokens=each * (max(0, rows - in_use) / count) if count else 0.0,  # blocks of a common prefix exist only once
    )


def pending_blocks(view: StepView, batch: Batch) -> int:
    """KV blocks that the running prompts will still take, chat's too."""
    prompts = [*batch.prompts, *[view.running[place] for place in batch.prefills]]
    return view.blocks_of_all([one.context + one.step_tokens for one in prompts]) - sum([one.blocks_now for one in prompts])


def _caps(view: StepView, config: PolicyConfig, chat_blocks: int, margin: float, given_blocks: int | None, each: float) -> Caps:
    """``given_blocks``: KV blocks that offline work may hold whatever the reserve, where chat leaves them; ``each``: tokens in one."""
    reserved = kept(view, config)[1]

    def tokens(chat_blocks: int, margin: float) -> float:
        blocks = (1.0 - margin) * view.total_blocks - chat_blocks
        cap = blocks - reserved
        return (cap if given_blocks is None else max(cap, min(blocks, given_blocks))) * each

    return Caps(tokens(chat_blocks, margin), tokens(chat_blocks, 0.0), tokens(0, margin))


def _rows_hold(view: StepView, batch: Batch) -> int:
    """KV blocks of the running rows, with those that their prompts will still take."""
    prompts = [view.running[place] for place in batch.prefills]
    growth = view.blocks_of_all([one.context + one.step_tokens for one in prompts]) - sum([one.blocks_now for one in prompts])
    return batch.final_blocks - batch.growth_blocks + growth


def _chat_growth(view: StepView, batch: Batch) -> int:
    """KV blocks that running chat will still take for what it computes next: the rest of its prompts, or one token each."""
    return view.blocks_of_all([one.context + one.step_tokens for one in map(view.running.__getitem__, batch.online)]) - batch.chat_blocks


def _tokens_per_block(view: StepView, batch: Batch, row_tokens: float) -> float:
    """Tokens of offline work for each KV block that it holds, which the curve is measured by.

    With several KV groups it is that of the running rows as they are, and of the next one at its end with ``row_tokens``. Rounded down, so
    that it seldom changes: then a refused row need not be tried again.
    """
    if view.groups is None:
        return view.block_tokens
    tokens = batch.context_sums[-1] + sum([view.running[place].context for place in batch.prefills]) + row_tokens
    blocks = batch.final_blocks - batch.growth_blocks + view.groups.held(int(row_tokens))
    return max(1, int(PARTS * tokens / max(1, blocks))) / PARTS
