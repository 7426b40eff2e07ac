"""What a replica says of itself."""

from __future__ import annotations

from typing import Any


def replica(at_s: float = 0.0, name: str = "a", **fields: Any) -> dict[str, Any]:
    """What a replica says of itself that has done nothing yet."""
    idle = {"running": 0, "waiting": 0, "tokens": 0}
    quiet = {
        "busy_s": 0.0,
        "harvested_s": 0.0,
        "kv_used": 0.0,
        "ended_steps": 0,
        "online": idle,
        "offline": idle,
        "ttft": None,
        "tpot": None,
        "ttft_s": (0.0, 0.0),
        "tpot_s": (0.0, 0.0),
    }
    return {"id": name, "at_s": at_s, **quiet, "ttft_slo_s": 0.5, "tpot_slo_s": 0.1} | fields
