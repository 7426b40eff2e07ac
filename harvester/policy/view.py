"""What the brain sees of an engine before a step, and what it answers: frozen values in slots, KV blocks and tokens.

Times are seconds of one monotonic clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from harvester.policy.waiting import WaitingView

if TYPE_CHECKING:
    from harvester.policy.kv.groups import KvGroups
    from harvester.policy.step.batch import Batch


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """The numeric settings of the policy; see `harvester.model_config.ShareConfig` and `ScheduleConfig`.

    ``ttft_s``: the TTFT SLO; inf: none.
    """

    reserved_slots: int
    reserved_kv: float
    offline_step_tokens: int
    reserve_s: float = 60.0
    max_ttft_delay_fraction: float = 1.0  # share of ``ttft_s`` that offline work may add to the step an arrival waits for
    ttft_s: float = math.inf
    max_slowdown: float | None = None  # of chat without an SLO, by offline work; None: no bound
    keeps_slots: bool = False  # a request has its slot as long as it has KV: none sits out a step for another


class Running(NamedTuple):
    """One request in the batch. ``step_tokens``: what it would compute in this step if nothing bounded it.

    A tuple, because thousands of them are made each step.
    """

    name: str
    offline: bool
    step_tokens: int
    blocks_now: int
    blocks_final: int  # offline: KV blocks when it has made its last allowed token
    blocks_step: int  # KV blocks it must get before it can run this step
    context: int = 0  # tokens computed
    decoding: bool = False  # its first token is out; ``step_tokens`` beyond one and ``drafts`` recompute lost KV
    due_s: float = math.inf  # when its first token is due; online, while not decoding
    tpot_s: float = math.inf  # TPOT SLO; online
    full_blocks: int = 0  # KV blocks that are computed to their last token; set only where online requests wait and checkpoints are on
    unsaved: int = 0  # those of them that are not in host memory
    drafts: int = 0  # of ``step_tokens``: proposed by speculative decoding, to be verified

    @property
    def drafting(self) -> bool:
        """Whether it decodes with drafts: it computes several tokens, and none of them is a prompt's."""
        return self.decoding and 1 < self.step_tokens <= 1 + self.drafts


# Called once for each victim, in order. Returns the KV blocks that its preemption frees, beyond those that the victims before it freed.
Freeing = Callable[[Running], int]


def unshared() -> Freeing:
    """A `Freeing` for requests that share no blocks."""
    return lambda one: one.blocks_now


class AdapterPlaces(NamedTuple):
    """LoRA adapters: a step computes ``most`` of them. ``held``: those of all requests with KV; ``of_chats``: of the online ones alone."""

    most: int
    held: frozenset[int]
    of_chats: frozenset[int]


@dataclass(frozen=True, slots=True)
class EngineView:
    """Snapshot of an engine before a step. ``running``: oldest first; a plan names requests by their places (indices) in it."""

    running: Sequence[Running]
    waiting: WaitingView
    free_blocks: int
    total_blocks: int
    max_seqs: int
    now_s: float
    block_tokens: int
    max_tokens: int | None = None  # most tokens of any step; None: not known
    loading: int = 0  # requests whose KV is on its way back from the host; each keeps a slot
    loading_online: bool = False  # one of them is online
    loading_growth: int = 0  # KV blocks that the offline ones of them will still need
    loading_rows: Mapping[str, int] = field(default_factory=dict)  # the offline ones of them, with their tokens known so far
    returning_tokens: int = 0  # tokens of online requests whose KV is back and that join this step
    returning_context: int = 0  # their computed tokens
    deferred: int = 0  # requests that the last step could not admit for another reason than room, such as a grammar that is not ready
    chat_only: bool = False  # chat waits so long that offline work should stand still
    stalled: bool = False  # the last step computed nothing though chat waits, nothing of a chat with images, or refused a chat once more
    item_holders: frozenset[str] = frozenset()  # requests that hold images in the encoder cache; used only where ``stalled``
    batch: Batch | None = None  # `batch_of` all running requests, if it was prepared ahead
    freeing: Callable[[], Freeing] = unshared  # used where requests are preempted: rows of one template share KV blocks
    max_segments: int = 0  # most parts that safepoints can cut a step into; 0: no step can end early
    groups: KvGroups | None = None  # how blocks follow from tokens; None: one group, of ``block_tokens``
    watermark_blocks: int = 0  # KV blocks that the engine leaves free when it admits a request beside others
    adapters: AdapterPlaces | None = None  # None: the engine has none

    @property
    def used_tokens(self) -> int:
        """Tokens that the KV blocks in use hold, if no group frees any."""
        return (self.total_blocks - self.free_blocks) * self.block_tokens // (1 if self.groups is None else self.groups.count)

    def blocks_of(self, tokens: int) -> int:
        """KV blocks that a request with so many computed tokens holds."""
        return -(-tokens // self.block_tokens) if self.groups is None else self.groups.held(tokens)

    def step_blocks(self, one: Running, tokens: int) -> int:
        """KV blocks that it takes to compute so many tokens more."""
        if self.groups is None:
            return -(-(one.context + tokens) // self.block_tokens) - one.blocks_now
        return self.groups.step(one.context, one.context + tokens)


@dataclass(frozen=True, slots=True)
class Copies:
    """KV blocks to copy to the host beside the next step.

    ``allowed``: maximum; ``awaited``: maximum where an online request's KV is read back; None: no bound. ``max_waited``: maximum unsaved
    blocks of its victims that the step may wait for.
    """

    grants: Mapping[str, int] = field(default_factory=dict)  # by request
    allowed: int | None = None
    awaited: int | None = None
    max_waited: int = 8


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that an adapter does in a step. The first five fields partition the places of `EngineView.running`."""

    run: tuple[int, ...]  # in this order
    pause: tuple[int, ...]  # left out of this step, KV kept
    sit_out: tuple[int, ...]  # online, not their turn: KV kept, their slots are free for others in this step
    preempt: tuple[int, ...]  # offline, KV freed
    swap_out: tuple[int, ...]  # online, KV freed: their turn comes last, or those ranked before them need it
    admit: tuple[str, ...]  # waiting offline requests, in this order, as far as the step's tokens go
    ranks: Mapping[str, int]  # order of the running online requests and of the first that wait; one without a rank is not served
    budget_tokens: int | None  # of the whole step; None: the engine's own bound
    offline_tokens: int | None  # of the step; None: no bound, offline work is alone
    limit_s: float  # longest step time that meets the SLO of its online requests
    may_end: bool  # an arrival may end it early: it holds offline work, and no online prompt
    tpot_s: float = math.inf  # strictest TPOT SLO of the online requests that decode in it
    detect_s: float = math.inf  # seconds within which the step should end once asked to
    reserve: tuple[int, int] = (0, 0)  # slots and KV blocks kept for arrivals
    copies: Copies | None = None  # None: there are no checkpoints

    @property
    def alone(self) -> bool:
        """Whether the step holds offline work only."""
        return self.offline_tokens is None
