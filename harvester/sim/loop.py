"""Simulates a replica on a virtual clock: the brain of the engine, vLLM's mechanism around it, and a step cost in place of a GPU.

A step is: view, plan, schedule, clock, observe. No threads, no wall clock, no randomness: equal input, equal output. One step is in flight
at a time, as on a CPU; the brain learns from a step while the next one runs, as in the engine.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter, deque
from collections.abc import Iterable, Mapping

from harvester.policy.brain import Brain
from harvester.policy.model.load import StepLoad
from harvester.policy.ran import StepRan
from harvester.policy.step.preempt import Arrival, Flight, first_to_end, layers_between
from harvester.policy.view import Plan
from harvester.sim.door import SimDoor
from harvester.sim.engine import SimEngine
from harvester.sim.replica import Replica, Scheduled
from harvester.sim.trace import Request
from harvester.sim.track import Outcome, Track
from harvester.sim.view import copy_state, online_request, row_of, view

EMPTY_STEP_S = 0.001  # time after which an engine that could run nothing plans again
MAX_EMPTY_STEPS = 1000
APART_S = 1e-9  # added between requests that arrive at the same time


class Simulation:
    """Runs a trace to its end. One simulation is for one trace: the brain keeps what it has learnt, the clock goes on.

    ``door``: refuses chat; None: all requests are let in.
    """

    def __init__(self, engine: SimEngine, brain: Brain, door: SimDoor | None = None) -> None:
        self.now_s = 0.0
        self.steps = 0
        self.busy_s = 0.0
        self.ended_steps = 0  # steps ended early for an arrival; their work is lost
        self.offline_tokens = 0  # computed, prompts and answers
        self._engine, self._brain, self._door = engine, brain, door
        self._replica = Replica(engine, brain.offline, lambda row: brain.arrive(row_of(row, engine), self.now_s))
        self._arrivals: deque[Request] = deque()
        self._let_in: deque[Request] = deque()  # requests that passed the door while a step runs
        self._arrived = 0
        self._ran: tuple[StepRan, float, float] | None = None  # the last step, until the brain has learnt from it
        self._stalled = False
        self._empty_steps = 0  # in a row

    def run(self, requests: Iterable[Request] = (), until_s: float = math.inf) -> list[Outcome]:
        """Simulate. Returns outcomes in the order in which the requests ended; the last step is one that begins before ``until_s``.

        A later call goes on from there, with the requests that had not arrived or ended yet.

        Raises ValueError for a request that no empty engine could hold.
        """
        self._arrivals = deque(sorted([*self._arrivals, *requests], key=lambda request: request.arrival_s))
        ended: list[Outcome] = []
        while self.now_s < until_s:
            self._knock(self.now_s)
            while self._let_in and self._let_in[0].arrival_s <= self.now_s:
                self._arrive(self._let_in.popleft())
            if self._replica:
                ended += self._step()
            elif self._next_s() < math.inf:
                self.now_s = self._next_s()
            else:
                break
        return ended

    def _next_s(self) -> float:
        """When the next request arrives that the replica does not know yet; inf where there is none."""
        return min([queue[0].arrival_s for queue in (self._let_in, self._arrivals) if queue], default=math.inf)

    @property
    def going(self) -> list[Outcome]:
        """Outcomes so far of the requests that have arrived and not ended."""
        return [track.outcome() for track in self._replica]

    def check(self) -> None:
        """Raise AssertionError where the engine's accounts do not add up."""
        self._replica.check()

    def _knock(self, until_s: float) -> None:
        """Requests that arrive by then ask the door to be let in."""
        while self._arrivals and self._arrivals[0].arrival_s <= until_s:
            request = self._arrivals.popleft()
            if self._door is None or request.offline or self._door.lets_in(request, len(self._let_in)):
                insort(self._let_in, request, key=lambda one: one.arrival_s)

    def _arrive(self, request: Request) -> None:
        if self._engine.blocks(request.prompt_tokens + request.output_tokens) > self._engine.total_blocks:
            raise ValueError(f"request {request.id} needs more than all {self._engine.total_blocks} KV blocks; leave it out of the trace")
        self._arrived += 1
        track = Track(request, request.arrival_s + APART_S * self._arrived)
        if not request.offline:
            self._brain.arrive(online_request(track, self._engine), self.now_s)
        self._replica.wait(track)

    def _step(self) -> list[Outcome]:
        chat_only = self._door is not None and self.now_s < self._door.yield_until_s
        plan = self._brain.plan(view(self._replica, self.now_s, self._stalled, chat_only))
        step = self._replica.schedule(plan)
        self._learn()
        if self._engine.host_blocks:
            self._brain.choose_copies(copy_state(self._replica, plan, self.now_s))
        self._stalled = not step.work and bool(self._replica.online)
        if not step.work:
            self._pass_empty()
            return []
        self._empty_steps = 0
        return self._compute(plan, step)

    def _learn(self) -> None:
        ran, self._ran = self._ran, None
        if ran is not None:
            self._brain.observe(*ran)

    def _pass_empty(self) -> None:
        """Nothing could run: time passes until a copy ends, a request arrives, or the engine plans again."""
        self._empty_steps += not self._replica.loading
        assert self._empty_steps < MAX_EMPTY_STEPS, f"nothing can run at {self.now_s} s with {len(list(self._replica))} requests"
        seconds = min(self._replica.host.until_next_s(), self._next_s() - self.now_s, EMPTY_STEP_S)
        self._replica.arrived(self._replica.host.advance(seconds, bounded=False)[0])
        self.now_s += seconds

    def _compute(self, plan: Plan, step: Scheduled) -> list[Outcome]:
        load, host = load_of(step.work), self._replica.host
        seconds = self._engine.cost(load) + host.waited_s
        self._knock(self.now_s + seconds)
        may_end = plan.may_end and (plan.alone or self._engine.end_beside_chat)
        end_s = self._ends_s(load, seconds, plan) if may_end else None
        back, copied = host.advance(seconds if end_s is None else end_s - self.now_s)
        self._replica.arrived(back)
        self.steps += 1
        if end_s is not None:
            self.ended_steps += 1
            began_s = self.now_s
            self._pass(end_s - self.now_s)
            self._replica.take_back(step)
            self._brain.answered(StepRan(StepLoad()), end_s - began_s, self.now_s)
            return []
        seconds += self._engine.copy_cost * self._engine.block_copy_s * copied
        self._pass(seconds)
        ran = ran_of(load, step)
        self.offline_tokens += sum(ran.served.values())
        self._brain.answered(ran, seconds, self.now_s)
        self._ran = ran, seconds, self.now_s
        return [self._leave(track) for track, tokens in step.work.items() if track.advance(tokens, self.now_s) and track.ended]

    def _pass(self, seconds: float) -> None:
        self.now_s += seconds
        self.busy_s += seconds

    def _leave(self, track: Track) -> Outcome:
        self._replica.end(track)
        self._brain.finish(track.name, track.emitted)
        if self._door is not None and not track.offline:
            self._door.ended(self.now_s - track.request.arrival_s, track.emitted)
        return track.outcome()

    def _ends_s(self, load: StepLoad, seconds: float, plan: Plan) -> float | None:
        """When a step that would take ``seconds`` from now is ended early for an arrival; None: it is not."""
        engine, model = self._engine, self._brain.parts.model
        estimate_s = model.high_s(load) or 0.0
        between = layers_between(engine.layers, estimate_s, engine.safepoint_s, min(engine.detect_s, plan.detect_s))
        stretch_s = between * seconds / engine.layers if engine.layers else math.inf
        for request in self._let_in if engine.layers else ():
            if request.arrival_s >= self.now_s + seconds:
                return None
            prompt_s = model.bound(StepLoad.prefill(request.prompt_tokens)) if model.ready else 0.0
            step_s = model.predict(StepLoad(seqs=1))
            alone_s = model.predict(StepLoad.prompt(request.prompt_tokens, self._brain.chat_fresh)) if model.ready else 0.0
            arrival = Arrival(prompt_s, request.ttft_s, 0.0, engine.max_ttft_delay_fraction, step_s, engine.max_slowdown, alone_s)
            flight = Flight(1, True, self.now_s, estimate_s, not plan.alone, plan.tpot_s)
            if not request.offline and first_to_end([flight], request.arrival_s, arrival) is not None:
                end_s = self.now_s + math.ceil((request.arrival_s - self.now_s) / stretch_s) * stretch_s
                return end_s if end_s < self.now_s + seconds else None
        return None


def load_of(work: Mapping[Track, int]) -> StepLoad:
    """The load of ``work``. One token behind others counts as a decode, whatever it is. No object per request: this is the hot loop."""
    prefill = decodes = context = 0
    attention = 0.0
    for track, tokens in work.items():
        if tokens == 1 and track.computed:
            decodes += 1
            context += track.computed
        else:
            prefill += tokens
            attention += tokens * (track.computed + tokens / 2)
    return StepLoad(prefill, attention, decodes, context, len(work))


def ran_of(load: StepLoad, step: Scheduled) -> StepRan:
    """The report of a step to the brain."""
    served: Counter[str] = Counter()
    online = {track: tokens for track, tokens in step.work.items() if not track.offline}
    for track, tokens in step.work.items():
        if track.offline:
            served[track.request.job] += tokens
    admitted, chat = [track for track in step.admitted if track.offline], [track for track in step.admitted if not track.offline]
    answered = [track for track, tokens in online.items() if tokens >= track.left]
    first = [track.name for track in answered if not track.emitted]
    return StepRan(
        load,
        [track.name for track in online],
        served,
        sum(track.tokens for track in admitted),
        sum(track.computed for track in admitted),
        load_of(online) if served else load,
        first,
        len(answered) - len(first),
        {track.name: max(0, track.tokens - 1 - track.computed) for track in admitted if track.preemptions},
        sum(track.tokens for track in chat),
        sum(track.computed for track in chat),
    )
