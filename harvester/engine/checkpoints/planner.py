"""The engine core's half of the connector: which blocks are copied to the host in a step, and what a preempted request gets back.

A block is stored once the step that fills it has been answered: a step may end early, and then its blocks are never written. A prefix that
another request fills is stored for a request that shares it once the step that admitted the sharing request has been answered.
`CopyRequest.grants` says how many blocks a request may store. A preempted request saves the few that are missing at once, the partly filled
block too, before its blocks are overwritten.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from harvester.core import WorkClass, work_class
from harvester.engine.checkpoints.exchange import CopyRequest, CopyStats, PartialBlock, partial_key
from harvester.engine.checkpoints.jobs import CopyJob, CopyReport, StepOrders
from harvester.engine.checkpoints.layout import HostLayout, StepBlocks
from harvester.engine.checkpoints.tracked import InFlight, Jobs, KvBlock, Request, Tracked
from harvester.engine.checkpoints.worker.growth import Growth
from harvester.policy.kv.checkpoint import to_save
from harvester.policy.kv.hostpool import HostPool

log = logging.getLogger(__name__)


class Planner:
    """The planner of one engine core. Called only by its thread, in the order of `harvester.engine.vllm.connector`."""

    def __init__(self, config: HostLayout) -> None:
        self.config = config
        self.pool: HostPool[bytes] = HostPool(config.slots)
        self.copy_request = CopyRequest()
        self.done = CopyStats()
        self.slot_bytes = config.slot_bytes
        self.block_tokens = config.block_tokens
        self.supports_checkpoints = config.supports_checkpoints
        if not self.supports_checkpoints:
            log.warning("KV checkpoints are off: the model has more than one kind of attention")
        self.began_s: dict[str, float] = {}  # when requests began to be read back
        self.failed_loads: set[str] = set()  # requests whose load failed and that do not run again yet
        self.jobs = Jobs(config.num_workers)
        self.requests: dict[str, Tracked] = {}
        self._growth = Growth(self.pool, config.slot_bytes)
        self._victims: dict[str, int] = {}  # preempted since the last step: tokens whose KV is written
        self._tails: dict[str, PartialBlock] = {}
        self._being_loaded: set[bytes] = set()
        self._loads: dict[int, CopyJob] = {}  # of the step that is being planned, as the next two
        self._flush: set[int] = set()
        self._given: set[int] = set()  # KV blocks

    # Requests come and go

    def came(self, request: Request) -> None:
        self.requests[request.request_id] = Tracked(request)

    def saved(self, request_id: str) -> int:
        """How many full blocks of the request, from its first, are on the host or being copied there."""
        tail = self._tails.get(request_id)
        return self.pool.held(request_id) - (tail is not None and self.pool.state(tail.key) is not None)

    def preempted(self, request: Request) -> None:
        """The request loses its KV, which is valid but for tokens in flight. Called before vLLM takes its blocks."""
        self._victims[request.request_id] = self.requests[request.request_id].written_tokens
        self.pool.touch(request.request_id)

    def ended(self, request_id: str) -> None:
        """The request's KV blocks may be given to others from now on; who gets one waits for the stores that still read it."""
        tracked = self.requests.get(request_id)
        if tracked is None:
            self.pool.release(request_id)
            return
        for number in tracked.jobs:
            self.jobs.fence(number)

    @property
    def copies_in_flight(self) -> bool:
        """Whether copies are unfinished: steps must go on so that the workers can report them."""
        return len(self.jobs) > 0

    def reset(self) -> None:
        """Forget all KV: none that was computed is valid any more. Must not be called while a step is being planned."""
        assert not self._loads, "reset while a step is planned"
        assert not self._given, "reset while a step is planned"
        self._flush |= self.jobs.numbers()
        for request_id, tracked in list(self.requests.items()):
            tracked.jobs.clear()
            tracked.partial_tokens = None
            if tracked.request.is_finished():
                del self.requests[request_id]
        self.pool.clear()
        self.jobs.forget_all()
        self._being_loaded.clear()
        self._tails.clear()
        self._victims.clear()

    # What a preempted request gets back

    def readable_tokens(self, request: Request, local_tokens: int) -> int | None:
        """How many tokens behind the ``local_tokens`` on the device can be read from the host; None: ask again in the next step.

        Only a preempted request reads host memory: for a new one, waiting a step costs more than a prefix saves.
        """
        tracked = self.requests[request.request_id]
        if tracked.jobs or request.request_id in self._victims:
            return None
        tracked.blocks.clear()
        if request.num_preemptions == 0 or not self.supports_checkpoints:
            return 0
        tracked.update_keys(self.block_tokens // self.config.hash_tokens)
        tracked.local_tokens = local_tokens
        return 0 if request.skip_reading_prefix_cache else self._lookup(tracked)

    def _lookup(self, tracked: Tracked) -> int | None:
        """Tokens on the host: those in whole blocks, and in the partly filled one if it comes next."""
        found, tail = self._whole_blocks(tracked), self._tails.get(tracked.request.request_id)
        tracked.partial_tokens = None
        if found is None or tail is None:
            return found
        whole = tracked.local_tokens + found
        if not whole < tail.tokens < whole + self.block_tokens or tail.tokens > tracked.request.num_tokens:
            return found
        ready = self.pool.state(tail.key)
        if not ready:
            return None if ready is False else found
        tracked.partial_tokens = tail.tokens
        return tail.tokens - tracked.local_tokens

    def _whole_blocks(self, tracked: Tracked) -> int | None:
        """Tokens in the leading blocks that are on the host; None if one is still being stored, or being loaded for another request."""
        first = tracked.local_tokens // self.block_tokens
        states = [self.pool.state(key) for key in tracked.keys[first : tracked.request.num_tokens // self.block_tokens]]
        found = next((place for place, ready in enumerate(states) if ready is None), len(states))
        if not all(states[:found]):
            return None
        if not self._being_loaded.isdisjoint(tracked.keys[first : first + found]):
            return None
        return max(0, (first + found) * self.block_tokens - tracked.local_tokens)

    def load(self, request: Request, blocks: Sequence[KvBlock], tokens: int) -> None:
        """Read ``tokens`` back into the request's ``blocks``, those that `readable_tokens` found."""
        tracked = self.requests[request.request_id]
        self._given.update(block.block_id for block in blocks if block.block_id)
        upto = tracked.local_tokens + tokens
        end = -(-upto // self.block_tokens)
        fresh = range(-(-tracked.local_tokens // self.block_tokens), end)
        begin = next((place for place in fresh if not blocks[place].is_null and blocks[place].block_hash is None), end)
        keys = tracked.keys[begin : upto // self.block_tokens]
        if tracked.partial_tokens is not None and begin < end:
            keys.append(self._tails[request.request_id].key)
        slots = self.pool.load(request.request_id, keys)
        number = self.jobs.load(request.request_id, slots, keys)
        pairs = list(zip((block.block_id for block in blocks[begin:end]), slots, strict=True))
        self._loads[number] = CopyJob(request.request_id, pairs)
        assert not tracked.jobs, "a request is read back while its blocks are copied"
        tracked.jobs.add(number)
        tracked.partial_tokens = None
        if self.config.prefix_caching:
            self._being_loaded.update(keys)
        self.began_s[request.request_id] = time.monotonic()
        if work_class(request.priority) is not WorkClass.OFFLINE:
            self.copy_request.allowed = self.copy_request.awaited

    # A step

    def plan_step(self, step: StepBlocks) -> StepOrders:
        """The copies beside the step, which vLLM has planned. Uses up ``copy_request``."""
        for request_id, blocks, anew in step.given:
            self._take_blocks(self.requests[request_id], blocks, anew)
        self._given.update(step.copied_to)
        for request_id in step.preempted:
            tracked = self.requests.get(request_id)
            # One that was put back between two steps may be read back in the same step: it has no store to wait for.
            if tracked is not None and not self._loading(tracked):
                self._flush |= tracked.jobs
        self._flush |= self.jobs.reading(self._given)
        allowed = self.copy_request.allowed if step.tokens else None
        orders = StepOrders(self._loads, self._stores(), self._flush, allowed)
        for request_id in step.finished:
            self._finish(request_id)
        self._loads, self._flush, self._given = {}, set(), set()
        self.copy_request = CopyRequest(wait_blocks=self.copy_request.wait_blocks)
        return orders

    def _take_blocks(self, tracked: Tracked, blocks: Sequence[int] | None, anew: bool) -> None:
        tracked.update_keys(self.block_tokens // self.config.hash_tokens)
        tracked.take_blocks(blocks or (), anew)
        self._given.update(block for block in blocks or () if block)

    def _finish(self, request_id: str) -> None:
        self._tails.pop(request_id, None)
        tracked = self.requests.get(request_id)
        if tracked is not None:
            tracked.finished = True
            self.pool.release(request_id)
            if not tracked.jobs:
                del self.requests[request_id]

    def _stores(self) -> dict[int, CopyJob]:
        jobs: dict[int, CopyJob] = {}
        for request_id, granted in self.copy_request.grants.items() if self.supports_checkpoints else ():
            tracked = self._storable(request_id)
            if tracked is not None and request_id not in self._victims:
                self._forget_tail(request_id)
                jobs |= self._store_granted(tracked, granted)
        waited, most = self.done.waited_blocks, self.copy_request.wait_blocks
        for request_id, tokens in self._victims.items():
            tracked = self._storable(request_id) if self.supports_checkpoints and tokens else None
            if tracked is not None:
                jobs |= self._save(tracked, tokens, waited + most - self.done.waited_blocks)
        self._victims = {}
        return jobs

    def _storable(self, request_id: str) -> Tracked | None:
        tracked = self.requests.get(request_id)
        return None if tracked is None or tracked.request.is_finished() or self._loading(tracked) else tracked

    def _loading(self, tracked: Tracked) -> bool:
        return any(not self.jobs[number].store for number in tracked.jobs)

    def _store_granted(self, tracked: Tracked, granted: int) -> dict[int, CopyJob]:
        first = self.saved(tracked.request.request_id)
        written = min(tracked.written_tokens, tracked.request.num_tokens) // self.block_tokens
        last = min(written, first + granted, len(tracked.blocks), len(tracked.keys))
        pairs = [(key, block) for key, block in zip(tracked.keys[first:last], tracked.blocks[first:last], strict=True) if block]
        return self._store(tracked, pairs) or {}

    def _save(self, tracked: Tracked, tokens: int, most: int) -> dict[int, CopyJob]:
        """A job for the unsaved blocks of a preempted request, at most ``most``, which the workers do before anything else."""
        request_id, whole = tracked.request.request_id, tokens // self.block_tokens
        tracked.update_keys(self.block_tokens // self.config.hash_tokens)
        old = self._tails.get(request_id)
        if old is not None and (old.tokens != tokens or self.pool.state(old.key) is None):
            self._forget_tail(request_id)
        saved = self.saved(request_id)
        tail_tokens = tokens % self.block_tokens if self.config.partial_blocks and request_id not in self._tails else 0
        full, with_tail = to_save(whole, saved, tail_tokens, most)
        keys = tracked.keys[saved : saved + full]
        if with_tail:
            keys.append(partial_key(request_id, tokens))
        sources = tracked.blocks[saved : saved + len(keys)]
        if not keys or len(sources) < len(keys):
            return {}
        jobs = self._store(tracked, list(zip(keys, sources, strict=True)))
        if jobs is None:
            return {}
        if with_tail:
            self._tails[request_id] = PartialBlock(tokens, keys[-1])
        for number, job in jobs.items():
            self._flush.add(number)
            self.done.waited_blocks += len(job.blocks)
        return jobs

    def _store(self, tracked: Tracked, pairs: list[tuple[bytes, int]]) -> dict[int, CopyJob] | None:
        """A job that stores the ``pairs`` of key and KV block that are not on the host; None if the host has no room for them."""
        if not pairs:
            return {}
        request_id = tracked.request.request_id
        self._growth.prepare(len(pairs))
        slots = self.pool.store(request_id, [key for key, _ in pairs], self.copy_request.grants.keys())
        if slots is None:
            return None
        blocks = [(block, slots[key]) for key, block in pairs if key in slots]
        if not blocks:
            return {}
        number = self.jobs.store(request_id, [slot for _, slot in blocks], [block for block, _ in blocks])
        tracked.jobs.add(number)
        return {number: CopyJob(request_id, blocks)}

    def _forget_tail(self, request_id: str) -> None:
        tail = self._tails.pop(request_id, None)
        if tail is not None:
            self.pool.forget(request_id, tail.key)

    # What the workers report

    def report(self, report: CopyReport) -> None:
        """Take the workers' report, which comes with the answer of a step."""
        for number, ranks in report.ended.items():
            job = self.jobs.report(number, ranks, number in report.failed)
            if job is not None:
                self._end(number, job)
        stored, loaded = report.stored, report.loaded
        self.done.add(CopyStats(0, 0, stored.size_bytes, loaded.size_bytes, stored.seconds, loaded.seconds))

    def _end(self, number: int, job: InFlight) -> None:
        (self.pool.stored if job.store else self.pool.loaded)(job.slots, not job.failed)
        self.done.failed += job.failed
        if job.store:
            self.done.stored_blocks += len(job.slots)
        else:
            self.done.loaded_blocks += len(job.slots)
            self.failed_loads |= {job.request_id} if job.failed else set()
            self._being_loaded -= job.keys
        tracked = self.requests[job.request_id]
        tracked.jobs.remove(number)
        if tracked.finished and not tracked.jobs:
            del self.requests[job.request_id]
