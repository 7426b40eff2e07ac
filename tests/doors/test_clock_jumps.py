"""A wall clock that is set while slices are leased: nobody loses a lease by it, and nobody keeps one for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.ledger.clock import ClockWatch
from jobs.ledger.ledger import Ledger
from jobs.spec import LeaseProgress
from jobs.testing import ManualClock, scripted_plan

LEASE_S = 15.0
HOUR_S = 3600.0


class Machine:
    """A ledger as its process uses it, with a wall clock that can be set and a steady one that cannot."""

    def __init__(self) -> None:
        self.wall, self.steady = ManualClock(1_000_000.0), ManualClock(50.0)
        self.ledger = Ledger(Path(":memory:"), Path("/jobs"), lease_s=LEASE_S, now_s=self.wall(), new_server=True)
        self.watch = ClockWatch(self.wall, self.steady)
        self.ledger.submit(scripted_plan("docs", 4, 4), new=True)

    def go_on(self, seconds: float) -> None:
        self.wall.advance(seconds)
        self.steady.advance(seconds)

    def now_s(self) -> float:
        by_s = self.watch.set_by_s()
        if by_s is not None:
            self.ledger.clock_set(by_s)
        return self.wall()


@pytest.mark.parametrize("by_s", [HOUR_S, -HOUR_S, 24 * HOUR_S], ids=["an-hour-on", "an-hour-back", "after-a-sleep"])
def test_a_lease_lasts_as_long_as_without_the_change(by_s: float) -> None:
    machine = Machine()
    lease = machine.ledger.lease("a", "scripted", machine.now_s())
    assert lease is not None
    machine.go_on(LEASE_S - 1.0)
    machine.wall.advance(by_s)
    assert machine.ledger.heartbeat("a", [LeaseProgress(lease_id=lease.lease_id)], machine.now_s()) == []
    machine.go_on(LEASE_S - 1.0)
    assert machine.ledger.expire(machine.now_s()) == 0
    machine.go_on(1.5)
    assert machine.ledger.expire(machine.now_s()) == 1, "its holder is dead: the next one has it within a term"
    machine.ledger.check()
    machine.ledger.close()


def test_small_corrections_are_no_change() -> None:
    machine = Machine()
    for _ in range(20):
        machine.go_on(60.0)
        machine.wall.advance(0.04)
    assert machine.watch.set_by_s() is None
    machine.ledger.close()
