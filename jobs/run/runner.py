"""The harvest loop of one replica: lease slices while the backlog is low, answer their rows, publish their parts, tell the ledger."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from connectors.base import Sink
from connectors.errors import HarvesterError, SourceAwayError, SourceError, StorageError, UsageError
from connectors.text import TextProblem
from jobs.access.images import ImageBounds
from jobs.config import HarvestConfig, PriceConfig
from jobs.engine import EngineGone, RowEngine
from jobs.hint import SchedulingHint
from jobs.run.active import ActiveSlice, ActiveSlices
from jobs.run.client import LedgerClient
from jobs.run.devicetime import DeviceTime
from jobs.run.row import RowWork
from jobs.run.row_return import RowReturn
from jobs.run.slice import READERS, SliceFiles, SliceReading
from jobs.run.spans import NoSpans, Note, Spans
from jobs.run.spool.spools import Spools
from jobs.run.telling import despite_cancellation, tell
from jobs.spec import JobSpec, PartStats
from jobs.storage.folder import StateFolder
from jobs.threads import in_thread

log = logging.getLogger("harvester.runner")

STORAGE_WAIT_S = 5.0
LEAVE_POLL_S = 0.05
GIVE_BACK_S = 5.0  # longest wait of a cancelled task for the ledger


class Runner:
    """`run` works until it is cancelled, which gives every lease back; it raises `EngineGone` when the engine died.

    `leave` ends its work without a row computed twice. ``holder`` names this process and no other before
    or after it. ``now_s`` is the wall clock.
    """

    def __init__(
        self,
        holder: str,
        ledger: LedgerClient,
        engine: RowEngine,
        folder: StateFolder,
        config: HarvestConfig,
        open_sink: Callable[[StateFolder, str], Sink],
        now_s: Callable[[], float],
        price: PriceConfig | None = None,
        spans: Spans | None = None,
        media_hosts: tuple[str, ...] = (),
    ) -> None:
        self.holder = holder
        self.ledger = ledger
        self.engine = engine
        self.folder = folder
        self.config = config
        self.now_s = now_s
        self._spans = spans or NoSpans()
        self._active = ActiveSlices()
        self._late_told = set[str]()  # jobs of which the ledger knows that a slice is late
        self._images = ImageBounds(config.max_image_bytes, media_hosts)
        self._device_time = DeviceTime(engine, price)
        self._slots = asyncio.Semaphore(engine.concurrency)
        self._part_slots = asyncio.Semaphore(engine.concurrency)  # for parts of long texts; a row needs one while it holds one of `_slots`
        self._room = asyncio.Event()
        self._hints: dict[str, SchedulingHint] = {}  # of each job, as the ledger said last
        self._publishing = ThreadPoolExecutor(1, thread_name_prefix="publish")
        self._spools = Spools(folder, config.spool_send_s)
        self._reading = SliceReading(folder, open_sink, self._spools, self._room.set)
        self._row_return = RowReturn(holder, ledger, self._active)
        self._leaving = self._feeding = self._is_engine_gone = False

    async def leave(self) -> None:
        """Lease no more and begin no more rows; return when those begun have ended and every lease is given back with its spool."""
        self._leaving = True
        self._room.set()
        while self._feeding or self._active:  # noqa: ASYNC110 - tasks come and go meanwhile
            await asyncio.sleep(LEAVE_POLL_S)

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._beat())
                group.create_task(self._feed(group))
                group.create_task(self._spools.run())
        except* EngineGone as gone:
            raise gone.exceptions[0] from None
        finally:
            await despite_cancellation(self._give_back_unbegun(), GIVE_BACK_S)
            # Not on the event loop: a slow source or storage would hold up the chats that end there.
            await despite_cancellation(asyncio.to_thread(self._shut_down), GIVE_BACK_S)

    def _shut_down(self) -> None:
        self._reading.sources.close()
        self._publishing.shutdown()
        self._reading.shutdown()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self.config.heartbeat_s)
            try:
                await self._beat_once()
            except StorageError as error:
                log.warning("heartbeat_storage %s", error.message)
            except Exception:  # chat goes on, and so do the rows; leases that are not renewed expire
                log.exception("heartbeat_bug")

    async def _beat_once(self) -> None:
        await self._tell_progress()
        self._hints = await self.ledger.hints() if self._active else {}
        await self._row_return.give_back()
        self._room.set()

    async def _tell_progress(self) -> None:
        progress, late = self._active.progress(), self._active.late_jobs
        drop = await self.ledger.heartbeat(self.holder, progress) if progress or self._late_told else []
        self._late_told = late
        for lease_id in drop:
            if lease_id in self._active:
                self._active[lease_id].drop()

    async def _feed(self, group: asyncio.TaskGroup) -> None:
        """Lease a slice whenever the rows that wait for a slot are at most half of the engine's concurrency."""
        self._feeding = True
        try:
            while not self._leaving:
                if self._is_full():
                    self._room.clear()
                    await self._room.wait()
                else:
                    await self._lease(group)
        finally:
            self._feeding = False

    def _is_full(self) -> bool:
        """Whether to lease no more: enough rows wait, slow sources hold all readers, or rows were given back and none ended since."""
        if self._active.rows_waiting > self.engine.concurrency // 2 or len(self._active.late_jobs) > READERS:
            return True
        return self._row_return.gave and bool(self._active)

    async def _lease(self, group: asyncio.TaskGroup) -> None:
        try:
            if self._active.late_jobs != self._late_told:
                await self._tell_progress()
            lease = await self.ledger.lease(self.holder, self.engine.model)
        except StorageError as error:
            log.warning("lease_storage %s", error.message)
            await asyncio.sleep(STORAGE_WAIT_S)
            return
        except Exception:  # chat goes on without batch work
            log.exception("lease_bug")
            await asyncio.sleep(STORAGE_WAIT_S)
            return
        if lease is None:
            await asyncio.sleep(self.config.idle_poll_s)
            return
        active = self._active[lease.lease_id] = ActiveSlice(lease, rows_waiting=lease.slice.row_count)
        active.task = group.create_task(self._work(active))

    async def _work(self, active: ActiveSlice) -> None:
        lease = active.lease
        committed = False
        active.begun = True
        try:
            self.folder.check_free(self.config.min_free_bytes)
            with self._spans.slice(lease) as note:
                committed = not active.dropped and await self._slice(active, note)
        except (StorageError, SourceAwayError) as error:
            log.warning("slice_storage job=%s slice=%d %s", lease.job.id, lease.slice.slice_id, error.message)
            await tell(self.ledger.say(lease.job.id, error.message))
            await asyncio.sleep(STORAGE_WAIT_S)
        except SourceError as error:  # on this machine: others may be able to read it
            log.warning("slice_refused job=%s slice=%d %s", lease.job.id, lease.slice.slice_id, error.message)
            await tell(self.ledger.refuse(lease.lease_id, error.message))
        except UsageError as error:  # of the task: a retry would fail too
            await tell(self.ledger.fail(lease.job.id, error.message))
        except (EngineGone, asyncio.CancelledError):
            raise
        except Exception as error:
            log.exception("slice_bug job=%s slice=%d", lease.job.id, lease.slice.slice_id)
            message = error.message if isinstance(error, HarvesterError) else f"internal error: {type(error).__name__}: {error}"
            await tell(self.ledger.fail(lease.job.id, message))
        finally:
            self._active.pop(lease.lease_id, None)
            self._room.set()
            if not committed:
                await despite_cancellation(tell(self.ledger.release(lease.lease_id)), GIVE_BACK_S)

    async def _give_back_unbegun(self) -> None:
        """The leases of tasks that were cancelled before their first step; the others have given theirs back themselves."""
        for active in self._active.values():
            await tell(self.ledger.release(active.lease.lease_id))

    async def _slice(self, active: ActiveSlice, note: Note) -> bool:
        """Compute and publish one slice. True when the ledger has it."""
        lease = active.lease
        opened = await self._reading.read(active)
        stats = opened if isinstance(opened, PartStats) else await self._computed(active, opened)
        if stats is None:
            return False
        note(stats)
        await self.ledger.commit(lease.lease_id, lease.job.id, lease.slice.slice_id, self._charged(active, stats))
        await self._spools.forget(lease)
        return True

    async def _computed(self, active: ActiveSlice, files: SliceFiles) -> PartStats | None:
        """Answer the rows and publish their part. None where rows were left undone."""
        stats = None
        try:
            if await self._rows(active, files):
                active.publishing = True
                stats = await in_thread(self._publishing, files.publish)
        except asyncio.CancelledError:
            if active.dropped:
                await despite_cancellation(tell(self._keep(active, files)), GIVE_BACK_S)
            raise
        finally:
            await self._spools.close(files.spool, is_left=stats is None)
        return stats

    def _charged(self, active: ActiveSlice, stats: PartStats) -> PartStats:
        return self._device_time.charged(stats, active.tokens_done, self._active.tokens_beside(active))

    async def _keep(self, active: ActiveSlice, files: SliceFiles) -> None:
        """Publish the finished rows of a slice whose job may not run any more."""
        lease = active.lease
        if not files.spool.rows or not await self.ledger.is_leased(lease.lease_id):
            return
        stats = await in_thread(self._publishing, files.publish_some)
        if stats is not None and not await self.ledger.keep(lease.lease_id, self._charged(active, stats)):  # lost while they were written
            await self.ledger.reopen_slice(lease.job.id, lease.slice.slice_id)

    async def _rows(self, active: ActiveSlice, files: SliceFiles) -> bool:
        """Answer the rows of a slice. False where some were left undone: this runner leaves, or its engine is gone."""
        todo = files.todo()
        feed = active.start(todo, files.spool.rows.values())
        rows, cells = await in_thread(self._publishing, files.inputs)
        work = RowWork(active.lease.job, self.engine, self.now_s, self._part_slots, self._hint_of, self._images)
        start, left = active.lease.slice.row_start, False
        try:
            async with asyncio.TaskGroup() as group:
                while feed.has_more():
                    await self._slots.acquire()
                    left, row_id = self._leaving or self._is_engine_gone, None
                    try:
                        row_id = None if left else await feed.take()
                    finally:
                        if row_id is None:  # also where the slice is dropped while it waits for the ledger
                            self._slots.release()
                    if row_id is None:
                        break
                    active.rows_waiting -= 1
                    self._room.set()
                    cell = cells[row_id - start] if cells is not None else None
                    task = group.create_task(self._row(active, files, work, row_id, rows[row_id - start], cell))
                    task.add_done_callback(lambda _: self._slots.release())  # also of a task cancelled before it ran
        except ExceptionGroup as errors:  # of the rows; that the engine is gone explains the others
            gone = errors.subgroup(EngineGone)
            raise (gone or errors).exceptions[0] from None
        return not left

    def _hint_of(self, job: JobSpec) -> SchedulingHint:
        return self._hints.get(job.id, job.hint())

    async def _row(
        self,
        active: ActiveSlice,
        files: SliceFiles,
        work: RowWork,
        row_id: int,
        values: Mapping[str, object],
        cell: str | TextProblem | None,
    ) -> None:
        begun, unfinished = files.spool.begins[row_id], files.spool.unfinished(row_id)
        files.spool.begin(row_id)
        if unfinished >= self.config.row_attempts:
            row = work.give_up(row_id, begun, unfinished)
        else:
            try:
                row = await work.answer(row_id, values, cell, begun + 1, f"{active.lease.lease_id}-{begun}")
            except EngineGone:
                self._is_engine_gone = True  # before the other rows in it are cancelled
                raise
            except asyncio.CancelledError:
                if not self._is_engine_gone:
                    with suppress(StorageError):  # the begin then counts as if the engine had died
                        files.spool.cancel(row_id)
                raise
        files.spool.finish(row)
        active.finished(row)
        if self._row_return.gave:
            self._row_return.gave = False
            self._room.set()
