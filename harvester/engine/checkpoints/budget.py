"""Host memory for checkpoints: how much, and vLLM's arguments for it."""

from __future__ import annotations

import logging
from typing import Any

from harvester.engine.checkpoints.worker.room import GIB, Room, memory_room
from harvester.errors import ConfigError
from harvester.model_config import CheckpointConfig

log = logging.getLogger(__name__)

SHARE = 0.25  # default budget of all replicas together, as a share of the host memory that is free at start
MAX_SHARE = 0.9  # the largest share that a configured budget may take
MIN_BYTES = 256 << 20  # least default budget of a replica: the KV of 2,000 tokens of an 8B model


def transfer_config(checkpoint: CheckpointConfig, replicas: int, room: Room | None = None) -> dict[str, Any] | None:
    """`kv_transfer_config` of one replica; None: too little memory for checkpoints, which is logged.

    ``room``: the memory that may be taken; None: measured on this machine. Raises `ConfigError` for a configured budget that does not fit.
    """
    room = memory_room() if room is None else room
    budget_bytes = host_bytes(checkpoint.host_gib, replicas, room.free_bytes, room.bound)
    if budget_bytes is None:
        log.warning(
            "KV checkpoints are off: a share of %d%% for replicas=%d is under %d MiB (%s); give more memory or checkpoint.host_gib",
            SHARE * 100,
            replicas,
            MIN_BYTES >> 20,
            room,
        )
        return None
    log.info("KV checkpoints take up to %.2f GiB of host memory a replica, as they need it (%s)", budget_bytes / GIB, room)
    return {
        "kv_connector": "CheckpointConnector",
        "kv_connector_module_path": "harvester.engine.vllm.connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "cpu_bytes_to_use": budget_bytes,
            "partial_blocks": checkpoint.partial_blocks,
            "verify": checkpoint.verify,
        },
    }


def host_bytes(host_gib: float | None, replicas: int, free_bytes: int, bound: str = "memory of the machine") -> int | None:
    """Bytes for one replica, with ``free_bytes`` for all; None if ``host_gib`` is None and the default share is below `MIN_BYTES`."""
    if host_gib is None:
        share = int(SHARE * free_bytes / replicas)
        return share if share >= MIN_BYTES else None
    asked = int(host_gib * GIB)
    if asked * replicas > MAX_SHARE * free_bytes:
        raise ConfigError(
            f"checkpoint.host_gib={host_gib:g} for replicas={replicas} is more than {MAX_SHARE:.0%} of the {free_bytes / GIB:.1f} GiB "
            f"that are free ({bound}); give at most {MAX_SHARE * free_bytes / GIB / replicas:.1f}"
        )
    return asked
