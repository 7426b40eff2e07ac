"""An engine against a virtual clock: what vLLM does around harvester's plan, with a step cost in place of a GPU.

A step is: who of the online requests has a turn (`choose`), view, plan (`plan_step`), blocks and tokens, clock. It knows ``max_num_seqs``,
``max_num_batched_tokens``, KV blocks and chunked prefill. No threads, no wall clock, no randomness: equal input, equal output.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from harvester.policy.model.latency import StepLoad
from harvester.policy.order.mlfq import choose
from harvester.policy.step.plan import Plan, plan_step
from harvester.sim.engine import Brain, Engine
from harvester.sim.trace import Request
from harvester.sim.track import Outcome, Track


@dataclass(slots=True)
class _Step:
    """What is put together for one step."""

    tokens_left: int
    seqs_left: int
    work: list[tuple[Track, int]] = field(default_factory=list)
    blocks_in: int = 0  # copied from the host
    blocks_out: int = 0


class Simulation:
    """Runs a trace to its end. One simulation is for one trace: the brain keeps what it has learnt, the clock goes on."""

    def __init__(self, engine: Engine, brain: Brain) -> None:
        self.now_s = 0.0
        self.steps = 0
        self.busy_s = 0.0
        self.ended_steps = 0  # for an arrival; what they had computed is lost
        self._engine, self._brain = engine, brain
        self._arrivals: deque[Request] = deque()
        self._online: dict[str, Track] = {}
        self._held: dict[str, int] = {}  # KV blocks of online requests that have any
        self._offline: list[Track] = []  # with KV, oldest first
        self._queues: dict[str, deque[Track]] = {}  # offline rows without KV, by job; none is empty
        self._free = engine.total_blocks
        self._online_at_s = float("-inf")

    def run(self, requests: Iterable[Request] = (), until_s: float = float("inf")) -> list[Outcome]:
        """Outcomes in the order in which the requests ended; a step that begins before ``until_s`` is the last.

        A later call goes on from there, with what had not arrived or ended yet.

        Raises ValueError for a request that no empty engine could hold.
        """
        arrivals = self._arrivals = deque(sorted([*self._arrivals, *requests], key=lambda request: request.arrival_s))
        ended: list[Outcome] = []
        while self.now_s < until_s:
            while arrivals and arrivals[0].arrival_s <= self.now_s:
                self._arrive(arrivals.popleft())
            if self._online or self._offline or self._queues:
                ended += self._step()
            elif arrivals:
                self.now_s = arrivals[0].arrival_s
            else:
                break
        return ended

    def check(self) -> None:
        """Raise AssertionError where KV blocks are lost, held twice, or too few for what was computed."""
        tracks = [*self._online.values(), *self._offline]
        assert self._free >= 0
        assert self._free + sum(track.blocks for track in tracks) == self._engine.total_blocks
        assert all((track.blocks + track.host_blocks) * self._engine.block_tokens >= track.computed for track in tracks)
        assert self._held == {name: track.blocks for name, track in self._online.items() if track.blocks}

    # -- one step ---------------------------------------------------------------------------------------------------------------------

    def _step(self) -> list[Outcome]:
        step = _Step(self._engine.max_tokens, self._engine.max_seqs)
        batch = self._turns(step)
        waiting = [track for track in batch if not track.blocks]
        running = [*(track for track in batch if track.blocks), *self._offline]
        view = self._brain.view(self._engine, running, waiting, self._next_offline(), self.now_s, self._free)
        if self._online:
            self._online_at_s = self.now_s
        plan = plan_step(replace(view, online_idle_s=self.now_s - self._online_at_s), self._brain.limits, self._brain.model)
        for i in plan.preempt:
            self._push_back(running[i])
        if plan.budget_tokens is not None:
            step.tokens_left = min(plan.budget_tokens, step.tokens_left)
        for i in plan.run:
            if running[i].blocks:  # else it was pushed out in this step
                self._add(step, running[i])
        for track in waiting:
            if not self._add(step, track):
                break
        self._admit(step, plan)
        return self._finish(step, plan.preemptible)

    def _turns(self, step: _Step) -> list[Track]:
        if not self._online:
            return []
        engine = self._engine
        order = self._brain.order.order(self.now_s)
        turns = choose(order, engine.max_seqs, engine.max_tokens, engine.total_blocks, self._held, self._need)
        for request in turns.evict:
            self._evict(step, self._online[request])
        return [self._online[request] for request in turns.take]

    def _need(self, request: str) -> tuple[int, int]:
        track = self._online[request]
        left = track.left
        return self._engine.blocks(track.computed + left), left

    def _add(self, step: _Step, track: Track) -> bool:
        """Give it as many tokens of the step as are left; False where it gets none, for want of tokens, a slot or KV."""
        tokens = min(track.left, step.tokens_left)
        if tokens <= 0 or step.seqs_left <= 0:
            return False
        blocks = max(0, self._engine.blocks(track.computed + tokens) - track.blocks)
        if track.blocks and not self._push_out(step, track, blocks):
            return False
        if blocks > self._free:
            return False
        step.blocks_in += track.host_blocks
        track.host_blocks = 0
        track.blocks += blocks
        self._free -= blocks
        if not track.request.offline:
            self._held[track.request.id] = track.blocks
        step.work.append((track, tokens))
        step.tokens_left -= tokens
        step.seqs_left -= 1
        return True

    def _push_out(self, step: _Step, track: Track, blocks: int) -> bool:
        """As vLLM does for one that runs: the newest offline request gives up its KV until ``blocks`` are free.

        False where that is ``track`` itself.
        """
        working = {id(other) for other, _ in step.work}
        while blocks > self._free and self._offline and id(self._offline[-1]) not in working:
            last = self._offline[-1]
            self._push_back(last)
            if last is track:
                return False
        return True

    def _admit(self, step: _Step, plan: Plan) -> None:
        slots, blocks = plan.offline_slots, plan.offline_blocks
        while slots > 0 and (track := self._next_offline()) is not None:
            final = self._engine.blocks(track.request.prompt_tokens + track.request.output_tokens)
            if final > blocks or not self._add(step, track):
                break
            queue = self._queues[track.request.job]
            queue.popleft()
            if not queue:
                del self._queues[track.request.job]
            self._offline.append(track)
            slots, blocks = slots - 1, blocks - final

    def _finish(self, step: _Step, preemptible: bool) -> list[Outcome]:
        assert step.work, f"nothing can run at {self.now_s} s with {len(self._online)} online and {len(self._offline)} offline requests"
        load = _load(step.work)
        copy_s = max(step.blocks_in, step.blocks_out) * self._engine.block_copy_s  # the link is full duplex
        compute_s = self._engine.cost(load)
        seconds = max(compute_s, copy_s) if self._engine.evicted == "overlap" else compute_s + copy_s
        self.steps += 1
        end_s = self._brain.step_ends_s(self._engine, seconds, self.now_s, self._arrivals) if preemptible else None
        if end_s is not None:
            self.ended_steps += 1
            self.busy_s += end_s - self.now_s
            self.now_s = end_s
            return []
        if self._brain.model is not None:
            self._brain.model.observe(load, seconds)
        self.now_s += seconds
        self.busy_s += seconds
        return [self._leave(track) for track, tokens in step.work if self._ran(track, tokens, seconds)]

    def _ran(self, track: Track, tokens: int, seconds: float) -> bool:
        """Returns whether it has ended."""
        emitted = track.advance(tokens, self.now_s)
        if track.request.offline:
            self._brain.fair.charge(track.request.job, tokens + emitted)
        else:
            self._brain.order.ran(track.request.id, seconds, self.now_s)
        return track.ended

    # -- requests ---------------------------------------------------------------------------------------------------------------------

    def _arrive(self, request: Request) -> None:
        if self._engine.blocks(request.prompt_tokens + request.output_tokens) > self._engine.total_blocks:
            raise ValueError(f"request {request.id} needs more than all {self._engine.total_blocks} KV blocks; leave it out of the trace")
        track = Track(request)
        if request.offline:
            self._queues.setdefault(request.job, deque()).append(track)
            self._brain.fair.join(request.job)
        else:
            if self._brain.pace is not None:
                self._brain.pace.arrival(self.now_s)
            if self._brain.bursts is not None:
                self._brain.bursts.arrival(self.now_s, self._engine.blocks(request.prompt_tokens))
            self._online[request.id] = track
            self._brain.order.arrive(request.id, request.prompt_tokens, self.now_s)

    def _next_offline(self) -> Track | None:
        job = self._brain.fair.next(self._queues)
        return None if job is None else self._queues[job][0]

    def _evict(self, step: _Step, track: Track) -> None:
        """An online request without a turn gives up its KV to those that have one."""
        self._free += self._held.pop(track.request.id)
        if self._engine.evicted == "recompute":
            track.drop()
        else:
            step.blocks_out += track.blocks
            track.offload()

    def _push_back(self, track: Track) -> None:
        """An offline request goes back to the front of its job's queue, without KV."""
        self._offline.remove(track)
        self._free += track.blocks
        track.drop()
        self._queues.setdefault(track.request.job, deque()).appendleft(track)

    def _leave(self, track: Track) -> Outcome:
        request = track.request
        self._free += track.blocks
        if request.offline:
            self._offline.remove(track)
        else:
            del self._online[request.id], self._held[request.id]
            self._brain.order.finish(request.id)
        return Outcome(request, tuple(track.token_s), track.recomputed, track.preemptions)


def _load(work: list[tuple[Track, int]]) -> StepLoad:
    """The sum of `StepLoad.prefill` and `StepLoad.decode` over the step, without a value for each request: this is the hot loop."""
    prefill = decodes = context = 0
    attention = 0.0
    for track, tokens in work:
        if track.emitted and tokens == 1:
            decodes += 1
            context += track.computed
        else:
            prefill += tokens
            attention += tokens * (track.computed + tokens / 2)
    return StepLoad(prefill, attention, decodes, context, len(work))
