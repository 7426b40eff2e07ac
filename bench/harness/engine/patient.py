"""Stock vLLM on a CPU that waits as harvester does: engine core and worker sleep between two polls of their queue.

A peer for ratios that should show scheduling or the cost of a request's path, not which process spins on which core.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.worker.cpu_worker import CPUWorker

from harvester.engine.vllm.platform import sleep_between_looks


class PatientScheduler(Scheduler):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        sleep_between_looks()


class PatientWorker(CPUWorker):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        sleep_between_looks()
        super().__init__(*args, **kwargs)


CLASSES = {"scheduler_cls": "bench.harness.engine.patient.PatientScheduler", "worker_cls": "bench.harness.engine.patient.PatientWorker"}
