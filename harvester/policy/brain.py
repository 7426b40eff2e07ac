"""The scheduling policy of one replica: decides what each step runs. The engine and the simulator use the same class.

An adapter reports requests that arrive and finish, and steps that were run. Before a step it passes the engine's state and gets a plan of
everything that it has to do. The brain itself acts on nothing and reads no clock. Its parts are chosen by name (`parts`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import islice

from harvester.policy.admission.adapters import AdapterTurns
from harvester.policy.admission.rule import Rows, Space
from harvester.policy.admission.shortage import given_up, short_of_kv, yielding
from harvester.policy.kv.policy import CopyState
from harvester.policy.model.alone import ChatAlone, ChatTimes
from harvester.policy.model.arrivals import ArrivalRate
from harvester.policy.model.load import StepLoad
from harvester.policy.model.prediction import LengthPredictor
from harvester.policy.order.offline import OfflineOrder, OfflineRow
from harvester.policy.order.online import OnlineRequest
from harvester.policy.order.predicted import PredictedRequests
from harvester.policy.order.turns import give_up, left_out, ranked
from harvester.policy.parts import Parts
from harvester.policy.ran import Shares, StepRan
from harvester.policy.step.batch import Batch, batch_of
from harvester.policy.step.freed import at, newest_offline, without
from harvester.policy.step.guarantee import MAX_TRIED, first_rows, in_turn, led, no_rows, owed
from harvester.policy.step.plan import plan_step
from harvester.policy.step.preempt import PLANNED_SLOWDOWN, best_step_s, detect_s
from harvester.policy.step.share import PROMPTS_PER_STEP
from harvester.policy.step.view import Owed, StepPlan, StepView, Tried
from harvester.policy.view import EngineView, Plan, PolicyConfig


class Brain:
    """Called for each request: `arrive`, `finish`. For each step: `plan`, `choose_copies` while it runs, then `answered` and `observe`.

    Not thread-safe.
    """

    def __init__(self, parts: Parts, config: PolicyConfig) -> None:
        self._parts, self._config = parts, config
        self._rate = ArrivalRate()
        self._predicted = PredictedRequests()
        self._online: set[str] = set()  # requests that have not ended
        self._online_at_s = -math.inf  # when an online request was last open
        self._gave_way: set[str] = set()  # offline rows whose KV was last taken for chat
        self._alone = ChatAlone(config.max_slowdown, PLANNED_SLOWDOWN)
        self._adapters = AdapterTurns()
        self._shares = Shares()

    @property
    def parts(self) -> Parts:
        return self._parts

    @property
    def offline(self) -> OfflineOrder:
        """The offline rows that have not ended. An adapter calls `take` for those that it admits."""
        return self._parts.offline

    @property
    def predictor(self) -> LengthPredictor:
        """Predicts the lengths of online answers."""
        return self._predicted.predictor

    @property
    def chat_times(self) -> ChatTimes:
        """Chat's first-token times and gaps, as measured and as estimated without offline work."""
        return self._alone.times

    @property
    def chat_fresh(self) -> float:
        """Average share of an admitted chat's prompt that is computed, and not found in the prefix cache."""
        return self._shares.chat_fresh

    @property
    def online(self) -> int:
        """How many online requests have not ended."""
        return len(self._online)

    def arrive(self, request: OnlineRequest | OfflineRow, now_s: float) -> None:
        """A request waits. Call it again for an offline row that lost its KV; for a known online request it does nothing."""
        if isinstance(request, OfflineRow):
            self._parts.offline.add(request)
        elif request.name not in self._online:
            self._online.add(request.name)
            known = self._predicted.of(request, self._parts.model, self._shares.chat_fresh)
            self._parts.online.arrive(known, now_s)
            self._alone.arrive(request.name, known.prefill_s, request.arrived_s)
            self._rate.arrival(now_s)
            self._parts.reserve.arrival(now_s, math.ceil(self._shares.chat_own * request.blocks))

    def finish(self, name: str, answer_tokens: int | None = None) -> None:
        """A request ended with ``answer_tokens``; None: it was aborted, and its length is not learnt. Unknown names are ignored."""
        if name in self._online:
            self._online.remove(name)
            self._parts.online.finish(name)
            self._predicted.finish(name, answer_tokens)
            self._parts.gaps.finish(name)
            self._alone.finish(name)
            return
        if (row := self._parts.offline.known.get(name)) is not None:
            self._gave_way.discard(name)
            self._parts.admission.ended(row, answer_tokens)
            self._parts.offline.end(name)

    def gave_way(self, names: Iterable[str]) -> None:
        """These rows lose their KV for chat beyond what was planned. Admission is not to blame that it is computed again."""
        self._gave_way.update(names)

    def observe(self, ran: StepRan, seconds: float, now_s: float) -> None:
        """Learn from a step that took ``seconds`` and ended at ``now_s``."""
        self._parts.model.observe(ran.load, seconds)
        self._parts.online.ran([name for name in ran.online if name in self._online], seconds, now_s)
        self._parts.gaps.ran(ran.online, now_s)
        for job, tokens in ran.served.items():
            self._parts.offline.charge(job, tokens)
        again = sum([tokens for name, tokens in ran.recomputed.items() if name not in self._gave_way]) if ran.recomputed else 0
        computed = sum(ran.served.values())
        self._parts.admission.ran(computed, again)
        self._adapters.ran(computed)
        self._shares.ran(ran)

    def answered(self, ran: StepRan, seconds: float, now_s: float) -> None:
        """A step was answered ``seconds`` after it began. Call it before the next plan; `observe` may come later.

        The time of its online work alone is the model's share of the actual time: the machine's speed affects both alike.
        """
        self._alone.ran(seconds, ran.online_share(self._parts.model) * seconds, ran.first_tokens, ran.gaps, now_s)

    def choose_copies(self, state: CopyState) -> None:
        """Choose what the next step copies to the host; called once a step, while it runs."""
        self._parts.kv.choose_copies(state)

    def plan(self, view: EngineView) -> Plan:
        """Plan the next step from ``view``; O(running requests + slots), however many wait.

        May be called again for the same step: it changes nothing that an order depends on.
        """
        parts, now_s = self._parts, view.now_s
        ranks = self._ranks(view)
        swapped = parts.kv.swap_out(view, ranks, lambda names: parts.online.next_turn_s(names, now_s, view.max_seqs))
        if not swapped and parts.online.preempts_last:
            swapped = give_up(view, ranks)
        stalled = newest_offline(view) if view.stalled else ()
        rest, places = without(view, (*swapped, *stalled)) if swapped or stalled else (view, None)
        if self._online:
            self._online_at_s = now_s
        batch = rest.batch if rest.batch is not None else batch_of(rest.running, (), ranks)
        self._gave_way.update([view.running[place].name for place in stalled])
        seen, step, admit = self._led(rest, batch, ranks)
        out = self._without_turn(rest, step, ranks)
        return Plan(
            run=at(places, [i for i in step.run if i not in out] if out else step.run),
            pause=at(places, step.pause),
            sit_out=at(places, [i for i in step.run if i in out] if out else ()),
            preempt=(*stalled, *at(places, step.preempt)),
            swap_out=swapped,
            admit=admit,
            ranks=ranks,
            budget_tokens=step.budget_tokens,
            offline_tokens=step.offline_tokens,
            limit_s=step.limit_s,
            may_end=step.may_end,
            tpot_s=step.tpot_s,
            detect_s=self._detect_s(now_s),
            reserve=seen.reserve or (0, 0),
            copies=parts.kv.copies(rest, ranks, step.limit_s, step.offline_tokens is None),
        )

    def _ranks(self, view: EngineView) -> dict[str, int]:
        """Ranks of the running online requests and of the first that wait: one per slot, and one per request that the step must skip."""
        chat = (*view.batch.decoding, *view.batch.drafting, *view.batch.prompts) if view.batch is not None else view.running
        running = [one.name for one in chat if not one.offline]
        return ranked(self._parts.online, running, view.waiting.names, view.max_seqs + view.deferred, view.now_s)

    def _step(self, view: EngineView, seen: StepView, batch: Batch) -> StepPlan:
        """`plan_step`, and the newest rows preempted where KV runs out. Rows preempted for chat are noted: admission is not to blame."""
        step = plan_step(seen, self._config, self._parts.budget, batch, self._parts.admission)
        lost = short_of_kv(view, step, prompts=bool(batch.drafting or batch.prompts or batch.prefills))
        if step.preempt or lost:
            self._gave_way.update([view.running[place].name for place in step.preempt])
            self._gave_way.difference_update([view.running[place].name for place in lost])
        step = given_up(step, lost) if lost else step
        return yielding(view, step) if view.chat_only and self._online else step

    def _led(self, view: EngineView, batch: Batch, ranks: Mapping[str, int]) -> Tried:
        """The step, led by the first rows of a late job that lacks some of its share, where it is given one of them.

        Where its next row waits for rows of other jobs to end, only other late jobs are tried before it. Where none is given a row and none
        waits for rows of others, the step is planned as if there were no guarantee. Only a job whose row admission takes costs a plan.
        """
        order, admission = self._parts.offline, self._parts.admission
        waiting = self._adapters.placed(order.rows, view)
        shown = self._step_view(view, ranks)
        lacks = owed(order.late(), view, order.known, lambda one: admission.holds(one, view.blocks_of))
        if view.adapters is not None:
            lacks = [lack for lack in lacks if first_rows(waiting, lack.job, 1)]
        held_up: tuple[Rows, Owed] | None = None
        for lack in in_turn(lacks, view, batch, waiting, admission.blocks)[:MAX_TRIED]:
            first = first_rows(waiting, lack.job, min(lack.slots, view.max_seqs - view.loading - len(view.running)))
            given = Owed(frozenset([row.name for row in first]), lack.blocks, sum([admission.blocks(row) for row in first]))
            rows = led(waiting if held_up is None else no_rows, first)
            seen = shown(offline_next_blocks=admission.blocks(first[0]), owed=given)
            if not given.names.isdisjoint(self._admitted(seen, batch, admission.space(seen, batch, self._config), rows)):
                tried = self._tried(view, batch, shown, rows, given)
                if tried.step.offline_slots <= 0 or not given.names.isdisjoint(tried.admit):
                    return tried
            if held_up is None and admission.waits_for_others(first[0], lack, seen, batch, self._config):
                held_up = rows, given
        return self._tried(view, batch, shown, *(held_up or (waiting, None)))

    def _tried(self, view: EngineView, batch: Batch, shown: partial[StepView], rows: Rows, given: Owed | None) -> Tried:
        first = list(islice(rows(()), PROMPTS_PER_STEP))
        seen = shown(
            offline_next_blocks=self._parts.admission.blocks(first[0]) if first else 0,
            offline_next=[max(1, round(self._shares.fresh * row.tokens)) for row in first],
            owed=given,
        )
        step = self._step(view, seen, batch)
        return Tried(seen, step, self._admitted(seen, batch, (step.offline_slots, step.offline_blocks), rows))

    def _admitted(self, view: StepView, batch: Batch, space: Space, rows: Rows) -> tuple[str, ...]:
        if view.online_waiting or space[0] <= 0:
            return ()
        return self._parts.admission.admitted(rows, space, view, batch, self._config)

    def _step_view(self, view: EngineView, ranks: Mapping[str, int]) -> partial[StepView]:
        """What the step is planned from, but for the waiting rows and what is owed to them."""
        parts, now_s = self._parts, view.now_s
        return partial(
            StepView,
            running=view.running,
            online_waiting=len(view.waiting),
            online_waiting_blocks=view.waiting.blocks + (view.watermark_blocks if view.waiting.blocks else 0),
            free_blocks=view.free_blocks,
            total_blocks=view.total_blocks,
            max_seqs=view.max_seqs - view.loading,  # requests whose KV is read back join when it has arrived
            online_idle_s=now_s - self._online_at_s,
            now_s=now_s,
            waiting_due_s=view.waiting.due_s,
            waiting_tokens=view.waiting.tokens,
            returning_tokens=view.returning_tokens,
            returning_context=view.returning_context,
            max_tokens=view.max_tokens,
            offline_step_s=self._offline_step_s(view.max_segments, now_s),
            loading_growth=view.loading_growth,
            reserve=parts.reserve.reserve(now_s),
            guarantee=parts.offline.guarantee(),
            ranks=ranks,
            freeing=view.freeing,
            max_waited=parts.kv.max_waited,
            block_tokens=view.block_tokens,
            offline_rows=parts.offline.known,
            loading_rows=view.loading_rows,
            groups=view.groups,
            waiting_unpromised=view.waiting.unpromised,
            debt_s=self._alone.debt_s(now_s) if self._online else 0.0,
            saved_s=self._alone.saved_s if self._online else 0.0,
            gap_s=parts.gaps.allowed_s(view.running, now_s) if self._online else None,
        )

    def _offline_step_s(self, max_segments: int, now_s: float) -> float:
        """Longest step of offline work alone: the best for the arrival rate, and short enough that a stretch of it ends in time.

        A stretch is the part between two safepoints.
        """
        best_s = best_step_s(self._parts.model.predict(StepLoad(seqs=1)), self._rate.gap_s(now_s))
        return min(best_s, max_segments * self._detect_s(now_s)) if max_segments else best_s

    def _detect_s(self, now_s: float) -> float:
        """Seconds within which an offline step should end for an arrival without an SLO; inf long after the last online request."""
        bound, prefill_s = self._config.max_slowdown, self._alone.prefill_s
        if bound is None or not prefill_s or now_s - self._online_at_s > self._config.reserve_s:
            return math.inf
        return detect_s(bound, prefill_s)

    def _without_turn(self, view: EngineView, step: StepPlan, ranks: Mapping[str, int]) -> frozenset[int]:
        """Places of the online requests that sit out the step because it is not their turn, where there are more than slots."""
        if self._config.keeps_slots:
            return frozenset()
        if len(self._online) <= view.max_seqs and len(ranks) == len(self._online):
            return frozenset()
        running, bounds = view.running, [bound for bound in (view.max_tokens, step.budget_tokens) if bound is not None]
        online = {one.name: one.step_tokens for i in step.run if not (one := running[i]).offline}
        offline = sum([running[i].step_tokens for i in step.run if running[i].offline]) if len(online) < len(step.run) else 0
        tokens = min(bounds, default=math.inf) - offline
        free_blocks = view.free_blocks - view.watermark_blocks
        out = left_out(online, view.waiting.get, ranks, view.max_seqs, free_blocks, tokens, self._shares.chat_fresh)
        return frozenset([i for i in step.run if running[i].name in out]) if out else frozenset()
