"""The worker's half of the connector: starts copies, says which ended and how."""

from __future__ import annotations

from dataclasses import dataclass, field

from harvester.engine.checkpoints.jobs import CopyJob, CopyReport, StepOrders
from harvester.engine.checkpoints.worker.transfers import Job, StepCopier


@dataclass(slots=True)
class Received:
    """Requests whose KV is back; those ``failed`` among them begin anew."""

    requests: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)


class CopyWorker:
    """Copies of one worker. They begin in the step that plans them: a store reads blocks that were computed before that step.

    Loads run beside the forward pass of that step, so that a request may run again in the next. A thread that copies on the CPU stores
    after the pass; a device begins with the pass.
    """

    def __init__(self, copier: StepCopier) -> None:
        self.copier = copier
        self._loads: dict[int, str] = {}  # request of each load in flight
        self._report = CopyReport()

    def before_forward(self, orders: StepOrders) -> None:
        """Start copies, first from blocks that the step, or a copy beside it, may overwrite. Removes from ``orders`` what it starts."""
        for number in sorted(orders.flush):
            job = orders.stores.pop(number, None)
            if job is not None:
                self._submit(number, job, store=True)
        if orders.flush:
            self.copier.wait(orders.flush)
        self.copier.allow(orders.allowed)
        self._submit_all(orders.loads, store=False)
        if self.copier.stores_ahead:
            self._submit_all(orders.stores, store=True)

    def after_forward(self, orders: StepOrders) -> None:
        self._submit_all(orders.loads, store=False)
        self._submit_all(orders.stores, store=True)
        self.copier.launch()

    def _submit_all(self, jobs: dict[int, CopyJob], *, store: bool) -> None:
        while jobs:
            number = next(iter(jobs))
            self._submit(number, jobs.pop(number), store=store)

    def _submit(self, number: int, job: CopyJob, *, store: bool) -> None:
        if not store:
            self._loads[number] = job.request_id
        self.copier.submit(Job(number, store, job.blocks))

    def received(self) -> Received:
        """Requests whose loads ended since the last call. Takes note of all copies that ended, for `report`."""
        found = Received()
        for job in self.copier.get_finished():
            self._report.ended[job.number] = 1
            (self._report.stored if job.store else self._report.loaded).add(job.size_bytes, job.seconds)
            if not job.ok:
                self._report.failed.add(job.number)
            if not job.store:
                request = self._loads.pop(job.number)
                found.requests.add(request)
                if not job.ok:
                    found.failed.add(request)
        return found

    def report(self) -> CopyReport | None:
        """What ended since the last call; None where nothing did."""
        if not self._report.ended:
            return None
        report, self._report = self._report, CopyReport()
        return report

    def shutdown(self) -> None:
        self._loads.clear()
        self.copier.shutdown()
