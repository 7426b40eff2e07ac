"""A step that was planned while the last one ran is the step that would be planned now, whatever came between the two."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harvester.config import parse_config
from harvester.policy.view import Plan, Running

if TYPE_CHECKING:
    from bench.harness.engine.drive import Drive

pytestmark = pytest.mark.engine

SLOTS, BLOCKS, BLOCK = 8, 120, 16
STEPS, STEP_S = 600, 0.002


class Clock:
    """Stands for `time` in the scheduler: a plan made ahead and one made now see the same time, however busy the machine is."""

    def __init__(self) -> None:
        self.now_s = 1e9  # all requests came long ago

    def monotonic(self) -> float:
        return self.now_s

    time = monotonic


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    from harvester.engine.core import ahead, reporting
    from harvester.engine.vllm.core import scheduler

    clock = Clock()
    for module in (ahead, reporting, scheduler):
        monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def shared() -> Iterator[Path]:
    from harvester.engine.shared.state import Field, SharedState

    made = SharedState.make()
    made[Field.PLACES] = 4
    yield made.path
    made.remove()


def drive_of(kind: str, shared: Path) -> Drive:
    from bench.harness.engine.drive import Drive
    from harvester.engine.embedded import embedded_model
    from harvester.engine.shared.settings import pack
    from harvester.engine.vllm.core import scheduler

    return Drive(embedded_model(), getattr(scheduler, kind), BLOCKS, SLOTS, BLOCK, pack(parse_config({}, "test"), shared))


def known(plan: Plan) -> Plan:
    """What an arrival's clock does not change: copies are planned with averages that go on."""
    return replace(plan, run=tuple(sorted(plan.run)))


def untimed(row: Running) -> Running:
    return row._replace(due_s=0.0)


class Story:
    """Random things happen to a scheduler; ``depth`` steps are under way at once."""

    def __init__(self, drive: Drive, clock: Clock, depth: int, online: float, seed: int) -> None:
        self.drive, self.depth, self.online = drive, depth, online
        self.rng = random.Random(seed)
        self.steps: deque[tuple[Any, Any]] = deque()
        self.void_epoch: int | None = None
        self.clock, self.planned_s = clock, 0.0  # when the last plan ahead was made
        self.planned: Counter[str] = Counter()  # how the steps came about
        self.live: list[str] = []

    def step(self, number: int) -> None:
        scheduler, rng = self.drive.scheduler, self.rng
        self.live = [name for name in self.live if name not in self.drive.finished and name in scheduler.requests]
        if len(self.live) < 20 and rng.random() < 0.3:
            self._arrive(f"r{number}")
        if self.live and rng.random() < 0.05:
            self._cancel(rng.choice(self.live))
        if scheduler.running and rng.random() < 0.05:
            request = rng.choice(scheduler.running)
            if not request.num_in_flight_tokens:
                scheduler.running.remove(request)
                scheduler._preempt_request(request, 0.0)
        self._compare()
        output = self.drive.schedule()
        result = self._compute(output)
        self.clock.now_s += STEP_S
        self.planned_s = self.clock.now_s
        self.drive.sent(output)
        self.steps.append((output, result))
        if len(self.steps) == self.depth:
            self.drive.take(*self.steps.popleft())

    def _arrive(self, name: str) -> None:
        online = self.rng.random() < self.online
        self.drive.add(name, self.rng.randrange(1, 300), self.rng.randrange(1, 60), offline=not online)
        self.live.append(name)

    def _cancel(self, name: str) -> None:
        from vllm.v1.request import RequestStatus

        self.drive.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        self.live.remove(name)

    def _compare(self) -> None:
        scheduler = self.drive.scheduler
        ahead = scheduler._ahead._next
        self.planned["ahead" if ahead is not None else "when due"] += 1
        rows, batch = scheduler._ahead.rows(scheduler.running, self.planned_s)
        if batch is not None:
            fresh = scheduler._rows(scheduler.running, 0.0)
            self.planned["rows ahead"] += ahead is None
            assert [untimed(row) for row in rows] == [untimed(row) for row in fresh]
        if ahead is not None:
            scheduler._ahead.clear()  # so that the running requests are looked at anew
            now = scheduler._brain.plan(scheduler._view(self.planned_s))
            scheduler._ahead.expect(ahead)
            assert known(now) == known(ahead)

    def _compute(self, output: Any) -> Any:
        """As the workers do: a step may end early, and those planned before the scheduler knows of it are void."""
        from harvester.engine.shared.steporder import ENDED_EARLY, ORDER

        result, order = self.drive.output(output), getattr(output, ORDER, None)
        void = order is not None and order.epoch == self.void_epoch
        ends = order is not None and order.every and not void and self.rng.random() < 0.1
        if void or ends:
            setattr(result, ENDED_EARLY, True)
            result.sampled_token_ids = []
        if ends and order is not None:
            self.void_epoch = order.epoch
            self.planned["ended early"] += 1
        return result


@pytest.mark.parametrize(("kind", "depth"), [("HarvestScheduler", 1), ("AsyncHarvestScheduler", 2)])
@pytest.mark.parametrize("online", [0.0, 0.1, 1.0], ids=["jobs-alone", "with-chat", "chat-alone"])
def test_a_step_planned_ahead_is_the_one_that_would_be_planned_when_it_is_due(
    kind: str, depth: int, online: float, shared: Path, clock: Clock
) -> None:
    story = Story(drive_of(kind, shared), clock, depth, online, seed=depth)
    for number in range(STEPS):
        story.step(number)
    assert story.planned["ahead"] > STEPS // (20 if online == 1.0 else 4), "chat alone is mostly more than there are slots"
    assert story.planned["when due"] > STEPS // 10
    assert story.planned["rows ahead"] > STEPS // 30
    assert online == 1.0 or story.planned["ended early"] > 10


def test_steps_beside_chat_that_decodes_are_planned_while_the_last_one_runs(shared: Path, clock: Clock) -> None:
    story = Story(drive_of("HarvestScheduler", shared), clock, 1, 0.0, seed=0)
    story.drive.add("row", 20, 100, offline=True)
    story.drive.add("chat", 20, 100, offline=False)
    for number in range(3):
        story.step(number)
    assert story.drive.scheduler._ahead._next is not None
    story.drive.add("long", 2040, 5, offline=False)
    story.step(3)
    assert story.drive.scheduler._ahead._next is None, "the rest of its prompt is due"


def test_steps_of_a_job_alone_are_planned_while_the_last_one_runs(shared: Path, clock: Clock) -> None:
    story = Story(drive_of("HarvestScheduler", shared), clock, 1, 0.0, seed=0)
    for number in range(SLOTS):
        story.drive.add(f"row-{number}", 20, 100, offline=True)
    story.step(0)
    scheduler = story.drive.scheduler
    assert scheduler._ahead._next is not None
    story.drive.add("chat", 20, 5, offline=False)
    assert scheduler._ahead._next is None
    assert "chat" in story.drive.step()
