"""The ledger against a model: replicas lease, die, come back late and commit twice; users change jobs; the ledger itself restarts."""

from __future__ import annotations

import itertools
import sqlite3
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from harvester.errors import StateError
from jobs.ledger.ledger import Ledger
from jobs.ledger.store.place import Place, PostgresPlace
from jobs.spec import Lease, LeaseProgress, PartStats
from jobs.states import ACTIVE, ENDED, JobState
from jobs.testing import scripted_plan
from tools.postgres import Postgres

LEASE_S = 10.0
HOLDERS = ("a", "b", "c")
MODEL = "scripted"
_names = itertools.count()


@dataclass
class ModelSlice:
    rows: int
    generation: int = 0
    done: bool = False
    ok: int = 0
    errors: int = 0
    by: str | None = None  # the lease that it was done in


@dataclass
class ModelTerm:
    lease: Lease
    holder: str
    expires_at_s: float


@dataclass
class ModelJob:
    order: int
    slices: list[ModelSlice]
    state: JobState = JobState.QUEUED
    generation: int = 0
    turn: int = 0  # number of its last lease
    leased_rows: int = 0  # from where it joined

    @property
    def counts(self) -> tuple[int, int]:
        return sum(part.ok for part in self.slices), sum(part.errors for part in self.slices)


class LedgerMachine(RuleBasedStateMachine):
    @initialize()
    def open(self) -> None:
        self.place = self.make_place()
        self.now_s = 1000.0
        self.turns = itertools.count(1)
        self.least_rows = 0  # of the job that was leased last
        self.jobs: dict[str, ModelJob] = {}
        self.terms: dict[str, ModelTerm] = {}  # in force
        self.hands: dict[str, list[Lease]] = {holder: [] for holder in HOLDERS}  # what each replica believes to hold
        self.orders = itertools.count()
        self.doubted: set[str] = set()  # leases whose part may have been covered
        self.past: list[Lease] = []  # committed, released or forgotten: a call about them may still arrive
        self.ledger = self._open(new_server=True)

    def make_place(self) -> Place:
        """In memory: shared by name within the process, so that it outlives a ledger's connection."""
        name = f"ledger-{next(_names)}"
        self.anchor = sqlite3.connect(f"file:{name}?mode=memory&cache=shared", uri=True)
        return Path(f":memory:{name}")

    def forget_place(self) -> None:
        self.anchor.close()

    def _open(self, *, new_server: bool) -> Ledger:
        return Ledger(self.place, Path("/state/jobs"), lease_s=LEASE_S, now_s=self.now_s, new_server=new_server)

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            self.ledger.close()
            self.forget_place()

    # -- what the model expects ---------------------------------------------------------------------------------------------------

    def _leased(self, job_id: str) -> set[int]:
        return {term.lease.slice.slice_id for term in self.terms.values() if term.lease.job.id == job_id}

    def _free(self, job_id: str) -> list[int]:
        leased = self._leased(job_id)
        return [i for i, part in enumerate(self.jobs[job_id].slices) if not part.done and i not in leased]

    def _settle(self, job_id: str) -> None:
        job = self.jobs[job_id]
        if job.state is JobState.CANCELLING and not self._leased(job_id):
            job.state = JobState.CANCELLED
        if job.state in (*ACTIVE, JobState.PAUSED) and all(part.done for part in job.slices):
            job.state = JobState.COMPLETED

    def _end(self, lease_id: str) -> None:
        term = self.terms.pop(lease_id, None)
        if term is not None:
            self._settle(term.lease.job.id)

    def _expire(self) -> int:
        over = [lease_id for lease_id, term in self.terms.items() if term.expires_at_s <= self.now_s]
        for lease_id in over:
            self._end(lease_id)
        return len(over)

    def _next(self) -> tuple[str, int] | None:
        free = {job_id: job for job_id, job in self.jobs.items() if job.state in ACTIVE and self._free(job_id)}
        job_id = min(free, key=lambda job_id: (free[job_id].leased_rows, free[job_id].turn, free[job_id].order), default=None)
        return (job_id, self._free(job_id)[0]) if job_id is not None else None

    # -- replicas -----------------------------------------------------------------------------------------------------------------

    @rule(holder=st.sampled_from(HOLDERS))
    def lease(self, holder: str) -> None:
        self._expire()
        expected = self._next()
        lease = self.ledger.lease(holder, MODEL, self.now_s)
        assert (lease and (lease.job.id, lease.slice.slice_id)) == expected
        if lease is not None:
            job = self.jobs[lease.job.id]
            assert job.state in ACTIVE
            assert lease.generation == job.slices[lease.slice.slice_id].generation
            job.state, job.turn = JobState.RUNNING, next(self.turns)
            self.least_rows = max(self.least_rows, job.leased_rows)
            job.leased_rows = self.least_rows + lease.slice.row_count
            self.terms[lease.lease_id] = ModelTerm(lease, holder, self.now_s + LEASE_S)
            self.hands[holder].append(lease)

    @rule(holder=st.sampled_from(HOLDERS))
    def heartbeat(self, holder: str) -> None:
        drop = []
        for lease in self.hands[holder]:
            term = self.terms.get(lease.lease_id)
            if term is None or self.jobs[lease.job.id].state not in ACTIVE:
                drop.append(lease.lease_id)
            else:
                term.expires_at_s = self.now_s + LEASE_S
        self._expire()
        progress = [LeaseProgress(lease_id=lease.lease_id, rows_done=1, tokens_done=7) for lease in self.hands[holder]]
        assert self.ledger.heartbeat(holder, progress, self.now_s) == drop

    @rule(holder=st.sampled_from(HOLDERS))
    def crash(self, holder: str) -> None:
        self.past += self.hands[holder]
        self.hands[holder] = []

    @precondition(lambda self: any(self.hands.values()))
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        holder = data.draw(st.sampled_from([holder for holder in HOLDERS if self.hands[holder]]))
        lease = self.hands[holder].pop(data.draw(st.integers(0, len(self.hands[holder]) - 1)))
        self._commit(lease, data.draw(st.integers(0, lease.slice.row_count)))
        self.past.append(lease)

    @precondition(lambda self: self.past)
    @rule(data=st.data())
    def commit_late(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.past))
        self._commit(lease, data.draw(st.integers(0, lease.slice.row_count)))

    def _commit(self, lease: Lease, errors: int) -> None:
        part = self.jobs[lease.job.id].slices[lease.slice.slice_id]
        held = lease.lease_id in self.terms and lease.lease_id not in self.doubted
        again = lease.lease_id not in self.terms and part.done and part.generation == lease.generation and part.by == lease.lease_id
        again = again and (part.ok, part.errors) == (part.rows - errors, errors)
        part.by = lease.lease_id if held else part.by
        if held or (lease.lease_id not in self.terms and part.done and part.generation == lease.generation):
            part.done, part.ok, part.errors = True, part.rows - errors, errors
        stats = PartStats(generation=lease.generation, rows_ok=part.rows - errors, rows_error=errors)
        assert self.ledger.commit(lease.lease_id, lease.job.id, lease.slice.slice_id, stats, self.now_s) == (held or again)
        self._end(lease.lease_id)
        self._settle(lease.job.id)

    @precondition(lambda self: any(self.hands.values()))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        holder = data.draw(st.sampled_from([holder for holder in HOLDERS if self.hands[holder]]))
        lease = self.hands[holder].pop()
        self.ledger.release(lease.lease_id, self.now_s)
        self._end(lease.lease_id)
        self.past.append(lease)

    @precondition(lambda self: any(lease.generation == 0 for leases in self.hands.values() for lease in leases))
    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        """A replica that was told to drop a slice gives it back with a part of the rows done."""
        holder = data.draw(st.sampled_from([name for name in HOLDERS if any(lease.generation == 0 for lease in self.hands[name])]))
        lease = data.draw(st.sampled_from([lease for lease in self.hands[holder] if lease.generation == 0]))
        self.hands[holder].remove(lease)
        rows = data.draw(st.integers(0, lease.slice.row_count))
        errors = data.draw(st.integers(0, rows))
        held = lease.lease_id in self.terms
        assert self.ledger.is_leased(lease.lease_id) == held
        self.ledger.keep(lease.lease_id, PartStats(rows_ok=rows - errors, rows_error=errors), self.now_s)
        if held:
            part = self.jobs[lease.job.id].slices[lease.slice.slice_id]
            part.ok, part.errors = rows - errors, errors
        self._end(lease.lease_id)
        self.past.append(lease)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def doubt(self, data: st.DataObject) -> None:
        """A holder that had lost its lease has written a part of a few rows."""
        job_id = data.draw(st.sampled_from(sorted(self.jobs)))
        job = self.jobs[job_id]
        slice_id = data.draw(st.integers(0, len(job.slices) - 1))
        self.ledger.reopen_slice(job_id, slice_id, self.now_s)
        self.doubted |= {name for name, term in self.terms.items() if (term.lease.job.id, term.lease.slice.slice_id) == (job_id, slice_id)}
        part = job.slices[slice_id]
        if part.done:
            part.done, part.ok, part.errors = False, 0, 0
            job.state = JobState.QUEUED if job.state is JobState.COMPLETED else job.state

    # -- users --------------------------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.jobs) < 4)
    @rule(rows=st.integers(1, 7), slice_rows=st.integers(1, 4))
    def submit(self, rows: int, slice_rows: int) -> None:
        order = next(self.orders)
        plan = scripted_plan(f"job-{order}", rows, slice_rows, created_at_s=float(order))
        self.jobs[plan.spec.id] = ModelJob(order, [ModelSlice(cut.row_count) for cut in plan.slices])
        _, created = self.ledger.submit(plan, new=False)
        assert created

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), verb=st.sampled_from(["cancel", "pause", "resume", "retry", "fail"]))
    def change(self, data: st.DataObject, verb: str) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.jobs)))
        if verb == "retry":
            self._expire()
        target = self._target(job_id, verb)
        arguments = ("it cannot go on",) if verb == "fail" else ()
        if target is None:
            with pytest.raises(StateError):
                getattr(self.ledger, verb)(job_id, *arguments, self.now_s)
            return
        getattr(self.ledger, verb)(job_id, *arguments, self.now_s)
        self.jobs[job_id].state = target
        if verb == "retry":
            self._retry(self.jobs[job_id])
        elif verb == "resume":
            self._settle(job_id)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.jobs)))
        if self.jobs[job_id].state not in ENDED or self._leased(job_id):
            with pytest.raises(StateError):
                self.ledger.remove(job_id)
            return
        self.ledger.remove(job_id)
        del self.jobs[job_id]
        for leases in (self.past, *self.hands.values()):
            leases[:] = [lease for lease in leases if lease.job.id != job_id]

    def _target(self, job_id: str, verb: str) -> JobState | None:
        """The state that follows; None where the change is refused."""
        job = self.jobs[job_id]
        now, held = job.state, bool(self._leased(job_id))
        if verb == "fail":
            return now if now in ENDED else JobState.FAILED
        if verb == "retry":
            return JobState.QUEUED if now in ENDED and job.counts[1] and not held else None
        if verb == "resume":
            return JobState.QUEUED if now in {JobState.QUEUED, JobState.PAUSED, JobState.CANCELLED, JobState.FAILED} else None
        if verb == "pause":
            return JobState.PAUSED if now in {*ACTIVE, JobState.PAUSED} else None
        if now is JobState.COMPLETED:
            return None
        return JobState.CANCELLING if held and now in (JobState.RUNNING, JobState.CANCELLING) else JobState.CANCELLED

    def _retry(self, job: ModelJob) -> None:
        job.generation += 1
        for part in job.slices:
            if part.errors:
                part.done, part.generation = False, job.generation

    # -- time and restarts --------------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.5, 4.0, LEASE_S]))
    def advance(self, seconds: float) -> None:
        self.now_s += seconds

    @rule()
    def expire(self) -> None:
        assert self.ledger.expire(self.now_s) == self._expire()

    @rule(new_server=st.booleans())
    def reopen(self, new_server: bool) -> None:
        self.ledger.close()
        self.ledger = self._open(new_server=new_server)
        for job in self.jobs.values():
            job.turn = job.leased_rows = 0
        self.least_rows = 0
        self.doubted.clear()  # a holder that wrote late tells the new ledger
        for term in self.terms.values():
            term.expires_at_s = self.now_s + LEASE_S
        for lease_id in list(self.terms) if new_server else ():
            self._end(lease_id)

    # -- after each ---------------------------------------------------------------------------------------------------------------

    @invariant()
    def the_ledger_is_as_the_model_says(self) -> None:
        if not hasattr(self, "ledger"):
            return
        self.ledger.check()
        for job_id, job in self.jobs.items():
            view = self.ledger.show(job_id)
            assert view.state is job.state
            assert (view.rows_ok, view.rows_error) == job.counts
            if view.state is JobState.COMPLETED:
                assert view.rows_ok + view.rows_error == view.rows_total == sum(part.rows for part in job.slices)
        lines = self.ledger.table("leases").to_pylist()
        in_force = {(line["job_id"], line["slice_id"]): line["lease_id"] for line in lines if line["state"] == "leased"}
        assert in_force == {(term.lease.job.id, term.lease.slice.slice_id): lease_id for lease_id, term in self.terms.items()}
        assert len(in_force) == len(self.terms)  # never two leases of one slice


class FileMachine(LedgerMachine):
    """On disk, where a reopened ledger has a log and sums to read."""

    def make_place(self) -> Place:
        self.folder = tempfile.TemporaryDirectory()
        return Path(self.folder.name) / "ledger.sqlite"

    def forget_place(self) -> None:
        self.folder.cleanup()


FEW = settings(
    max_examples=8, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = FEW
TestFileMachine = FileMachine.TestCase
TestFileMachine.settings = FEW


class PostgresMachine(LedgerMachine):
    server: ClassVar[Postgres]

    def make_place(self) -> Place:
        return PostgresPlace(self.server.new(), "machine")

    def forget_place(self) -> None:
        pass


def test_the_ledger_in_postgresql_is_as_the_model_says_too(database: Postgres) -> None:
    PostgresMachine.server = database
    run_state_machine_as_test(PostgresMachine, settings=FEW)
