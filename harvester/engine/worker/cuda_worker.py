"""vLLM's GPU worker, with steps that may end early."""

from __future__ import annotations

from vllm.v1.worker.gpu_worker import Worker

from harvester.engine.worker.preemptible import PreemptibleWorker


class HarvestCudaWorker(PreemptibleWorker, Worker):  # type: ignore[misc]
    """Imported by name in the worker process (``worker_cls``)."""
