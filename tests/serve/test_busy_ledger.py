"""Time in which the ledger was busy costs no holder its lease; a ledger that cannot be opened for a while is opened later."""

from __future__ import annotations

import traceback
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

from harvester.config import ServeConfig
from harvester.errors import OwnerError, StateError, StorageError
from jobs.config import HarvestConfig
from jobs.ledger.ledger import Ledger
from jobs.ledger.store.place import ledger_place
from jobs.spec import JobPlan, LeaseProgress
from jobs.storage.folder import StateFolder
from jobs.storage.hold import repairing
from jobs.testing import ManualClock, scripted_plan

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own
    from harvester.serve.deployments import ledger_host

LEASE_S, BUSY_S = 15.0, 20.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """The clock of the actor, which runs in this process."""
    clock = ManualClock()
    monkeypatch.setattr(ledger_host, "time", SimpleNamespace(time=clock, monotonic=clock, sleep=clock.advance))
    for name in ("lower_priority", "keep_private", "write_logs"):  # these change the whole process
        monkeypatch.setattr(ledger_host, name, lambda *given: None)
    return clock


def started(path: Path, monkeypatch: pytest.MonkeyPatch, *, again: bool, takes_over: bool = False) -> ledger_host.LedgerHost:
    monkeypatch.setattr("ray.get_runtime_context", lambda: SimpleNamespace(was_current_actor_reconstructed=again))
    settings = ledger_host.LedgerSettings.of(ServeConfig(harvest=HarvestConfig(lease_s=LEASE_S)), StateFolder(path))
    return ledger_host.LedgerHost(settings, takes_over=takes_over)


def test_the_actor_of_an_earlier_build_is_started_again_with_the_arguments_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    started(tmp_path, monkeypatch, again=False).submit(scripted_plan("docs", 16, 4), True)
    config = ServeConfig()
    given = (str(tmp_path), ledger_place(StateFolder(tmp_path)), LEASE_S, config.deadlines, config.logs, None, "its digest")
    monkeypatch.setattr("ray.get_runtime_context", lambda: SimpleNamespace(was_current_actor_reconstructed=True))
    host = ledger_host.LedgerHost(*given)
    assert host.digest() == "its digest"
    assert [view.id for view in host.call("jobs", ())] == ["docs"]


def test_holders_that_waited_for_a_busy_ledger_keep_their_leases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    host = started(tmp_path, monkeypatch, again=False)
    host.submit(scripted_plan("docs", 16, 4), True)
    leases = {holder: host.call("lease", (holder, "scripted"), True) for holder in "abc"}
    submit = Ledger.submit

    def slow(ledger: Ledger, plan: JobPlan, *, new: bool) -> object:
        clock.advance(BUSY_S)  # a storage that answers late
        return submit(ledger, plan, new=new)

    def beat(holder: str) -> list[str]:
        told: list[str] = host.call("heartbeat", (holder, [LeaseProgress(lease_id=leases[holder].lease_id)]), True)
        return told

    monkeypatch.setattr(Ledger, "submit", slow)
    host.submit(scripted_plan("more"), True)
    assert [beat(holder) for holder in "abc"] == [[], [], []]
    clock.advance(LEASE_S + 1)
    assert beat("a") == []
    assert beat("b") == [leases["b"].lease_id], "who tells nothing for so long loses it as before"


def test_an_open_ledger_is_not_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> None:
    host = started(tmp_path, monkeypatch, again=False)
    with pytest.raises(StateError, match="a process has the ledger"), repairing(StateFolder(tmp_path)):
        pass
    assert host.call("jobs", (), False) == []


@pytest.mark.parametrize("takes_over", [False, True], ids=["started again", "takes over"])
def test_a_ledger_that_others_work_with_and_that_cannot_be_opened_says_why_and_is_opened_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ManualClock, takes_over: bool
) -> None:
    first = started(tmp_path, monkeypatch, again=False)
    first.submit(scripted_plan("docs", 4, 4), True)
    assert first._ledger is not None
    first._ledger.close()
    ledger, away = StateFolder(tmp_path).ledger, tmp_path / "away"
    ledger.rename(away)
    ledger.mkdir()  # which nothing can open as a ledger
    host = started(tmp_path, monkeypatch, again=not takes_over, takes_over=takes_over)
    for _ in range(2):
        with pytest.raises(StorageError, match="cannot open the ledger"):
            host.call("jobs", (), False)
    ledger.rmdir()
    away.rename(ledger)
    with pytest.raises(StorageError, match="cannot open the ledger"):
        host.call("jobs", (), False)  # callers stand in line: no try for some seconds
    clock.advance(ledger_host.AGAIN_S + 1)
    assert [view.id for view in host.call("jobs", (), False)] == ["docs"]


def test_many_short_calls_in_a_row_cost_no_holder_its_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> None:
    host = started(tmp_path, monkeypatch, again=False)
    host.submit(scripted_plan("docs", 16, 4), True)
    leases = {holder: host.call("lease", (holder, "scripted"), True) for holder in "abc"}
    hints = Ledger.hints

    def slow(ledger: Ledger, now_s: float) -> object:
        clock.advance(0.9)
        return hints(ledger, now_s)

    monkeypatch.setattr(Ledger, "hints", slow)
    for _ in range(20):
        host.call("hints", (), True)
    told = [host.call("heartbeat", (holder, [LeaseProgress(lease_id=leases[holder].lease_id)]), True) for holder in "abc"]
    assert told == [[], [], []]


def test_calls_with_pauses_between_them_leave_leases_as_they_are(clock: ManualClock) -> None:
    queue = ledger_host.BusyQueue()
    told = []
    for _ in range(20):
        clock.advance(1.0)  # a pause
        began_s = clock()
        clock.advance(0.9)
        told.append(queue.took(began_s, clock()))
    assert told == [0.0] * 20


def test_what_is_told_again_and_again_does_not_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> None:
    host = started(tmp_path, monkeypatch, again=False)
    over = OwnerError("another server has taken over")
    host._over = over
    for _ in range(50):
        with pytest.raises(OwnerError):
            host.call("jobs", (), False)
    assert len(traceback.extract_tb(over.__traceback__)) < 10


def test_the_ledger_knows_which_calls_take_the_time_whatever_a_replica_of_another_build_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    host = started(tmp_path, monkeypatch, again=False)
    for told in ((), (False,), (True,)):
        assert host.call("hints", (), *told) == {}
        assert host.call("jobs", (), *told) == []
