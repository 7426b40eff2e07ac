"""Input and result of planning one step: the engine's state with what the brain knows of queues and arrivals, and the plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from harvester.policy.view import Freeing, Running, unshared

if TYPE_CHECKING:
    from harvester.policy.kv.groups import KvGroups
    from harvester.policy.order.offline import OfflineRow


@dataclass(frozen=True, slots=True)
class Guarantee:
    """The guarantee to offline work: ``share`` of slots and KV, and with ``above_slo`` of a step's time, even if that breaks chat's SLO."""

    share: float
    above_slo: bool = False


@dataclass(frozen=True, slots=True)
class Owed:
    """What a job near its deadline lacks of its guaranteed share, and its first waiting rows, which are admitted before all others.

    ``blocks``: KV blocks that it lacks; ``first_blocks``: those that its first rows need. As many rows as slots are lacking, at most.
    """

    names: frozenset[str]
    blocks: int
    first_blocks: int


@dataclass(frozen=True, slots=True)
class StepView:
    """What a step is planned from. Requests are named by their place in ``running``, oldest first."""

    running: Sequence[Running]
    online_waiting: int
    online_waiting_blocks: int  # KV blocks that the waiting online prompts need
    offline_next_blocks: int  # KV blocks, as admission counts them, of the first waiting offline request; 0 where none waits
    free_blocks: int
    total_blocks: int
    max_seqs: int
    online_idle_s: float = 0.0  # since the last online request ended; 0 while one is there
    now_s: float = 0.0
    waiting_due_s: float = math.inf  # when the first of the waiting online requests' first tokens is due
    waiting_tokens: int = 0  # tokens of the waiting online prompts
    offline_next: Sequence[int] = ()  # estimated tokens that each of the first waiting offline requests will compute
    returning_tokens: int = 0  # tokens of online requests whose KV is back from the host and that join this step
    returning_context: int = 0  # their computed tokens
    max_tokens: int | None = None  # most tokens of any step; None: not known
    offline_step_s: float = math.inf  # most seconds of a step of offline work alone
    loading_growth: int = 0  # KV blocks that offline requests whose KV is read back will still need
    reserve: tuple[int, int] | None = None  # slots and KV blocks kept for arrivals; None: the fixed share of `PolicyConfig`
    guarantee: Guarantee | None = None  # the largest of a job near its deadline
    owed: Owed | None = None  # to such a job; None: none lacks any of its share
    ranks: Mapping[str, int] = field(default_factory=dict)  # of online requests: who goes first
    waiting_unpromised: bool = False  # one of the waiting online requests has no TTFT SLO
    debt_s: float = 0.0  # seconds by which the delay of chat without an SLO exceeds the allowed one
    saved_s: float = 0.0  # seconds by which the last steps with such chat were stretched less than planned, up to a bound
    gap_s: float | None = None  # seconds until the next token of chat is due; None: the strictest TPOT SLO holds
    freeing: Callable[[], Freeing] = unshared  # see `harvester.policy.view.EngineView`
    max_waited: int = 0  # KV blocks that the step may wait for while victims save them
    block_tokens: int = 16
    offline_rows: Mapping[str, OfflineRow] = field(default_factory=dict)  # those that have not ended, waiting or not
    loading_rows: Mapping[str, int] = field(default_factory=dict)  # tokens of the offline requests whose KV is read back
    groups: KvGroups | None = None  # see `harvester.policy.view.EngineView`

    @property
    def kv_tokens(self) -> int:
        """Tokens that all KV blocks hold, if no group frees any."""
        return self.total_blocks * self.block_tokens // (1 if self.groups is None else self.groups.count)

    def blocks_of_all(self, tokens: Sequence[int]) -> int:
        """KV blocks that requests with so many computed tokens hold together."""
        if self.groups is not None:
            return sum(map(self.groups.held, tokens))
        size = self.block_tokens
        return sum([-(-each // size) for each in tokens])


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What runs in the step. The indices are places in `StepView.running`; ``run``, ``pause`` and ``preempt`` partition them."""

    run: tuple[int, ...]  # in this order
    pause: tuple[int, ...]  # left out of this step, KV kept
    preempt: tuple[int, ...]  # KV freed
    budget_tokens: int | None  # of the whole step; None: the engine's own bound
    offline_slots: int  # offline requests that may be admitted
    offline_blocks: int  # KV blocks, as admission counts them, that those may take together
    may_end: bool = False  # an arrival may end it early: it holds offline work, and no online prompt
    tpot_s: float = math.inf  # strictest TPOT SLO of the online requests that decode in it
    offline_tokens: int | None = None  # of the step; None: no bound, offline work is alone
    limit_s: float = math.inf  # longest step time that meets the SLO of its online requests


class Tried(NamedTuple):
    """A step as it would be, and the waiting rows that it admits."""

    seen: StepView
    step: StepPlan
    admit: tuple[str, ...]
