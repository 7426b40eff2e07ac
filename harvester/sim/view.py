"""What the simulated engine holds, as the brain sees it; the counterpart of `harvester.engine.vllm.core.reads`."""

from __future__ import annotations

from functools import partial

from harvester.core import PRIORITY_OFFLINE
from harvester.policy.kv.checkpoint import Holder
from harvester.policy.kv.policy import CopyState
from harvester.policy.kv.victims import in_order_of_loss
from harvester.policy.order.offline import OfflineRow
from harvester.policy.order.online import OnlineRequest
from harvester.policy.view import EngineView, Plan, Running
from harvester.sim.engine import SimEngine
from harvester.sim.replica import Replica
from harvester.sim.track import Track


def online_request(track: Track, engine: SimEngine) -> OnlineRequest:
    """An online request that has arrived."""
    request = track.request
    return OnlineRequest(
        name=request.id,
        priority=request.priority,
        prompt_tokens=request.prompt_tokens,
        kind=request.kind,
        max_tokens=request.allowed_tokens,
        expected_tokens=request.expected_tokens,
        due_s=request.arrival_s + request.ttft_s,
        tpot_s=request.tpot_s,
        blocks=engine.blocks(request.prompt_tokens),
        arrived_s=request.arrival_s,
    )


def row_of(track: Track, engine: SimEngine) -> OfflineRow:
    """An offline request that waits."""
    request = track.request
    return OfflineRow(
        name=request.id,
        job=request.job,
        begun=track.preemptions > 0,
        weight=request.weight,
        guarantee=request.guarantee,
        priority=PRIORITY_OFFLINE + request.priority,
        slice_id=request.slice_id,
        arrival_s=track.arrival_s,
        final_blocks=engine.blocks(request.prompt_tokens + request.allowed_tokens),
        tokens=track.tokens,
        blocks=engine.blocks(track.tokens),
        prompt_tokens=request.prompt_tokens,
        max_tokens=request.allowed_tokens,
    )


def running(track: Track, engine: SimEngine) -> Running:
    """One request that holds KV."""
    request, computed, left, size = track.request, track.computed, track.left, engine.block_tokens
    blocks_now = -(-computed // size)
    return Running(
        track.name,
        track.offline,
        left,
        blocks_now,
        engine.blocks(request.prompt_tokens + request.allowed_tokens) if track.offline else 0,
        -(-(computed + (left if left < engine.max_tokens else engine.max_tokens)) // size) - blocks_now,
        computed,
        track.emitted > 0,
        request.arrival_s + request.ttft_s,
        request.tpot_s,
    )


def view(replica: Replica, now_s: float, stalled: bool, chat_only: bool = False) -> EngineView:
    """The replica's state before a step."""
    engine, host = replica.engine, replica.host
    rows = [running(track, engine) for track in replica.running]
    if engine.host_blocks and replica.online:
        full = [track.computed // engine.block_tokens for track in replica.running]
        rows = [row._replace(full_blocks=count, unsaved=count - host.saved(row.name)) for row, count in zip(rows, full, strict=True)]
    loading = replica.loading.values()
    back = [track for track in loading if track.name in replica.returned and not track.offline]
    return EngineView(
        running=rows,
        waiting=replica.waiting,
        free_blocks=replica.free_blocks,
        total_blocks=engine.total_blocks,
        max_seqs=engine.max_seqs,
        now_s=now_s,
        block_tokens=engine.block_tokens,
        max_tokens=engine.max_tokens,
        loading=len(loading),
        loading_online=any(not track.offline for track in loading),
        loading_growth=sum(row_of(track, engine).final_blocks - engine.blocks(track.tokens) for track in loading if track.offline),
        loading_rows={track.name: track.tokens for track in loading if track.offline},
        returning_tokens=sum(max(1, track.left) for track in back),
        returning_context=sum(track.computed for track in back),
        stalled=stalled,
        chat_only=chat_only,
        max_segments=engine.layers,
    )


def copy_state(replica: Replica, plan: Plan, now_s: float) -> CopyState:
    """While a step runs: what the running requests hold, on the device and on the host."""
    engine, host = replica.engine, replica.host
    names = [track.name for track in replica.running]
    offline = {track.name for track in replica.running if track.offline}
    order = in_order_of_loss(names, offline, plan.ranks)
    holders = tuple(
        Holder(names[place], replica.running[place].computed // engine.block_tokens, host.saved(names[place]), names[place] in offline)
        for place in order
    )
    room = partial(host.pool.room, names)
    return CopyState(holders, replica.free_blocks, engine.total_blocks, room, now_s, host.measured_s())
