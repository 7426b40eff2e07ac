"""What a simulation is made of: the engine's bounds and cost, and the brain that plans its steps."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from harvester.config import SloConfig
from harvester.policy.model.arrivals import ArrivalRate, BurstReserve
from harvester.policy.model.latency import LatencyModel, StepLoad
from harvester.policy.order.fair import FairOrder
from harvester.policy.step.plan import PolicyConfig, Running, View
from harvester.policy.step.preempt import Arrival, Flight, best_step_s, first_to_end
from harvester.sim.cost import Cost
from harvester.sim.order import Fcfs, Order
from harvester.sim.trace import Request
from harvester.sim.track import Track


@dataclass(frozen=True, slots=True)
class Engine:
    """Bounds of an engine, in vLLM's units, and the seconds of its steps.

    ``evicted`` says what becomes of the KV of an online request that is pushed out. ``recompute``: freed and computed again. ``swap``:
    copied to the host and back, the engine waits meanwhile. ``overlap``: copied beside the step's work, which takes longer only where the
    copies do (FastServe 4.2, with the choice of what to copy ahead taken as always right). Offline requests are always recomputed.
    """

    cost: Cost
    total_blocks: int
    max_seqs: int = 256
    max_tokens: int = 2048  # vLLM's max_num_batched_tokens
    block_tokens: int = 16
    evicted: Literal["recompute", "swap", "overlap"] = "recompute"
    block_copy_s: float = 0.0
    layers: int = 0  # after each of which a step of offline work alone may end for an arrival; 0: such steps run to their end

    def blocks(self, tokens: int) -> int:
        """KV blocks that hold ``tokens``."""
        return -(-tokens // self.block_tokens)


@dataclass(slots=True)
class Brain:
    """The policy objects of one replica, as the engine room holds them. None: that part is off.

    ``model`` learns from every step; ``bursts`` sizes the reserve; ``slo`` gives every online request its objectives.
    """

    limits: PolicyConfig
    order: Order = field(default_factory=Fcfs)
    fair: FairOrder = field(default_factory=FairOrder)
    model: LatencyModel | None = None
    bursts: BurstReserve | None = None
    pace: ArrivalRate | None = None
    slo: SloConfig | None = None

    def running(self, track: Track, engine: Engine, rank: int) -> Running:
        """One request as `plan_step` sees it. An offline one is taken to bound its answer by the length that it will have."""
        request, left, offline = track.request, track.left, track.request.offline
        promised = self.slo is not None and not offline
        return Running(
            offline=offline,
            step_tokens=left,
            blocks_now=track.blocks,
            blocks_final=engine.blocks(request.prompt_tokens + request.output_tokens) if offline else 0,
            blocks_step=max(0, engine.blocks(track.computed + left) - track.blocks),
            context=track.computed,
            decoding=track.emitted > 0,
            due_s=self.due_s(track) if not track.emitted else math.inf,
            tpot_s=self.slo.tpot_slo_ms / 1000 if promised and self.slo else math.inf,
            rank=rank,
        )

    def due_s(self, track: Track) -> float:
        """When its first token is due."""
        if self.slo is None or track.request.offline:
            return math.inf
        return track.request.arrival_s + self.slo.ttft_slo_ms / 1000

    def step_ends_s(self, engine: Engine, seconds: float, now_s: float, arrivals: Iterable[Request]) -> float | None:
        """When a step of offline work alone, which would take ``seconds`` from ``now_s``, ends for one of ``arrivals``; None: it does not.

        ``arrivals``: those to come, in order.
        """
        ttft_s = self.limits.ttft_s
        if not engine.layers or self.model is None or ttft_s == math.inf:
            return None
        layer_s = seconds / engine.layers
        for request in arrivals:
            if request.arrival_s >= now_s + seconds:
                return None
            prompt_s = self.model.bound(StepLoad.prefill(request.prompt_tokens))
            step, arrival = (
                Flight(1, True, now_s, seconds),
                Arrival(prompt_s, ttft_s, max_ttft_delay_fraction=self.limits.max_ttft_delay_fraction),
            )
            if not request.offline and first_to_end([step], request.arrival_s, arrival) is not None:
                end_s = now_s + math.ceil((request.arrival_s - now_s) / layer_s) * layer_s
                return end_s if end_s < now_s + seconds else None
        return None

    def view(self, engine: Engine, running: list[Track], waiting: list[Track], offline: Track | None, now_s: float, free: int) -> View:
        """``running`` hold KV; ``waiting``: online ones whose turn it is and that have none; ``offline``: the next one to admit."""
        return View(
            running=tuple(self.running(track, engine, rank) for rank, track in enumerate(running)),
            online_waiting=len(waiting),
            online_waiting_blocks=sum(engine.blocks(track.computed + track.left) for track in waiting),
            offline_next_blocks=self.running(offline, engine, 0).blocks_final if offline else 0,
            free_blocks=free,
            total_blocks=engine.total_blocks,
            max_seqs=engine.max_seqs,
            now_s=now_s,
            waiting_due_s=min((self.due_s(track) for track in waiting if not track.emitted), default=math.inf),
            waiting_tokens=sum(track.left for track in waiting),
            max_tokens=engine.max_tokens,
            reserve=self.bursts.reserve(now_s) if self.bursts else None,
            offline_step_s=self.offline_step_s(now_s),
        )

    def offline_step_s(self, now_s: float) -> float:
        """Best length of a step of offline work alone."""
        if self.model is None or self.pace is None:
            return math.inf
        return best_step_s(self.model.predict(StepLoad(seqs=1)), self.pace.gap_s(now_s))
