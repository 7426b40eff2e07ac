"""The worker's half of the connector: starts copies, says which ended and how."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingConnectorMetadata, OffloadingWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker

from harvester.engine.checkpoints.worker.transfers import StepCopier


@dataclass
class StepCopies(OffloadingConnectorMetadata):  # type: ignore[misc]
    """From the planner to the workers. ``allowed``: blocks that may be copied beside the next step; None: no bound."""

    allowed: int | None = None


@dataclass
class EndedCopies(OffloadingWorkerMetadata):  # type: ignore[misc]
    """From the workers to the planner. A job has failed where it failed on any rank."""

    failed_jobs: set[int] = field(default_factory=set)

    def aggregate(self, other: Any) -> EndedCopies:
        both = super().aggregate(other)
        return EndedCopies(both.completed_jobs, both.transfer_stats, self.failed_jobs | other.failed_jobs)


class Copies(OffloadingConnectorWorker):  # type: ignore[misc]
    """vLLM's, but copies may fail, and begin in the step that plans them: a store reads blocks that were computed before that step.

    What is read back is read beside the forward pass of that step, so that a request may be back in the next. A thread that copies on
    the CPU stores after the pass; a device begins with the pass.
    """

    worker: StepCopier

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._connector_worker_meta = EndedCopies()

    def handle_preemptions(self, kv_connector_metadata: StepCopies) -> None:
        """Before the forward pass: what is copied from blocks that the step, or a copy beside it, may overwrite goes before them."""
        flush = kv_connector_metadata.jobs_to_flush or ()
        for job_id in flush:
            entry = kv_connector_metadata.store_jobs.pop(job_id, None)
            if entry is not None:
                self._store(job_id, entry)
        if flush:
            self.worker.wait(set(flush))
        self.worker.allow(kv_connector_metadata.allowed)
        self._load(kv_connector_metadata)
        if self.worker.stores_ahead:
            self._store_all(kv_connector_metadata)

    def start_kv_transfers(self, metadata: StepCopies) -> None:
        """After the forward pass."""
        self._load(metadata)
        self._store_all(metadata)
        self.worker.launch()

    def _load(self, metadata: StepCopies) -> None:
        for job_id in list(metadata.load_jobs):
            entry = metadata.load_jobs.pop(job_id)
            self._load_jobs[job_id] = entry.req_id
            self.worker.submit_load(job_id, entry.src_spec, entry.dst_spec)

    def _store_all(self, metadata: StepCopies) -> None:
        for job_id in list(metadata.store_jobs):
            self._store(job_id, metadata.store_jobs.pop(job_id))

    def prepare_store_kv(self, metadata: StepCopies) -> None:
        """Nothing is left to the next step."""

    def _store(self, job_id: int, entry: Any) -> None:
        if self._is_store_writer:
            self.worker.submit_store(job_id, entry.src_spec, entry.dst_spec)
        else:
            self._connector_worker_meta.mark_completed(job_id)

    def results(self) -> KVConnectorTransferResults:
        """What ended since the last call."""
        meta, found = self._connector_worker_meta, KVConnectorTransferResults()
        for result in self.worker.get_finished():
            request = self._load_jobs.pop(result.job_id, None)
            if result.transfer_size is not None and result.transfer_time is not None:
                stats = meta.transfer_stats.store if request is None else meta.transfer_stats.load
                stats.record(result.transfer_size, result.transfer_time)
            meta.mark_completed(result.job_id)
            if not result.success:
                meta.failed_jobs.add(result.job_id)
            if request is not None:
                found.finished_recving.add(request)
                if not result.success:
                    found.failed_recving.add(request)
        return found

    def build_connector_worker_meta(self) -> EndedCopies | None:
        meta = self._connector_worker_meta
        if not meta.completed_jobs:
            return None
        self._connector_worker_meta = EndedCopies()
        return meta
