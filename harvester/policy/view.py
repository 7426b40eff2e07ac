"""What a step is planned from, and the plan: frozen values in slots, KV blocks and tokens. Times are of one monotonic clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """See `harvester.config.ShareConfig` and `ScheduleConfig.max_ttft_delay_fraction`. Without ``ttft_s`` there is nothing to delay."""

    reserved_slots: int
    reserved_kv: float
    offline_step_tokens: int
    reserve_s: float = 60.0
    max_ttft_delay_fraction: float = 1.0  # share of ``ttft_s`` that offline work may add to the step an arrival waits for
    ttft_s: float = math.inf


class Running(NamedTuple):
    """One request in the batch. ``step_tokens``: what it would compute in this step if nothing bounded it.

    A tuple, because thousands of them are made each step.
    """

    offline: bool
    step_tokens: int
    blocks_now: int
    blocks_final: int
    blocks_step: int  # KV blocks it must get before it can run this step
    context: int = 0  # tokens computed
    decoding: bool = False  # its first token is out
    due_s: float = math.inf  # when its first token is due; online, while not decoding
    tpot_s: float = math.inf  # promised from one token to the next; online
    rank: int = 0  # among the online ones, smaller first
    unsaved: int = 0  # KV blocks that would be computed again if it lost its KV


@dataclass(frozen=True, slots=True)
class Guarantee:
    """``share``: of slots and KV, and with ``above_slo`` of a step's time even where chat's promise then does not hold."""

    share: float
    above_slo: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """What the scheduler holds before a step. Requests are named by their place in ``running``, oldest first."""

    running: Sequence[Running]
    online_waiting: int
    online_waiting_blocks: int  # KV blocks that the waiting online prompts need
    offline_next_blocks: int  # KV blocks that the first waiting offline request holds when it ends; 0 where none waits
    free_blocks: int
    total_blocks: int
    max_seqs: int
    online_idle_s: float = 0.0  # since the last online request ended; 0 while one is there
    now_s: float = 0.0
    waiting_due_s: float = math.inf  # when the first of the waiting online requests' first tokens is due
    waiting_tokens: int = 0  # tokens of the waiting online prompts
    returning: int = 0  # tokens of online requests whose KV is back from the host and that join this step
    returning_context: int = 0  # tokens computed of them
    max_tokens: int | None = None  # most tokens of any step; None: not known
    offline_step_s: float = math.inf  # most seconds of a step of offline work alone
    loading_growth: int = 0  # KV blocks that offline requests whose KV is read back will still need
    reserve: tuple[int, int] | None = None  # slots and KV blocks kept for arrivals (`BurstReserve.reserve`); None: those of `PolicyConfig`
    guarantee: Guarantee | None = None  # to offline work, for a job near its deadline


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do in the step. The indices are places in ``View.running``; ``run``, ``pause`` and ``preempt`` part them."""

    run: tuple[int, ...]  # in this order
    pause: tuple[int, ...]  # left out of this step, KV kept
    preempt: tuple[int, ...]  # KV freed
    budget_tokens: int | None  # of the whole step; None: the engine's own bound
    offline_slots: int  # offline requests that may be admitted
    offline_blocks: int  # KV blocks, at their end, that those may take together
    preemptible: bool = False  # the step holds offline work only: an arrival may cut it short
    offline_tokens: int | None = None  # of the step; None: no bound, offline work is alone
    limit_s: float = math.inf  # that the step may last by what the online requests in it are promised
