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
    from harvester.policy.step.batch import Batch


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """The numbers that plans are made with; see `harvester.model_config.ShareConfig` and `ScheduleConfig`.

    Without ``ttft_s`` there is no first token to delay.
    """

    reserved_slots: int
    reserved_kv: float
    offline_step_tokens: int
    reserve_s: float = 60.0
    max_ttft_delay_fraction: float = 1.0  # of ``ttft_s``, what offline work may add to the step an arrival waits for
    ttft_s: float = math.inf
    max_slowdown: float | None = None  # of chat that is promised no number, by offline work; None: no bound
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
    decoding: bool = False  # its first token is out; of more than one ``step_tokens`` the others are drafts, or KV that it has lost
    due_s: float = math.inf  # when its first token is due; online, while not decoding
    tpot_s: float = math.inf  # promised from one token to the next; online
    full_blocks: int = 0  # KV blocks that are computed to their last token; known where somebody waits and checkpoints are on
    unsaved: int = 0  # of those, not in host memory


Freeing = Callable[[Running], int]  # asked of one request after the other: the KV blocks that are free once it has lost its own too


def unshared() -> Freeing:
    """Where requests share no blocks."""
    return lambda one: one.blocks_now


@dataclass(frozen=True, slots=True)
class EngineView:
    """What an engine holds before a step. ``running``: oldest first; a plan names them by their places in it."""

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
    returning: int = 0  # tokens of online requests whose KV is back and that join this step
    returning_context: int = 0  # tokens computed of them
    deferred: int = 0  # requests that the last step could not admit for another reason than room, such as a grammar that is not ready
    chat_only: bool = False  # chat waits so long that offline work should stand still
    stalled: bool = False  # the last step could run nothing though online requests wait, or nothing of one that runs
    item_holders: frozenset[str] = frozenset()  # requests that hold images beside their KV; looked at where ``stalled``
    batch: Batch | None = None  # `batch_of` all that run, where it was made ahead
    freeing: Callable[[], Freeing] = unshared  # looked at where requests are to lose their KV: rows of a template share its blocks
    stretches: int = 0  # most parts that safepoints can cut a step into; 0: no step can end early


@dataclass(frozen=True, slots=True)
class Copies:
    """KV blocks to copy to the host beside the next step.

    ``allowed``: most beside it; ``awaited``: the same where an online request is read back; None: no bound. ``max_waited``: most that the
    step may wait for, of the requests that lose their KV in it.
    """

    grants: Mapping[str, int] = field(default_factory=dict)  # by request
    allowed: int | None = None
    awaited: int | None = None
    max_waited: int = 8


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that an adapter does in a step. The first five part the places of `EngineView.running`."""

    run: tuple[int, ...]  # in this order
    pause: tuple[int, ...]  # left out of this step, KV kept
    sit_out: tuple[int, ...]  # online, not their turn: KV kept, their slots are free for others in this step
    preempt: tuple[int, ...]  # offline, KV freed
    swap_out: tuple[int, ...]  # online, KV freed: their turn comes last, or those before them lack it
    admit: tuple[str, ...]  # waiting offline requests, in this order, as far as the step's tokens go
    ranks: Mapping[str, int]  # of the running online requests and the first that wait: who goes first; one that is not here is not served
    budget_tokens: int | None  # of the whole step; None: the engine's own bound
    offline_tokens: int | None  # of the step; None: no bound, offline work is alone
    limit_s: float  # that the step may last by what the online requests in it are promised
    may_end: bool  # an arrival may end it early: it holds offline work, and no online prompt
    tpot_s: float = math.inf  # least promised to the online requests that decode in it
    detect_s: float = math.inf  # within which it should end once asked to
    reserve: tuple[int, int] = (0, 0)  # slots and KV blocks kept for arrivals
    copies: Copies | None = None  # None: there are no checkpoints

    @property
    def alone(self) -> bool:
        """Whether the step holds offline work only."""
        return self.offline_tokens is None
