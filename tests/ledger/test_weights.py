"""Which job is served next: by weight among the jobs of one model, whatever other models do, and by the weight that holds now."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from jobs.ledger.ledger import Ledger
from jobs.spec import JobChange, PartStats
from jobs.testing import scripted_plan


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(Path(":memory:"), Path("jobs"), lease_s=15.0, now_s=0.0, new_server=True)


def enter(ledger: Ledger, job_id: str, weight: float, model: str = "small") -> None:
    plan = scripted_plan(job_id, 400, 1, model=model)
    ledger.submit(plan.model_copy(update={"spec": plan.spec.model_copy(update={"weight": weight})}), new=True)


def serve(ledger: Ledger, model: str = "small") -> str:
    """Lease a slice and commit it. Returns its job."""
    lease = ledger.lease(f"replica of {model}", model, 1.0)
    assert lease is not None
    ledger.commit(lease.lease_id, lease.job.id, lease.slice.slice_id, PartStats(rows_ok=1, prompt_tokens=500), 1.0)
    return lease.job.id


@pytest.mark.parametrize("slices_beside", [0, 1, 3])
def test_weights_hold_whatever_another_model_works_on(ledger: Ledger, slices_beside: int) -> None:
    enter(ledger, "heavy", 9.0)
    enter(ledger, "light", 1.0)
    enter(ledger, "other", 1.0, "large")
    served = Counter[str]()
    for _ in range(100):
        served[serve(ledger)] += 1
        for _ in range(slices_beside):
            serve(ledger, "large")
    assert served["heavy"] == pytest.approx(90, abs=2)


def test_a_job_whose_weight_is_raised_is_served_by_it_at_once(ledger: Ledger) -> None:
    enter(ledger, "big", 1.0)
    enter(ledger, "low", 0.001)
    assert [serve(ledger) for _ in range(10)].count("low") == 1
    ledger.adjust("low", JobChange(weight=1.0))
    assert [serve(ledger) for _ in range(10)].count("low") == pytest.approx(5, abs=1)


def test_a_job_whose_weight_is_lowered_waits_as_long_as_it_says(ledger: Ledger) -> None:
    enter(ledger, "big", 1.0)
    enter(ledger, "high", 100.0)
    assert [serve(ledger) for _ in range(50)].count("high") >= 48
    ledger.adjust("high", JobChange(weight=0.1))
    assert [serve(ledger) for _ in range(22)].count("high") == pytest.approx(2, abs=1)
