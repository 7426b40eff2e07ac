"""Host memory for checkpoints: how much, and vLLM's arguments for it."""

from __future__ import annotations

from typing import Any

import psutil

from harvester.config import CheckpointConfig
from harvester.errors import ConfigError

SHARE = 0.25  # of the memory that is free at start, for all replicas together
MOST_SHARE = 0.9  # of it, what a configured budget may be
GIB = 1 << 30


def transfer_config(checkpoint: CheckpointConfig, replicas: int, free_bytes: int | None = None) -> dict[str, Any]:
    """`kv_transfer_config` of one replica. Raises `ConfigError` for a budget that the machine does not have."""
    return {
        "kv_connector": "CheckpointConnector",
        "kv_connector_module_path": "harvester.engine.checkpoints.connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "spec_name": "CheckpointSpec",
            "spec_module_path": "harvester.engine.checkpoints.spec",
            "cpu_bytes_to_use": host_bytes(checkpoint.host_gib, replicas, free_bytes),
            "offload_prompt_only": False,
            "partial_blocks": checkpoint.partial_blocks,
            "verify": checkpoint.verify,
        },
    }


def host_bytes(host_gib: float | None, replicas: int, free_bytes: int | None = None) -> int:
    """The budget of one replica. ``free_bytes``: of the machine; None: looked up."""
    free = psutil.virtual_memory().available if free_bytes is None else free_bytes
    if host_gib is None:
        return int(SHARE * free / replicas)
    asked = int(host_gib * GIB)
    if asked * replicas > MOST_SHARE * free:
        raise ConfigError(
            f"checkpoint.host_gib={host_gib:g} for replicas={replicas} is more than {MOST_SHARE:.0%} of the {free / GIB:.1f} GiB of memory "
            f"that are free; give at most {MOST_SHARE * free / GIB / replicas:.1f}"
        )
    return asked
