"""The limit of the link between device and host: a plain copy to and from pinned memory. Imports no vLLM."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

LINK_BYTES, LINK_ROUNDS = 256 << 20, 10


def link() -> dict[str, Any]:
    """Bytes a second of a plain copy, both ways; on a CPU within its memory."""
    import torch

    cuda = torch.cuda.is_available()
    host = torch.empty(LINK_BYTES, dtype=torch.uint8, pin_memory=cuda)
    device = torch.zeros(LINK_BYTES, dtype=torch.uint8, device="cuda" if cuda else "cpu")
    host.zero_()

    def rate(target: Any, source: Any) -> float:
        seconds = []
        for _ in range(LINK_ROUNDS):
            began_s = time.perf_counter()
            target.copy_(source, non_blocking=True)
            if cuda:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began_s)
        return LINK_BYTES / median(seconds)

    return {"to_host_bytes_per_s": round(rate(host, device)), "to_device_bytes_per_s": round(rate(device, host))}
