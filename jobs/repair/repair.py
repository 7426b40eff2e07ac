"""`harvester repair`: makes the ledger agree with the files in the folders of its jobs, and rebuilds it where it is damaged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from connectors.durable import storage_error, sync_folder
from connectors.errors import DamageError, StorageError
from jobs.ledger.jobfile import insert_job, read_job, write_missing_jobs
from jobs.ledger.store.contract import COMMITS, Store
from jobs.ledger.store.duckdb_ledger import migrate
from jobs.ledger.store.place import ledger_place, open_store
from jobs.ledger.store.statements import TABLES
from jobs.ledger.store.sums import SUMS
from jobs.removal import begun_removals
from jobs.repair.slices import SliceChanges, repaired_slices
from jobs.run.spool.records import spooled_rows
from jobs.spec import JobPlan
from jobs.states import ACTIVE, JobState
from jobs.storage.folder import JOB_FILE, StateFolder

_BESIDE = ("-wal", "-shm")  # SQLite's, behind the ledger's name
_OLD_BESIDE = (".wal",)  # DuckDB's


@dataclass(slots=True)
class Report:
    """What was found and done. ``changes_lost``: None where nobody can tell."""

    jobs: int = 0
    ledger_aside: Path | None = None  # the damaged one
    changes_lost: int | None = 0
    restored: list[str] = field(default_factory=list)  # jobs that the ledger did not know
    slices_found: int = 0  # with a complete part that the ledger did not know
    slices_open: int = 0  # done in the ledger, but without a complete part
    parts_aside: list[Path] = field(default_factory=list)
    rows_spooled: int = 0  # rows in spools of slices that are not done; they are not computed again
    problems: list[str] = field(default_factory=list)  # what could not be repaired


def repair(folder: StateFolder) -> Report:
    """Repair the ledger. Nothing is deleted: damaged files are renamed and kept. Call it while no server holds the folder.

    Restored jobs and completed jobs that lost a part are paused. Where the ledger lost changes, every active job is paused too: it may
    have been cancelled since, and computing costs. Safe to repeat and to interrupt. Raises `StorageError` where the disk fails.
    """
    report = Report()
    if folder.mirror is not None:
        for job in folder.mirror.names(folder.jobs):
            folder.mirror.fetch_folder(folder.jobs / job)
    store = _whole_store(folder, report)
    try:
        for plan in _unknown_jobs(folder, store, report):
            with store.transaction():
                insert_job(store, plan)
                store.run("set_state", [JobState.PAUSED, None, None, _restored(plan.spec.id), plan.spec.id])
            report.restored.append(plan.spec.id)
        for row in store.rows("job_rows"):
            report.jobs += 1
            if (folder.jobs / row["id"]).is_dir():  # else its results were removed on purpose
                _agree(store, folder, row["id"], JobState(row["state"]), report)
        write_missing_jobs(store, folder.jobs, folder.mirror)
        store.confirm()
    finally:
        store.close()
    return report


def _whole_store(folder: StateFolder, report: Report) -> Store:
    """The store of the ledger if all of it can be read, else a new one."""
    place = ledger_place(folder)
    if not isinstance(place, Path):
        return open_store(place)  # a database is mended with its own tools
    try:
        migrate(folder)
        store = open_store(place, count_missing=False)
    except DamageError:
        return _anew(folder, report)
    try:
        for table in TABLES:
            store.arrow(table)
    except StorageError:
        store.close()
        return _anew(folder, report)
    try:
        report.changes_lost = store.missing()
    except DamageError:
        report.changes_lost = None
        _put_aside(folder.ledger.with_suffix(COMMITS))
    return store


def _anew(folder: StateFolder, report: Report) -> Store:
    path, beside = (folder.old_ledger, _OLD_BESIDE) if folder.old_ledger.exists() else (folder.ledger, _BESIDE)
    report.changes_lost = None
    report.ledger_aside = _put_aside(path)
    for suffix in beside:
        _put_aside(path.with_name(path.name + suffix))
    path.with_suffix(SUMS).unlink(missing_ok=True)
    folder.mark_version()
    return open_store(folder.ledger, count_missing=False)


def _put_aside(path: Path) -> Path:
    name = next(name for number in count(1) if not (name := path.with_name(f"{path.name}.damaged-{number}")).exists())
    try:
        if path.exists():
            path.replace(name)
            sync_folder(path.parent)
    except OSError as error:
        raise storage_error("move", path, error) from error
    return name


def _unknown_jobs(folder: StateFolder, store: Store, report: Report) -> Iterator[JobPlan]:
    known = {row["id"] for row in store.rows("job_rows")} | {job_id for job_id, _ in begun_removals(folder)}
    for path in sorted(path for path in folder.jobs.glob("[!.]*") if path.name not in known):
        if (path / JOB_FILE).exists():
            try:
                yield read_job(path / JOB_FILE)
            except DamageError as error:
                report.problems.append(error.message)
        elif (path / "results").exists():
            report.problems.append(f"{path} has results, but no {JOB_FILE} that says of which job; read its parts as files")


def _agree(store: Store, folder: StateFolder, job_id: str, state: JobState, report: Report) -> None:
    """Make the ledger agree with one job's parts, in one transaction."""
    changes = repaired_slices(store.rows("slice_rows", [job_id]), folder, job_id, restored=job_id in report.restored)
    report.slices_found += changes.found
    report.slices_open += changes.reopened
    report.parts_aside += changes.aside
    for path in sorted(folder.spools(job_id).glob("slice-*.jsonl")):
        report.rows_spooled += len(spooled_rows(path))
    message = _why_paused(job_id, state, changes, report)
    if changes.slices or message:
        with store.transaction():
            _write(store, job_id, changes)
            if message:
                store.run("set_state", [JobState.PAUSED, None, None, message, job_id])


def _why_paused(job_id: str, state: JobState, changes: SliceChanges, report: Report) -> str | None:
    if changes.reopened and state is JobState.COMPLETED:
        return f"{changes.reopened} of its parts are damaged or gone; compute their rows again with: harvester resume {job_id}"
    if state in ACTIVE and report.changes_lost != 0:
        return f"the ledger had lost changes, perhaps that this job was cancelled; if it is to go on: harvester resume {job_id}"
    return None


def _write(store: Store, job_id: str, changes: SliceChanges) -> None:
    for item in changes.slices:
        store.run("restore_slice", [item.state, item.generation, job_id, item.slice_id])
        store.run("count_slice", [*item.counts, job_id, item.slice_id])
    ((*sums,),) = store.run("slice_sums", [job_id])
    store.run("set_counts", [*sums, job_id])
    store.run("set_generation", [changes.generation, job_id])


def _restored(job_id: str) -> str:
    return f"restored by harvester repair; nobody knows whether it was to go on; if so: harvester resume {job_id}"
