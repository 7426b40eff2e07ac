"""What a simulation is made of: the engine's bounds and cost, and the brain that plans its steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from harvester.config import SloConfig
from harvester.policy.arrivals import Bursts
from harvester.policy.fair import FairOrder
from harvester.policy.latency import LatencyModel
from harvester.policy.share import Limits, Running, View
from harvester.sim.cost import Cost
from harvester.sim.order import Fcfs, Order
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

    def blocks(self, tokens: int) -> int:
        """KV blocks that hold ``tokens``."""
        return -(-tokens // self.block_tokens)


@dataclass(slots=True)
class Brain:
    """The policy objects of one replica, as the engine room holds them. None: that part is off.

    ``model`` learns from every step; ``bursts`` sizes the reserve; ``slo`` gives every online request its objectives.
    """

    limits: Limits
    order: Order = field(default_factory=Fcfs)
    fair: FairOrder = field(default_factory=FairOrder)
    model: LatencyModel | None = None
    bursts: Bursts | None = None
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
        )
