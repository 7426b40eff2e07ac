"""The ledger at fleet size: what a call costs must not grow with what it has nothing to do with. Statements are counted, not seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from jobs.ledger.ledger import Ledger
from jobs.ledger.record import ActiveLease, ActiveLeases, JobRecord
from jobs.ledger.store.place import PostgresPlace
from jobs.spec import LeaseProgress, PartStats
from jobs.testing import scripted_plan

MODEL = "scripted"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(Path(":memory:"), tmp_path / "jobs", lease_s=10.0, now_s=0.0, new_server=True)


def counted(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    ran: list[str] = []
    run = ledger._book.run

    def count(name: str, values: Sequence[object] = ()) -> list[tuple[object, ...]]:
        ran.append(name)
        return run(name, values)

    monkeypatch.setattr(ledger._book, "run", count)
    return ran


def test_jobs_with_nothing_pending_cost_a_lease_no_statement(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        ledger.submit(scripted_plan(f"docs-{number}", 1, 1), new=True)
    leases = [ledger.lease("a", MODEL, 1.0) for _ in range(20)]
    assert all(leases)
    assert ledger.lease("a", MODEL, 1.0) is None
    ran = counted(ledger, monkeypatch)
    assert ledger.lease("a", MODEL, 1.0) is None
    assert ran == []


@pytest.mark.parametrize("back", ["release", "expire", "retry"])
def test_an_exhausted_job_is_asked_again_once_a_slice_is_free(ledger: Ledger, back: str) -> None:
    ledger.submit(scripted_plan("docs-1", 1, 1), new=True)
    lease = ledger.lease("a", MODEL, 1.0)
    assert lease is not None
    assert ledger.lease("b", MODEL, 1.0) is None
    if back == "release":
        ledger.release(lease.lease_id, 1.0)
    elif back == "retry":
        ledger.commit(lease.lease_id, "docs-1", 0, PartStats(rows_error=1), 1.0)
        ledger.retry("docs-1", 1.0)
    assert ledger.lease("b", MODEL, 20.0 if back == "expire" else 1.0) is not None
    ledger.check()


@pytest.fixture(params=["sqlite", "postgres"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    of_database = request.param == "postgres"
    place = PostgresPlace(request.getfixturevalue("database").new(), "fleet") if of_database else tmp_path / "ledger.sqlite"
    ledger = Ledger(place, tmp_path / "jobs", lease_s=10.0, now_s=0.0, new_server=True)
    yield ledger
    ledger.close()


def test_a_slice_costs_two_changes_and_four_statements_between_them(stored: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    stored.submit(scripted_plan("docs-1", 40, 4), new=True)
    for _ in range(3):  # the first lease starts the job, the second commit writes what the first told of lengths and rates
        work(stored)
    changes = commits(stored)
    ran = counted_in_store(stored, monkeypatch)
    work(stored)
    assert ran == ["take_slice", "finish_slice", "add_counts", "add_usage"]
    assert commits(stored) - changes == 2


def work(ledger: Ledger) -> None:
    lease = ledger.lease("a", MODEL, 1.0)
    assert lease is not None
    stats = PartStats(rows_ok=4, prompt_tokens=40, output_tokens=9, lengths=((10, 3, 4),))
    assert ledger.commit(lease.lease_id, "docs-1", lease.slice.slice_id, stats, 1.0)


def commits(ledger: Ledger) -> int:
    return int(ledger._book.store.run("owned")[0][2])


def counted_in_store(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements run from now on, whichever part of the ledger runs them."""
    ran: list[str] = []
    run, rows = ledger._book.store.run, ledger._book.store.rows

    def count(name: str, values: Sequence[object] = ()) -> list[tuple[object, ...]]:
        ran.append(name)
        return run(name, values)

    monkeypatch.setattr(ledger._book.store, "run", count)
    monkeypatch.setattr(ledger._book, "run", count)
    monkeypatch.setattr(ledger._book.store, "rows", lambda name, values=(): (ran.append(name), rows(name, values))[1])
    return ran


def test_what_was_learnt_of_rates_and_lengths_is_written_when_a_job_ends(stored: Ledger) -> None:
    stored.submit(scripted_plan("docs-1", 8, 4), new=True)
    work(stored)
    work(stored)
    assert stored._book.store.arrow("harvest")["rows"].to_pylist() == [8]
    assert stored._book.store.arrow("lengths")["rows"].to_pylist() == [8]


def test_a_lease_looks_at_no_job_without_work(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1000):
        ledger.submit(scripted_plan(f"docs-{number}", 1, 1), new=True)
        assert ledger.lease("a", MODEL, 1.0) is not None
    looked: list[str] = []
    monkeypatch.setattr(JobRecord, "serves", lambda record, model: looked.append(record.spec.id))
    monkeypatch.setattr(JobRecord, "is_over", lambda record, now_s: looked.append(record.spec.id))
    assert ledger.lease("b", MODEL, 1.0) is None
    assert looked == []


def looked_at(kind: type, name: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Field ``name`` of each object of the class, whenever a field of it is read from now on."""
    looked: list[Any] = []

    def read(one: object, field: str) -> Any:
        looked.append(object.__getattribute__(one, name))
        return object.__getattribute__(one, field)

    monkeypatch.setattr(kind, "__getattribute__", read)
    return looked


def test_a_heartbeat_looks_at_the_leases_that_it_renews_and_judges_their_job_once(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.submit(scripted_plan("docs-1", 200, 1), new=True)
    leases = [ledger.lease("a" if number < 3 else "b", MODEL, 1.0) for number in range(200)]
    progress = [LeaseProgress(lease_id=lease.lease_id, rows_done=1, tokens_done=9) for lease in leases[:3] if lease]
    judged: list[str] = []
    monkeypatch.setattr(ledger._book, "stop_failing", lambda record, now_s: judged.append(record.spec.id))
    with monkeypatch.context() as watched:
        looked = looked_at(ActiveLease, "slice_id", watched)
        assert ledger.heartbeat("a", progress, 2.0) == []
    assert set(looked) == {0, 1, 2}
    assert judged == ["docs-1"]
    assert ledger.show("docs-1").rows_running == 3
    ledger.check()


@pytest.mark.parametrize("call", ["hints", "demand", "lease"])
def test_what_a_replica_asks_each_second_looks_at_no_job_that_has_ended(ledger: Ledger, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1000):
        ledger.cancel(ledger.submit(scripted_plan(f"ended-{number}", 1, 1), new=True)[0].id, 1.0)
    ledger.submit(scripted_plan("docs-1", 4, 1), new=True)
    arguments = {"hints": (), "demand": (MODEL,), "lease": ("a", MODEL)}[call]
    with monkeypatch.context() as watched:
        looked = looked_at(JobRecord, "spec", watched)
        assert getattr(ledger, call)(*arguments, 1.0)
    assert {spec.id for spec in looked} == {"docs-1"}
    ledger.check()


def test_leases_are_found_by_job_and_by_end() -> None:
    leases = ActiveLeases()
    for number in range(6):
        leases[f"l{number}"] = ActiveLease(f"job-{number % 2}", "m", number, "a", 10.0 + number)
    assert [lease.slice_id for lease in leases.of("job-1")] == [1, 3, 5]
    leases["l0"].expires_at_s = 30.0  # renewed
    del leases["l1"]
    assert leases.over(12.0) == ["l2"]
    assert leases.over(12.0) == ["l2"], "in force until it is freed"
    del leases["l2"]
    leases.shift(-20.0)
    assert sorted(leases.over(11.0)) == ["l0", "l3", "l4", "l5"]
    for lease_id in list(leases):
        del leases[lease_id]
    assert not leases.has_of_job("job-0")
    assert leases.over(100.0) == []
