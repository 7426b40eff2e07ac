"""vLLM's own mechanism around a plan: which requests run, are admitted, or are preempted for lack of a block.

As in `vllm.v1.core.sched.scheduler.Scheduler.schedule` of vLLM 0.32, with chunked prefill. Not simulated:
blocks that requests share, KV of a preempted request that is still in the prefix cache, and requests that are aborted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from harvester.policy.order.offline import OfflineOrder
from harvester.policy.view import Plan
from harvester.policy.waiting import Waiting, WaitingOnline
from harvester.sim.engine import SimEngine
from harvester.sim.host import SimHostMemory
from harvester.sim.track import Track


def _latest(one: Track) -> tuple[bool, int, float]:
    return one.offline, one.request.priority, one.arrival_s


@dataclass(slots=True)
class Scheduled:
    """What one step computes. ``work``: tokens by request; ``admitted``: those that came from the waiting queue in it."""

    tokens_left: int
    work: dict[Track, int] = field(default_factory=dict)
    admitted: list[Track] = field(default_factory=list)


class Replica:
    """State of a vLLM scheduler. ``arrive`` tells the brain of waiting offline requests; ``order`` is told when one waits no longer."""

    def __init__(self, engine: SimEngine, order: OfflineOrder, arrive: Callable[[Track], None]) -> None:
        self.engine, self.host = engine, SimHostMemory(engine)
        self._order, self._arrive = order, arrive
        self.running: list[Track] = []  # oldest first
        self.online: dict[str, Track] = {}  # waiting, without KV
        self.waiting = WaitingOnline()  # the same, as the brain sees them
        self.offline: dict[str, Track] = {}  # waiting offline requests, without KV
        self.loading: dict[str, Track] = {}  # KV on its way back from the host
        self.returned: set[str] = set()  # those of ``loading`` whose KV has arrived
        self.free_blocks = engine.total_blocks

    def __bool__(self) -> bool:
        """Whether it holds any request."""
        return bool(self.running or self.online or self.offline or self.loading)

    def __iter__(self) -> Iterator[Track]:
        for held in (self.running, self.online.values(), self.offline.values(), self.loading.values()):
            yield from held

    def wait(self, track: Track) -> None:
        """The request waits: it is new, or lost its KV."""
        if track.offline:
            self.offline[track.name] = track
            self._arrive(track)
        else:
            self.online[track.name] = track
            due_s = track.request.arrival_s + track.request.ttft_s
            self.waiting.add(Waiting(track.name, track.tokens, self.engine.blocks(track.tokens), due_s))

    def end(self, track: Track) -> None:
        """It has made its last token."""
        self.running.remove(track)
        self.free_blocks += track.blocks
        self.host.release(track.name)

    def take_back(self, step: Scheduled) -> None:
        """The step ended early: nothing of it was computed, and the requests admitted in it wait again."""
        for track in step.admitted:
            self.running.remove(track)
            self.free_blocks += track.blocks
            track.drop()
            self.wait(track)

    def arrived(self, names: list[str]) -> None:
        """The KV of these is back from the host."""
        self.returned.update(names)

    def schedule(self, plan: Plan) -> Scheduled:
        """Apply the plan to the next step."""
        batch, bound = list(self.running), self.engine.max_tokens
        self.host.begin(plan.copies)
        run = [batch[i] for i in plan.run]
        for i in (*plan.swap_out, *plan.preempt):
            self._preempt(batch[i])
        step = Scheduled(bound if plan.budget_tokens is None else min(bound, plan.budget_tokens))
        if self._run(run, step):
            self._admit(run, step, plan)
        self.running = run + [batch[i] for i in (*plan.pause, *plan.sit_out)]
        self.host.grant({track.name: track for track in self.running})
        return step

    def _run(self, run: list[Track], step: Scheduled) -> bool:
        """Schedule the running requests, in the plan's order. Returns whether all found the blocks they need: else nobody is admitted."""
        enough, place = True, 0
        while place < len(run) and step.tokens_left > 0:
            track = run[place]
            tokens = min(track.left, step.tokens_left)
            more = max(0, self.engine.blocks(track.computed + tokens) - track.blocks)
            while more > self.free_blocks:
                enough = False
                victim = max(run, key=_latest) if self.engine.latest_gives_way else run[-1]
                place -= run.index(victim) < place
                run.remove(victim)
                step.tokens_left += step.work.pop(victim, 0)
                self._preempt(victim)
                if victim is track:
                    return False
            self._give(track, tokens, more, step)
            place += 1
        return enough

    def _admit(self, run: list[Track], step: Scheduled, plan: Plan) -> None:
        """Admit those whose KV is back, then online requests by rank, then the plan's offline ones, until one finds no room."""
        most = self.engine.max_seqs - len(plan.pause)
        back = [track for name, track in self.loading.items() if name in self.returned]
        online = [self.online[name] for name in sorted(plan.ranks, key=plan.ranks.__getitem__) if name in self.online]
        offline = [self.offline[name] for name in plan.admit if name in self.offline]
        for track in (*back, *online, *offline):
            if step.tokens_left <= 0 or len(run) >= most:
                return
            found = self.host.find(track) if track.preemptions and not track.blocks else 0
            if found is None:
                continue
            if self.engine.blocks(track.tokens) - track.blocks > self.free_blocks:
                return
            if found:
                if self.engine.blocks(found) > self.free_blocks - self._reserved(run, step):
                    return
                self._load(track, found)
                continue
            self._enter(track)
            tokens = min(track.left, step.tokens_left)
            self._give(track, tokens, max(0, self.engine.blocks(track.computed + tokens) - track.blocks), step)
            run.append(track)
            step.admitted.append(track)

    def _give(self, track: Track, tokens: int, more_blocks: int, step: Scheduled) -> None:
        track.blocks += more_blocks
        self.free_blocks -= more_blocks
        step.work[track] = tokens
        step.tokens_left -= tokens

    def _enter(self, track: Track) -> None:
        """The request leaves its queue, to join the batch."""
        if self.loading.pop(track.name, None) is not None:
            self.returned.discard(track.name)
            return
        self._leave_queue(track)
        track.computed = min(track.request.cached_tokens, track.request.prompt_tokens - 1)

    def _load(self, track: Track, tokens: int) -> None:
        self._leave_queue(track)
        self.loading[track.name] = track
        track.computed, track.blocks = tokens, self.engine.blocks(tokens)
        self.free_blocks -= track.blocks
        self.host.load(track, tokens)

    def _leave_queue(self, track: Track) -> None:
        if track.offline:
            del self.offline[track.name]
            self._order.take(track.name)
        else:
            del self.online[track.name]
            self.waiting.remove(track.name)

    def _reserved(self, run: list[Track], step: Scheduled) -> int:
        """Blocks that unfinished prompts of this step will still need: a request whose KV is read back cannot be preempted meanwhile."""
        begun = [*(track for track in run if track.left > step.work.get(track, 1)), *self.loading.values()]
        return sum(max(0, self.engine.blocks(track.tokens) - track.blocks) for track in begun)

    def _preempt(self, track: Track) -> None:
        """The request loses its KV, except what is on the host, and waits."""
        if self.engine.host_blocks:
            self.host.save(track)
        self.free_blocks += track.blocks
        track.drop()
        track.preemptions += 1
        self.wait(track)

    def check(self) -> None:
        """Raise AssertionError where KV blocks are lost, held twice, or too few for what was computed."""
        holding = [*self.running, *self.loading.values()]
        assert self.free_blocks >= 0
        assert self.free_blocks + sum(track.blocks for track in holding) == self.engine.total_blocks
        assert all(track.blocks * self.engine.block_tokens >= track.computed for track in holding)
        assert all(not track.blocks and not track.computed for track in (*self.online.values(), *self.offline.values()))
        assert {row.name for row in self._order.rows()} == set(self.offline)
        assert len({track.name for track in self}) == len(list(self))
        assert {one.name for one in self.waiting} == set(self.online)
        self.waiting.check()
        self.host.check()
