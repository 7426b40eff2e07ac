"""What processes of two versions send each other: a record that lacks a field of ours gets its default."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from inspect import signature
from typing import Any, TypeVar, get_args, get_type_hints

import pytest
from pydantic import BaseModel

from connectors.paths.rules import SourceRules
from connectors.processes.pickled import _fill
from harvester.config import ServeConfig
from harvester.engine.launch.models import ModelChoice
from jobs.access.limits import Limits, check_size
from jobs.frozen import Frozen
from jobs.hint import Demand, SchedulingHint
from jobs.ledger.counts import JobsNow
from jobs.ledger.ledger import Ledger
from jobs.ledger.store.place import PostgresPlace
from jobs.run.client import TIMED, VERBS, LedgerCalls, LedgerClient
from jobs.spec import JobPlan, Lease, PartStats
from jobs.states import JobState
from jobs.tasks.spec import Task
from jobs.testing import ManualClock, scripted_plan

T = TypeVar("T", bound=BaseModel)


def of_older(one: T, *lacking: str) -> T:
    """``one`` as it arrives from a version that does not have the fields ``lacking``."""
    told = one.model_copy()
    for name in lacking:
        del told.__dict__[name]
    found: T = pickle.loads(pickle.dumps(told))
    return found


def test_a_part_told_by_an_older_replica_is_counted(tmp_path: Any) -> None:
    clock = ManualClock()
    ledger = Ledger(tmp_path / "ledger.sqlite", tmp_path / "jobs", lease_s=10.0, now_s=clock(), new_server=True)
    ledger.submit(scripted_plan("docs-1", 4), new=False)
    while lease := ledger.lease("a", "scripted", clock()):
        stats = of_older(PartStats(rows_ok=lease.slice.row_count), "token_prices", "currency")
        assert ledger.commit(lease.lease_id, lease.job.id, lease.slice.slice_id, stats, clock())
    ledger.check()
    assert ledger.show("docs-1").state is JobState.COMPLETED
    ledger.close()


def test_limits_kept_by_an_older_version_bound_what_is_bounded_since() -> None:
    found = of_older(ServeConfig(), "storage")
    assert found.storage is None
    limits = of_older(Limits(max_tokens=7), "max_inputs", "max_choices")
    assert limits == Limits(max_tokens=7)
    assert check_size({"max_tokens": 7}, limits) == 1


def test_a_record_of_a_newer_version_loses_what_only_that_knows() -> None:
    told = Task(name="t", prompt="p")
    told.__dict__["later"] = 1
    found = pickle.loads(pickle.dumps(told))
    assert "later" not in found.__dict__
    assert found == Task(name="t", prompt="p")


def test_a_default_that_is_made_is_no_two_records_own() -> None:
    first, second = (of_older(Task(name="t", prompt="p"), "chat_template_kwargs") for _ in range(2))
    assert first.chat_template_kwargs == {}
    assert first.chat_template_kwargs is not second.chat_template_kwargs


OF_OLDER = [
    (SchedulingHint(job="j", weight=2.0), 1),
    (Demand(has_work=True), 1),
    (PostgresPlace("postgresql://a", "owner"), 2),
    (SourceRules(roots=("/data",)), 2),
]


@pytest.mark.parametrize(("one", "lacking"), OF_OLDER, ids=[type(one).__name__ for one, _ in OF_OLDER])
def test_a_dataclass_of_an_older_version_has_the_defaults_of_the_fields_added_since(one: Any, lacking: int) -> None:
    found: Any = object.__new__(type(one))
    found.__setstate__(one.__getstate__()[:-lacking])
    assert found == one


def told_of(kind: Any) -> Iterator[type]:
    """Models and dataclasses within a type."""
    if isinstance(kind, type) and (issubclass(kind, BaseModel) or is_dataclass(kind)):
        yield kind
    for part in get_args(kind):
        yield from told_of(part)


def sent(*begin: Any) -> set[type]:
    """Models and dataclasses that are pickled with values of the types ``begin``."""
    found: set[type] = set()
    left = [one for kind in begin for one in told_of(kind)]
    while left:
        kind = left.pop()
        if kind not in found:
            found.add(kind)
            given = (field.annotation for field in kind.model_fields.values()) if issubclass(kind, BaseModel) else of_fields(kind)
            left += [one for annotation in given for one in told_of(annotation)]
    return found


def of_fields(kind: Any) -> list[Any]:
    hints = get_type_hints(kind)
    return [hints[field.name] for field in fields(kind)]


def hints_of(method: Callable[..., Any]) -> list[Any]:
    return list(get_type_hints(method).values())


def test_all_that_is_sent_or_kept_pickled_is_read_from_another_version() -> None:
    calls = [kind for name, method in vars(LedgerClient).items() if not name.startswith("_") for kind in hints_of(method)]
    found = sent(*calls, *hints_of(JobsNow), PostgresPlace, JobPlan, ServeConfig, ModelChoice)
    assert {Lease, PartStats, SourceRules, SchedulingHint, Limits, Task} <= found
    assert [kind for kind in found if not issubclass(kind, Frozen) and vars(kind).get("__setstate__") is not _fill] == []


def test_each_call_of_the_ledger_has_the_arguments_of_its_method_and_the_owner_adds_the_time() -> None:
    calls = {name: [*signature(call).parameters] for name, call in vars(LedgerCalls).items() if not name.startswith("_")}
    assert calls.pop("change") == ["self", "job_id", "verb"]
    calls |= {verb: ["self", "job_id"] for verb in VERBS}
    methods = {name: [*signature(getattr(Ledger, name)).parameters] for name in calls}
    assert methods == {name: [*given, "now_s"] if name in TIMED else given for name, given in calls.items()}
