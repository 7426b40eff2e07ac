"""An input file as a job: its rows under the job's folder, its spec and its slices."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from connectors.durable import storage_error
from connectors.open import open_source
from jobs.batches.files import FileStore
from jobs.batches.input import BODY, CUSTOM_ID, InputReader, InvalidInput
from jobs.batches.line import LineRules
from jobs.batches.record import BatchError, BatchRecord
from jobs.config import BatchConfig, HarvestConfig
from jobs.errors import NotFoundError
from jobs.plan.job import cut_slices
from jobs.spec import JobPlan, JobSpec, SourceSpec
from jobs.storage.folder import StateFolder
from jobs.storage.inputs import fetch_input, forget_input, has_rows, send_input
from jobs.tasks.spec import Task

TASK = Task(name="batch", description="Requests to an OpenAI endpoint, one a row.", prompt=f"{{{BODY}}}")


class BatchPlanner:
    """Plans the jobs of batches. It reads and writes whole input files: call it from a thread.

    ``model``: the one that jobs run on, unless their requests name one of the ``further`` ones.
    """

    def __init__(
        self,
        folder: StateFolder,
        files: FileStore,
        limits: BatchConfig,
        harvest: HarvestConfig,
        model: str,
        media_hosts: Collection[str] = (),
        further: Collection[str] = (),
    ) -> None:
        self._folder = folder
        self._files = files
        self._limits = limits
        self._harvest = harvest
        self._model = model
        self._media_hosts = media_hosts
        self._further = frozenset(further)

    def plan(self, record: BatchRecord, models: Collection[str], is_stopped: Callable[[], bool]) -> tuple[JobPlan, str]:
        """The job, and the model that its requests name, one of ``models``.

        The rows are the job's own from here on: the input file may go. Raises `InvalidInput`, `Stopped` and `StorageError`.
        """
        staging = self._folder.jobs / f".staging-{record.id}"
        bounds = [bound for bound in (self._limits.max_lines, record.limits.max_job_rows) if bound is not None]
        limits = self._limits.model_copy(update={"max_lines": min(bounds, default=None)})
        reader = InputReader(LineRules(record.wish.endpoint, models, record.limits, self._media_hosts), limits, is_stopped)
        try:
            self._read(record, reader, staging / "input" / "requests.parquet")
            job = self._folder.jobs / record.id
            shutil.rmtree(job, ignore_errors=True)  # of a planner that died before there was a job
            staging.rename(job)
            send_input(self._folder, record.id, str(self.rows(record.id)))
        except OSError as error:
            raise storage_error("write", staging, error) from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        assert reader.model is not None
        return self._job(record, reader.model), reader.model

    def _read(self, record: BatchRecord, reader: InputReader, path: Path) -> None:
        file_id = record.wish.input_file_id
        try:
            with self._files.fetched(self._files.get(file_id).id).open("rb") as file:  # deleted from here on, it can still be read
                reader.write(file, path, file_id)
        except (NotFoundError, FileNotFoundError) as error:
            message = f"The input file {file_id} was deleted before it was read; upload it again and make a new batch."
            raise InvalidInput([BatchError(code="file_not_found", message=message, param="input_file_id")]) from error

    def _job(self, record: BatchRecord, model: str) -> JobPlan:
        uri = str(self.rows(record.id))
        with open_source(uri) as source:
            spec = JobSpec(
                id=record.id,
                key=record.id,
                source=SourceSpec(uri=uri),
                fingerprint=source.fingerprint(),
                task=TASK,
                column=BODY,
                keep=(CUSTOM_ID,),
                model=model if model in self._further else self._model,
                rows_total=source.row_count,
                created_at_s=record.created_at_s,
                owner=record.owner,
                endpoint=record.wish.endpoint,
                max_tokens=record.limits.max_tokens,
                deadline_at_s=record.expires_at_s,
            )
            return JobPlan(spec=spec, slices=cut_slices(source.row_groups(), source.row_count, self._harvest))

    def has_rows(self, batch_id: str) -> bool:
        return has_rows(self._folder, batch_id)

    def spent(self, records: Collection[BatchRecord]) -> set[str]:
        """Ids of the ended batches whose client needs them no longer: the input file is gone, or all files made of it are.

        Raises `StorageError`.
        """
        named = {record.id: _named(record) for record in records}
        there = self._files.there({file_id for source, made in named.values() for file_id in (source, *made)}) if named else set()
        return {batch_id for batch_id, (source, made) in named.items() if source not in there or (made and there.isdisjoint(made))}

    def forget(self, batch_id: str) -> None:
        """Remove a batch's rows. Its results stay; its job cannot be resumed or retried any more. Raises `StorageError`."""
        shutil.rmtree(self._folder.snapshot(batch_id), ignore_errors=True)
        with suppress(OSError):  # there are results
            (self._folder.jobs / batch_id).rmdir()
        forget_input(self._folder, batch_id)

    def rows(self, batch_id: str) -> Path:
        """The Parquet file of a batch's requests."""
        return self._folder.snapshot(batch_id) / "requests.parquet"

    def fetched_rows(self, batch_id: str) -> Path:
        """`rows`, fetched from the storage where they are not here. Raises `StorageError`."""
        path = self.rows(batch_id)
        fetch_input(self._folder, batch_id, str(path))
        return path


def _named(record: BatchRecord) -> tuple[str, list[str]]:
    """The input file of a batch, and the files made of it."""
    return record.wish.input_file_id, [file_id for file_id in (record.output_file_id, record.error_file_id) if file_id is not None]
