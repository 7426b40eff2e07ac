"""Jobs that were removed, and calls that are repeated because their answer was lost or the disk was full."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from connectors.errors import StorageError
from jobs.ledger.ledger import Ledger
from jobs.spec import ERROR_RATE, PartStats
from jobs.testing import scripted_plan
from tests.fakes.scripted_ledger import spec_of


def full_at(ledger: Ledger, statement: str) -> Callable[..., object]:
    """The ledger's own way to run a statement, on a disk that is full when this one comes."""
    run = ledger._book.store.run

    def full(name: str, values: Sequence[Any] = ()) -> object:
        if name == statement:
            raise StorageError(f"the ledger cannot be written or read ({name}): database or disk is full")
        return run(name, values)

    return full


def test_a_cancelled_job_that_is_removed_leaves_the_others_their_leases(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite", tmp_path / "jobs", lease_s=15.0, now_s=0.0, new_server=True)
    ledger.submit(scripted_plan("unwanted", 8, 4), new=True)
    ledger.submit(scripted_plan("docs", 8, 4), new=True)
    ledger.cancel("unwanted", 1.0)
    ledger.remove("unwanted")
    lease = ledger.lease("a", "scripted", 2.0)
    assert lease is not None
    assert lease.job.id == "docs"
    ledger.check()
    ledger.close()


def test_a_commit_that_failed_and_is_repeated_is_accounted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite", tmp_path / "jobs", lease_s=15.0, now_s=0.0, new_server=True)
    ledger.submit(scripted_plan("docs", 4, 4), new=True)
    lease = ledger.lease("a", "scripted", 0.0)
    assert lease is not None
    stats = PartStats(rows_ok=4, prompt_tokens=40, output_tokens=4, device_s=3600.0, cost=2.0, currency="EUR")
    full = full_at(ledger, "add_usage")
    with monkeypatch.context() as disk:
        disk.setattr(ledger._book.store, "run", full)
        disk.setattr(ledger._book.usage._store, "run", full)
        with pytest.raises(StorageError):
            ledger.commit(lease.lease_id, "docs", 0, stats, 1.0)
    assert ledger.commit(lease.lease_id, "docs", 0, stats, 2.0)
    (line,) = ledger.table("harvested").to_pylist()
    assert (line["rows"], line["gpu_hours"], line["cost"], ledger.counts()["scripted"]["rows_ok"]) == (4, 1.0, 2.0, 4), line
    ledger.close()


def test_a_job_whose_end_could_not_be_written_ends_a_moment_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite", tmp_path / "jobs", lease_s=15.0, now_s=0.0, new_server=True)
    ledger.submit(scripted_plan("docs", 4, 4), new=True)
    lease = ledger.lease("a", "scripted", 0.0)
    assert lease is not None
    with monkeypatch.context() as disk:
        disk.setattr(ledger._book, "run", full_at(ledger, "set_state"))
        with pytest.raises(StorageError):
            ledger.commit(lease.lease_id, "docs", 0, PartStats(rows_ok=4), 1.0)
        with pytest.raises(StorageError):
            ledger.expire(2.0)
    assert ledger.show("docs").state == "running"
    assert ledger.lease("a", "scripted", 3.0) is None
    assert ledger.show("docs").state == "completed"
    ledger.check()
    ledger.close()


def test_a_submit_that_is_repeated_is_one_job(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite", tmp_path / "jobs", lease_s=15.0, now_s=0.0, new_server=True)
    plan = scripted_plan("docs", 4, 4)
    first = ledger.submit(plan, new=True)
    assert ledger.submit(plan, new=True) == first
    assert [view.id for view in ledger.jobs()] == ["docs"]
    ledger.check()
    ledger.close()


def test_a_commit_whose_answer_was_lost_with_its_ledger_changes_nothing_again(tmp_path: Path) -> None:
    about: dict[str, Any] = {"lease_s": 15.0, "now_s": 0.0}
    ledger = Ledger(tmp_path / "ledger.sqlite", tmp_path / "jobs", new_server=True, **about)
    ledger.submit(scripted_plan("docs", 8, 4), new=True)
    lease = ledger.lease("a", "scripted", 0.0)
    assert lease is not None
    stats = PartStats(rows_ok=4, rows_recomputed=3, prompt_tokens=40, output_tokens=4, device_s=3600.0, cost=2.0, currency="EUR")
    assert ledger.commit(lease.lease_id, "docs", 0, stats, 1.0)
    ledger.close()
    ledger = Ledger(tmp_path / "ledger.sqlite", tmp_path / "jobs", new_server=False, **about)
    assert ledger.commit(lease.lease_id, "docs", 0, stats, 2.0), "the ledger has it"
    (line,) = ledger.table("harvested").to_pylist()
    (job,) = ledger.table("jobs").to_pylist()
    assert (job["rows_ok"], job["rows_recomputed"], line["gpu_hours"], line["cost"]) == (4, 3, 1.0, 2.0)
    ledger.check()
    ledger.close()


def test_a_job_that_is_asked_for_again_takes_over_what_was_given_this_time() -> None:
    ledger = Ledger(Path(":memory:"), Path("/jobs"), lease_s=9.0, now_s=0.0, new_server=True)
    plan = scripted_plan("docs")
    ledger.submit(plan.model_copy(update={"spec": plan.spec.model_copy(update={"weight": 2.0, "max_error_rate": 0.5})}), new=True)

    def again(**changes: float) -> tuple[float, float, float | None]:
        asked = plan.spec.model_copy(update={"weight": 1.0, "max_error_rate": ERROR_RATE, **changes})
        assert not ledger.submit(plan.model_copy(update={"spec": asked}), new=False)[1]
        spec = spec_of(ledger, "docs")
        return spec.weight, spec.max_error_rate, spec.deadline_at_s

    assert again() == (2.0, 0.5, None)
    assert again(weight=3.0, deadline_at_s=99.0) == (3.0, 0.5, 99.0)
    assert again(max_error_rate=0.25) == (3.0, 0.25, 99.0)
    ledger.fail("docs", "gone", 1.0)
    ledger.close()
