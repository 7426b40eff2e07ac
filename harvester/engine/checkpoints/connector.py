"""The KV connector that vLLM loads by name: its offloading connector with our planner and our copies."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.kv_offload.factory import OffloadingSpecFactory
from vllm.v1.outputs import KVConnectorOutput

from harvester.engine.checkpoints.planner import Planner
from harvester.engine.checkpoints.worker.copies import Copies, EndedCopies


class CheckpointConnector(OffloadingConnector):  # type: ignore[misc]
    """Imported by name in the engine core and in the workers (``kv_connector``)."""

    connector_scheduler: Planner | None
    connector_worker: Copies | None

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        spec = OffloadingSpecFactory.create_spec(build_offloading_config(vllm_config, kv_cache_config))
        if role == KVConnectorRole.SCHEDULER:
            self.connector_scheduler = Planner(spec, vllm_config, kv_cache_config)
        elif role == KVConnectorRole.WORKER:
            self.connector_worker = Copies(spec, vllm_config, kv_cache_config)
        self._told = KVConnectorTransferResults()
        self._told_meta: EndedCopies | None = None

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        assert self.connector_worker is not None
        self._told = self.connector_worker.results()
        return self._told

    def build_connector_worker_meta(self) -> EndedCopies | None:
        if self.connector_worker is None:
            return None
        self._told_meta = self.connector_worker.build_connector_worker_meta()
        return self._told_meta

    def told(self) -> KVConnectorOutput:
        """What the step that ends now has told Model Runner V1, which forgets it where the step ends early. Told once."""
        told, self._told = self._told, KVConnectorTransferResults()
        meta, self._told_meta = self._told_meta, None
        return KVConnectorOutput(finished_recving=told.finished_recving, failed_recving=told.failed_recving, kv_connector_worker_meta=meta)
