"""What the ledger itself was busy with costs no holder its lease."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

from harvester.config import ServeConfig
from jobs.config import DeadlineConfig
from jobs.folder import StateFolder
from jobs.ledger.ledger import Ledger
from jobs.ledger.store.place import ledger_place
from jobs.spec import JobPlan, LeaseProgress
from jobs.testing import ManualClock, scripted_plan

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own
    from harvester.serve.deployments import actor

LEASE_S, BUSY_S = 15.0, 20.0


def test_holders_that_waited_for_a_busy_ledger_keep_their_leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    monkeypatch.setattr(actor, "time", SimpleNamespace(time=clock, monotonic=clock))
    monkeypatch.setattr("ray.get_runtime_context", lambda: SimpleNamespace(was_current_actor_reconstructed=False))
    for name in ("lower_priority", "keep_private", "write_logs"):  # of the process
        monkeypatch.setattr(actor, name, lambda *given: None)
    host = actor.LedgerHost(str(tmp_path), ledger_place(StateFolder(tmp_path)), LEASE_S, DeadlineConfig(), ServeConfig().logs, None)
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
