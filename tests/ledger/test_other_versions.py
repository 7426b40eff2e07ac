"""Jobs in a ledger that an earlier version reads, and jobs that a newer one wrote: they shut no ledger, and do not run."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors.paths.rules import SourceRules
from jobs.errors import StateError
from jobs.ledger.jobfile import read_job
from jobs.ledger.ledger import Ledger
from jobs.spec import JobChange, JobSpec, PartStats, SourceSpec
from jobs.states import JobState
from jobs.tasks.spec import Task
from jobs.testing import scripted_plan
from tests.fakes.scripted_ledger import spec_of

NEWER = r"^job {} was written by a newer version of harvester, which knows later; start that version$"
NEEDED = {"id", "key", "source", "fingerprint", "task", "column", "keep", "model", "rows_total", "created_at_s"}
DEFAULTS: dict[type, dict[str, Any]] = {
    JobSpec: {
        "rules": None,
        "owner": None,
        "endpoint": None,
        "max_tokens": None,
        "on_long": "truncate",
        "max_error_rate": 1.0,
        "weight": 1.0,
        "deadline_at_s": None,
    },
    SourceSpec: {
        "table": None,
        "query": None,
        "where": None,
        "sample": None,
        "seed": 0,
        "limit": None,
        "encoding": None,
        "ragged": False,
    },
    Task: {
        "description": "",
        "system": None,
        "combine": None,
        "answer": "text",
        "labels": None,
        "json_schema": None,
        "max_tokens": 128,
        "temperature": None,
        "thinking": None,
        "chat_template_kwargs": {},
        "images": (),
        "adapter": None,
    },
}


class Kept:
    """A ledger on the disk, with its folder of jobs."""

    def __init__(self, root: Path) -> None:
        self.root, self.jobs = root, root / "jobs"
        self.ledger = self._opened()

    def _opened(self) -> Ledger:
        return Ledger(self.root / "ledger.sqlite", self.jobs, lease_s=60.0, now_s=0.0, new_server=True)

    def submit(self, job_id: str) -> None:
        self.ledger.submit(scripted_plan(job_id, 4, 4, created_at_s=float(len(self.ledger.jobs()))), new=True)

    def spec(self, job_id: str) -> dict[str, Any]:
        """As it is stored."""
        (row,) = self.ledger._book.store.rows("job_row", [job_id])
        found: dict[str, Any] = json.loads(row["spec"])
        return found

    def write_newer(self, job_id: str, **fields: Any) -> None:
        self.ledger._book.run("set_spec", [json.dumps(self.spec(job_id) | (fields or {"later": 1})), job_id])

    def reopen(self) -> None:
        self.ledger.close()
        self.ledger = self._opened()


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    kept = Kept(tmp_path)
    yield kept
    kept.ledger.check()
    kept.ledger.close()


def test_a_stored_job_names_no_field_that_has_its_default(kept: Kept) -> None:
    """An earlier version refuses fields that it lacks, also those without a value."""
    plan = scripted_plan("docs-1", 4, 4)
    kept.ledger.submit(plan, new=True)
    path = kept.jobs / "docs-1" / "job.json"
    for spec in (kept.spec("docs-1"), json.loads(path.read_bytes().partition(b"\n")[2])["spec"]):
        assert (spec.keys(), spec["source"].keys(), spec["task"].keys()) == (NEEDED, {"uri"}, {"name", "prompt"})
    assert read_job(path) == plan
    kept.ledger.adjust("docs-1", JobChange(weight=2.0))
    assert kept.spec("docs-1").keys() - NEEDED == {"weight"}
    kept.reopen()
    assert spec_of(kept.ledger, "docs-1") == plan.spec.model_copy(update={"weight": 2.0})


def test_rules_without_any_root_are_stored_as_such(kept: Kept) -> None:
    """Not as None, by which all may be read."""
    plan = scripted_plan("docs-1", 4, 4)
    kept.ledger.submit(plan.model_copy(update={"spec": plan.spec.model_copy(update={"rules": SourceRules()})}), new=True)
    kept.reopen()
    assert spec_of(kept.ledger, "docs-1").rules == SourceRules()


@pytest.mark.parametrize("kind", DEFAULTS, ids=lambda kind: kind.__name__)
def test_what_a_stored_job_leaves_out_keeps_its_default_for_ever(kind: type[Task]) -> None:
    """A change would change what jobs compute that are stored already. A new field is a new line here."""
    fields = kind.model_fields.items()
    assert {name: field.get_default(call_default_factory=True) for name, field in fields if not field.is_required()} == DEFAULTS[kind]


@pytest.mark.parametrize("fields", [{"later": 1}, {"on_long": "weave"}], ids=["a field", "a value"])
def test_jobs_of_a_newer_version_are_listed_and_others_run(kept: Kept, caplog: pytest.LogCaptureFixture, fields: dict[str, Any]) -> None:
    for job_id in ("ended", "waits", "plain"):
        kept.submit(job_id)
    kept.ledger.cancel("ended", 1.0)
    for job_id in ("ended", "waits"):
        kept.write_newer(job_id, **fields)
    (kept.jobs / "waits" / "job.json").unlink()
    with caplog.at_level(logging.WARNING):
        kept.reopen()
    assert [record.getMessage().partition(" job ")[0] for record in caplog.records] == ["jobs_unread jobs=2"]
    views = {view.id: view for view in kept.ledger.jobs()}
    assert {job_id: view.state for job_id, view in views.items()} == {
        "ended": JobState.CANCELLED,
        "waits": JobState.QUEUED,
        "plain": JobState.QUEUED,
    }
    assert (views["ended"].message, views["ended"].source, views["ended"].rows_total) == (None, "/nowhere/ended.parquet", 4)
    assert "version of harvester" in (views["waits"].message or "")
    lease = kept.ledger.lease("a", "scripted", 1.0)
    assert lease is not None
    assert lease.job.id == "plain"
    assert kept.ledger.lease("a", "scripted", 1.0) is None
    assert kept.ledger.commit(lease.lease_id, "plain", 0, PartStats(rows_ok=4), 2.0)
    assert not kept.ledger.demand("scripted", 2.0).has_work, "no replica is started for a job that cannot run"


def test_a_job_of_a_newer_version_can_be_cancelled_and_removed_and_not_be_changed(kept: Kept) -> None:
    for job_id in ("ended", "waits"):
        kept.submit(job_id)
    kept.ledger.cancel("ended", 1.0)
    before = {}
    for job_id in ("ended", "waits"):
        kept.write_newer(job_id)
        before[job_id] = kept.spec(job_id)
    kept.reopen()
    with pytest.raises(StateError, match=NEWER.format("ended")):
        kept.ledger.resume("ended", 2.0)
    with pytest.raises(StateError, match=NEWER.format("waits")):
        kept.ledger.adjust("waits", JobChange(weight=2.0))
    with pytest.raises(StateError, match=NEWER.format("waits")):
        kept.ledger.submit(scripted_plan("again", key="waits"), new=False)
    kept.ledger.pause("waits", 2.0)
    assert {job_id: kept.spec(job_id) for job_id in before} == before, "the newer version finds them as they were"
    kept.ledger.cancel("waits", 3.0)
    kept.ledger.remove("waits")
    assert [view.id for view in kept.ledger.jobs()] == ["ended"]


def test_who_works_on_a_job_of_a_newer_version_may_end_its_slice(kept: Kept) -> None:
    """A replica of the newer version, beside a ledger of this one."""
    kept.submit("docs-1")
    lease = kept.ledger.lease("newer", "scripted", 0.0)
    assert lease is not None
    kept.write_newer("docs-1")
    kept.ledger.close()
    kept.ledger = Ledger(kept.root / "ledger.sqlite", kept.jobs, lease_s=60.0, now_s=1.0, new_server=False)
    stats = PartStats(rows_ok=4, lengths=((7, 12, 4),))
    assert kept.ledger.commit(lease.lease_id, "docs-1", 0, stats, 2.0)
    assert kept.ledger.show("docs-1").state is JobState.COMPLETED
    assert kept.ledger.table("lengths").num_rows == 0, "its task is not known"
