"""Start replicas that share a GPU one after the other."""

from __future__ import annotations

import asyncio
import fcntl
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


@asynccontextmanager
async def turn_on_gpu(num_gpus: float | None, folder: Path | None = None) -> AsyncIterator[None]:
    """Hold a lock to start an engine on this process's GPU, if replicas share it (0 < ``num_gpus`` < 1). Otherwise nothing is locked.

    While vLLM measures a model's memory, it counts all GPU memory taken meanwhile as its own: of two engines that start at once, one
    would find too little left for KV. The lock ends with the block, or with the process.
    """
    if num_gpus is None or not 0 < num_gpus < 1:
        yield
        return
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    path = (folder or Path(tempfile.gettempdir())) / f"harvester-start-{os.getuid()}-gpu{gpu.replace('/', '-')}"
    with path.open("w") as file:
        await asyncio.to_thread(fcntl.flock, file, fcntl.LOCK_EX)
        yield
