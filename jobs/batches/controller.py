"""Advances every batch: checks its input, submits its job, makes its files when the job has ended.

Whatever a controller leaves undone when it dies, the next one does. Each step is safe to repeat: validation makes the same rows,
a job is submitted once under the batch's id, files are made under ids chosen at the start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from connectors.errors import StorageError
from jobs.access.limits import Limits
from jobs.batches.files import FileStore, no_such_file
from jobs.batches.input import InvalidInput, Stopped
from jobs.batches.output import write_outputs
from jobs.batches.plan import BatchPlanner
from jobs.batches.record import BatchError, BatchRecord, BatchWish, Counts
from jobs.batches.states import CANCELLABLE, ENDED_BATCH, BatchStatus, BatchStep, final_status, next_step
from jobs.batches.store import BatchStore
from jobs.errors import EngineError, NotFoundError, ParameterError, StateError
from jobs.spec import JobPlan, JobView
from jobs.states import ENDED, JobState
from jobs.storage.folder import StateFolder
from jobs.threads import with_storage

log = logging.getLogger("harvester.batches")

HEAVY = 2  # inputs read and files made at once: each takes a thread and a row group of memory
AGAIN_S = 5.0  # after the disk or the ledger failed
TIDY_S = 60.0
RECENT_S = 2.0  # a view so recent is shown again without a call to the ledger, which may have commits to write


class BatchLedger(Protocol):
    """The ledger as a controller sees it."""

    async def submit(self, plan: JobPlan, *, new: bool) -> tuple[JobView, bool]: ...
    async def show(self, job_id: str) -> JobView: ...
    async def change(self, job_id: str, verb: str) -> JobView: ...
    async def slices_leased(self, job_id: str) -> int: ...
    async def expire(self) -> None: ...


class BatchController:
    """`run` works until it is cancelled. ``models``: names that the server answers to. ``now_s``: the wall clock."""

    def __init__(
        self,
        ledger: BatchLedger,
        store: BatchStore,
        files: FileStore,
        planner: BatchPlanner,
        folder: StateFolder,
        models: Callable[[], Awaitable[Collection[str]]],
        now_s: Callable[[], float],
        poll_s: float = 1.0,
        tidy_s: float = TIDY_S,
    ) -> None:
        self._ledger = ledger
        self._store = store
        self._files = files
        self._planner = planner
        self._folder = folder
        self._models = models
        self._now_s = now_s
        self._poll_s = poll_s
        self._tidy_s = tidy_s
        self._heavy = asyncio.Semaphore(HEAVY)
        self._writing = asyncio.Lock()  # a record is read, changed and put by one at a time
        self._wake = asyncio.Event()
        self._work: dict[str, asyncio.Task[None]] = {}
        self._has_rows: dict[str, bool] = {}  # ended batches, of which a storage is asked once
        self._seen: dict[str, tuple[float, JobView]] = {}  # jobs of batches that go on, by the event loop's clock

    # -- what clients ask -----------------------------------------------------------------------------------------------------------

    async def create(
        self, wish: BatchWish, owner: str | None = None, limits: Limits | None = None, owns: Callable[[str | None], bool] = lambda _: True
    ) -> dict[str, Any]:
        """Raises `ParameterError` for an invalid window or input file.

        ``owner``: who asks; ``owns``: whether they may use the files of an owner.
        """
        try:
            stored = await with_storage(self._files.get, wish.input_file_id)
            if not owns(stored.owner):
                raise no_such_file(wish.input_file_id)
        except NotFoundError as error:
            raise ParameterError(error.message, "input_file_id") from error
        if stored.purpose != "batch":
            raise ParameterError(f"file {stored.id} has purpose {stored.purpose}; upload the input with purpose batch", "input_file_id")
        record = BatchRecord.of(wish, self._now_s(), owner, limits)
        await with_storage(self._store.put, record)
        self._wake.set()
        return record.to_openai(None)

    async def show(self, batch_id: str) -> dict[str, Any]:
        """OpenAI's batch object, its counts up to `RECENT_S` old. Raises `NotFoundError`."""
        record = self._store.get(batch_id)
        has_none = record.counts is not None or record.status is BatchStatus.VALIDATING
        return record.to_openai(None if has_none else await self._recent_job(record.id))

    def owner(self, batch_id: str) -> str | None:
        """Raises `NotFoundError`."""
        return self._store.get(batch_id).owner

    def records(self) -> list[BatchRecord]:
        """Newest first."""
        return self._store.list()

    async def cancel(self, batch_id: str) -> dict[str, Any]:
        """Raises `NotFoundError`, and `StateError` for a batch that has ended or is about to."""
        record = await self._change(batch_id, BatchStatus.CANCELLING, only_from=CANCELLABLE)
        if record.status not in (BatchStatus.CANCELLING, BatchStatus.CANCELLED):
            raise StateError(f"Cannot cancel a batch with status '{record.status}'.")
        if record.status is BatchStatus.CANCELLING:
            with suppress(NotFoundError, StateError):  # no job yet; or it has just ended by itself
                await self._ledger.change(batch_id, "cancel")
            self._wake.set()
        return await self.show(batch_id)

    # -- what goes on by itself -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        tidying = asyncio.create_task(self._keep_tidy())
        try:
            while True:
                await self.look()
                self._wake.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._poll_s):  # `wait_for` of Python 3.11 may lose a cancellation
                        await self._wake.wait()
        finally:
            for task in (tidying, *self._work.values()):
                task.cancel()

    async def look(self) -> None:
        """Start on every batch that has not ended and is not in work."""
        going = [record for record in self._store.list() if record.status not in ENDED_BATCH and record.id not in self._work]
        if any(record.expires_at_s <= self._now_s() for record in going):
            with suppress(StorageError):
                await self._ledger.expire()  # there may be no replica that asks for work, which would expire the job
        for record in reversed(going):
            task = self._work[record.id] = asyncio.create_task(self._advance(record.id))
            task.add_done_callback(partial(self._done, record.id))

    def _done(self, batch_id: str, task: asyncio.Task[None]) -> None:
        self._work.pop(batch_id, None)
        if self._store.get(batch_id).status in ENDED_BATCH:
            self._seen.pop(batch_id, None)

    async def _keep_tidy(self) -> None:
        while True:
            try:
                await self.tidy()
            except StorageError as error:
                log.warning("batch_tidy_waits %s", error.message)
            except Exception:
                log.exception("batch_tidy_bug")
            await asyncio.sleep(self._tidy_s)

    async def tidy(self) -> None:
        """Remove the rows of each ended batch that is spent (`BatchPlanner.spent`) or whose job is gone. A resumed job keeps them."""
        for record, is_spent in await with_storage(self._let_go):
            job = await self._job(record.id)
            is_idle = job is not None and job.state in ENDED and not await self._ledger.slices_leased(record.id)
            if job is None or (is_spent and is_idle):
                await with_storage(self._planner.forget, record.id)
                self._has_rows[record.id] = False

    def _let_go(self) -> list[tuple[BatchRecord, bool]]:
        """Ended batches that have rows, and are spent or made no file; each with whether it is spent."""
        ended = [record for record in self._store.list() if record.status in ENDED_BATCH]
        for record in ended:
            if record.id not in self._has_rows:
                self._has_rows[record.id] = self._planner.has_rows(record.id)
        there = [record for record in ended if self._has_rows[record.id]]
        spent = self._planner.spent(there)
        return [(one, one.id in spent) for one in there if one.id in spent or not (one.output_file_id or one.error_file_id)]

    async def settle(self) -> None:
        """Wait for what is in work now. For tests, which take the steps of `run` one by one."""
        await asyncio.gather(*self._work.values())

    async def _advance(self, batch_id: str) -> None:
        try:
            job = await self._job(batch_id)
            if job is not None:
                self._note(job)
            held = await self._ledger.slices_leased(batch_id) if job is not None and job.state in ENDED else 0
            record = self._store.get(batch_id)
            step = next_step(record.status, None if job is None else job.state, held)
            if step is BatchStep.FINALIZE and job is not None:
                await self._finalize(batch_id, job)
            else:
                await self._step(record, step)
        except (StorageError, EngineError) as error:
            log.warning("batch_waits batch=%s %s", batch_id, error.message)
            await asyncio.sleep(AGAIN_S)
        except Exception as error:
            log.exception("batch_bug batch=%s", batch_id)
            await self._fail(batch_id, [BatchError(code="internal_error", message=f"internal error: {type(error).__name__}: {error}")])

    async def _step(self, record: BatchRecord, step: BatchStep) -> None:
        if step is BatchStep.VALIDATE:
            await self._validate(record)
        elif step is BatchStep.BEGIN:
            await self._begin(record.id)
        elif step is BatchStep.STOP:
            with suppress(StateError):
                await self._ledger.change(record.id, "cancel")
        elif step is BatchStep.DROP:
            await self._change(record.id, BatchStatus.CANCELLED, counts=Counts())
        elif step is BatchStep.LOSE:
            await self._fail(record.id, [BatchError(code="job_lost", message="The ledger does not know the batch's job any more.")])

    async def _validate(self, record: BatchRecord) -> None:
        def is_stopped() -> bool:
            return self._store.get(record.id).status is not BatchStatus.VALIDATING

        async with self._heavy:
            models = await self._models()
            try:
                plan, model = await with_storage(self._planner.plan, record, models, is_stopped)
            except InvalidInput as invalid:
                await self._fail(record.id, list(invalid.errors), only_from={BatchStatus.VALIDATING})
                return
            except Stopped:
                return
        if not is_stopped():
            await self._change(record.id, model=model)
            view, _ = await self._ledger.submit(plan, new=True)
            self._note(view)
            await self._begin(record.id)

    async def _begin(self, batch_id: str) -> None:
        """Mark a batch as in progress, unless it was cancelled while its job was submitted: then the next `look` stops the job."""
        await self._change(batch_id, BatchStatus.IN_PROGRESS, only_from={BatchStatus.VALIDATING})

    async def _finalize(self, batch_id: str, job: JobView) -> None:
        before = BatchStatus.CANCELLING if job.state is JobState.CANCELLED else BatchStatus.FINALIZING
        record = await self._change(batch_id, before, only_from=frozenset(BatchStatus) - {BatchStatus.CANCELLING})
        async with self._heavy:
            outcome = await with_storage(
                write_outputs,
                record,
                job.rows_total,
                await with_storage(self._planner.fetched_rows, record.id),
                self._folder,
                self._files,
                never_run_expired=job.state is JobState.EXPIRED,
            )
        status = final_status(record.status, job.state)
        errors = (BatchError(code="job_failed", message=job.message or "The job failed."),) if status is BatchStatus.FAILED else ()
        files: dict[str, Any] = {"output_file_id": outcome.output_file_id, "error_file_id": outcome.error_file_id}
        await self._change(record.id, status, errors=errors, counts=outcome.counts, usage=outcome.usage, **files)

    async def _fail(self, batch_id: str, errors: list[BatchError], only_from: Collection[BatchStatus] | None = None) -> None:
        await self._change(batch_id, BatchStatus.FAILED, only_from=only_from, errors=tuple(errors), counts=Counts())

    async def _change(
        self, batch_id: str, status: BatchStatus | None = None, *, only_from: Collection[BatchStatus] | None = None, **changes: Any
    ) -> BatchRecord:
        """Move a record to ``status`` (None: its own), if its status is in ``only_from`` (None: any). Returns the record afterwards."""
        async with self._writing:
            record = self._store.get(batch_id)
            if only_from is None or record.status in only_from:
                record = record.reach(status or record.status, self._now_s(), **changes)
                await with_storage(self._store.put, record)
            return record

    async def _job(self, batch_id: str) -> JobView | None:
        try:
            return await self._ledger.show(batch_id)
        except NotFoundError:
            return None

    def _note(self, job: JobView) -> None:
        self._seen[job.id] = (asyncio.get_running_loop().time(), job)

    async def _recent_job(self, batch_id: str) -> JobView | None:
        seen_at_s, job = self._seen.get(batch_id, (0.0, None))
        is_recent = job is not None and asyncio.get_running_loop().time() - seen_at_s <= RECENT_S
        return job if is_recent else await self._job(batch_id)
