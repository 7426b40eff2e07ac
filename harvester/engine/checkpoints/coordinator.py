"""What the scheduler does about checkpoints around each step: tells the brain what is copied, and the planner what to copy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import astuple
from functools import partial
from typing import Any

from harvester.engine.checkpoints.exchange import CopyRequest, CopyStats
from harvester.engine.checkpoints.planner import Planner
from harvester.engine.shared.state import Count, SharedState
from harvester.policy.kv.checkpoint import Holder
from harvester.policy.kv.policy import CopyState
from harvester.policy.kv.victims import in_order_of_loss
from harvester.policy.view import Plan, Running

COUNTED = (
    Count.STORED_BLOCKS,
    Count.LOADED_BLOCKS,
    Count.STORED_BYTES,
    Count.LOADED_BYTES,
    Count.STORE_S,
    Count.LOAD_S,
    Count.FAILED_COPIES,
    Count.WAITED_BLOCKS,
)  # in the order of `CopyStats`


class CheckpointCoordinator:
    """Checkpoints of one scheduler with our connector. ``answered``: tokens of a request whose KV is computed, without those in flight."""

    def __init__(self, planner: Planner, shared: SharedState | None, answered: Callable[[Any], int]) -> None:
        self._planner, self._shared, self._answered = planner, shared, answered
        self._lost: dict[str, int] = {}  # of preempted requests: tokens that were computed

    def request_copies(self, plan: Plan) -> None:
        """Before a step: hand the planner what the plan copies beside it."""
        if plan.copies is not None:
            self._planner.copy_request = CopyRequest(plan.copies.grants, plan.copies.allowed, plan.copies.awaited, plan.copies.max_waited)

    def marked(self, rows: Sequence[Running], requests: Sequence[Any]) -> list[Running]:
        """The running requests, each with its full KV blocks and the unsaved ones among them, which it would lose."""
        marked = []
        for row, request in zip(rows, requests, strict=True):
            full = self._answered(request) // self._planner.block_tokens
            marked.append(row._replace(full_blocks=full, unsaved=full - self._planner.saved(row.name)))
        return marked

    def state(self, requests: Sequence[Any], offline: Container[str], ranks: Mapping[str, int], pool: Any, now_s: float) -> CopyState:
        """While a step runs: what the running ``requests`` hold, on the device and on the host. ``pool``: vLLM's KV blocks."""
        planner, names = self._planner, [request.request_id for request in requests]
        holders = []
        for place in in_order_of_loss(names, offline, ranks):
            name, full = names[place], self._answered(requests[place]) // planner.block_tokens
            holders.append(Holder(name, full, planner.saved(name), name in offline))
        self._show(requests, holders)
        room = partial(planner.pool.room, names)
        total = pool.num_gpu_blocks - 1  # without vLLM's null block
        return CopyState(tuple(holders), pool.get_num_free_blocks(), total, room, now_s, self._copy_s())

    def _copy_s(self) -> float | None:
        """Seconds per block stored since the last call; None if none was. Adds the finished copies to the counters."""
        planner = self._planner
        done, planner.done = planner.done, CopyStats()
        if self._shared is not None:
            for count, value in zip(COUNTED, astuple(done), strict=True):
                self._shared.add(count, value)
        return done.store_s / done.stored_blocks / planner.config.num_workers if done.stored_blocks else None

    def preempted(self, request: Any) -> None:
        """The request is about to lose its KV, which is valid."""
        self._planner.preempted(request)
        self._lost[request.request_id] = self._answered(request)

    def admitted(self, names: Collection[str], computed: Mapping[str, int], now_s: float) -> None:
        """A step admitted these requests from the waiting queue. ``computed``: tokens of each that were computed already."""
        for name in names:
            lost = self._lost.pop(name, None)
            if lost is not None and name in computed and self._shared is not None:
                began_s = self._planner.began_s.pop(name, now_s)
                self._resumed(self._shared, name, lost, lost - computed[name])
                self._shared.add(Count.RESUME_S, now_s - began_s)

    def _resumed(self, shared: SharedState, name: str, lost: int, again: int) -> None:
        planner = self._planner
        shared.add(Count.RESUMED, 1)
        shared.add(Count.LOST_TOKENS, lost)
        shared.add(Count.RESUMED_WHOLE, again < planner.block_tokens)
        failed = name in planner.failed_loads
        planner.failed_loads.discard(name)
        cause = Count.FAILED_TOKENS if failed else Count.EDGE_TOKENS if again < planner.block_tokens else Count.UNCOVERED_TOKENS
        shared.add(cause, max(0, again))

    def _show(self, requests: Sequence[Any], holders: Sequence[Holder]) -> None:
        if self._shared is None:
            return
        planner, saved = self._planner, sum(one.saved for one in holders)
        computed = sum(self._answered(request) for request in requests)
        self._shared.set(Count.HOST_BLOCKS, planner.pool.used)
        self._shared.set(Count.HOST_BYTES, planner.pool.used * planner.slot_bytes)
        self._shared.set(Count.COVERED_BLOCKS, saved)
        self._shared.set(Count.LAG_TOKENS, max(0, computed - saved * planner.block_tokens))
        self._shared.set(Count.EVICTED_BLOCKS, planner.pool.evicted)

    def forget(self, name: str) -> None:
        """The request has ended."""
        self._lost.pop(name, None)
        self._planner.began_s.pop(name, None)
