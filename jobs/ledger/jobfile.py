"""``job.json`` in a job's folder: its spec and slices, so that a lost ledger can be rebuilt from the folders."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from connectors.durable import storage_error
from connectors.errors import DamageError
from jobs.frozen import of_other, stored
from jobs.ledger.splits import cut, noted_splits
from jobs.ledger.store.contract import Store
from jobs.spec import JobPlan, JobSpec, SliceSpec
from jobs.storage.folder import JOB_FILE
from jobs.storage.publish import publish_to

if TYPE_CHECKING:
    from jobs.storage.mirror import Mirror

_SLICE = tuple(SliceSpec.model_fields)


def write_job(jobs: Path, plan: JobPlan, mirror: Mirror | None = None) -> None:
    """Write ``job.json``, durably and atomically. ``jobs``: folder of all jobs, a local copy of ``mirror``. Raises `StorageError`."""
    slices = [[getattr(cut, name) for name in _SLICE] for cut in plan.slices]
    body = json.dumps({"spec": json.loads(stored(plan.spec)), "notes": plan.notes, "slices": slices}).encode()
    with publish_to(mirror, jobs / plan.spec.id / JOB_FILE) as file:
        file.write(b"%08x\n" % zlib.crc32(body) + body)


def write_missing_jobs(store: Store, jobs: Path, mirror: Mirror | None = None) -> None:
    """Write ``job.json`` for jobs that an earlier version accepted without one. One whose spec cannot be read is left as it is."""
    for row in store.rows("job_rows"):
        if not (jobs / row["id"] / JOB_FILE).exists():
            try:
                spec = JobSpec.model_validate_json(row["spec"])
            except ValueError:  # of another version; the ledger says so
                continue
            slices = tuple(SliceSpec(**cut) for cut in store.rows("job_slices", [row["id"]]))
            write_job(jobs, JobPlan(spec=spec, slices=slices, notes=json.loads(row["notes"])), mirror)


def insert_job(store: Store, plan: JobPlan) -> None:
    """Insert a job, queued, with all of its slices. Call within a transaction."""
    spec = plan.spec
    values = [spec.id, spec.key, spec.task.name, spec.source.uri, spec.model, spec.rows_total, spec.created_at_s, spec.owner]
    store.run("insert_job", [*values, json.dumps(plan.notes), stored(spec)])
    store.many("insert_slices", [[spec.id, *(getattr(cut, name) for name in _SLICE)] for cut in plan.slices])


def read_job(path: Path) -> JobPlan:
    """Read a job, with its slices as they were split since.

    Raises `DamageError` for a file that is not as it was written, or is of another version, `StorageError` for one that cannot be read.
    """
    try:
        checksum, _, body = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise storage_error("read", path, error) from error
    if checksum != b"%08x" % zlib.crc32(body):
        raise DamageError(f"{path} is damaged, so its job cannot be restored; its parts stay where they are")
    told = json.loads(body)
    try:
        spec = JobSpec.model_validate(told["spec"])
        slices = tuple(SliceSpec(**dict(zip(_SLICE, values, strict=True))) for values in told["slices"])
    except ValueError as error:  # the checksum is right
        raise DamageError(of_other(path, error)) from error
    return JobPlan(spec=spec, slices=cut(slices, noted_splits(path.parent)), notes=tuple(told["notes"]))
