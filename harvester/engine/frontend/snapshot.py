"""What one engine does at this moment, for the web page: numbers read on request from the shared state and the front end."""

from __future__ import annotations

from typing import Any

from harvester.core import WorkClass
from harvester.engine.frontend.engine import TokenEngine
from harvester.engine.shared.state import Count, SharedState


def snapshot(llm: TokenEngine, shared: SharedState, now_s: float) -> dict[str, Any]:
    """``at_s`` is ``now_s``, of a monotonic clock. Seconds and tokens count from the engine's start, latencies are of the last minute.

    ``ttft_s`` and ``tpot_s``: sums over all chat, as they were and as predicted without jobs.

    ``running``: requests of the last step, but no more than are open now: those whose client hung up are not counted.
    """
    in_flight = llm.in_flight()
    places = {
        WorkClass.ONLINE: (Count.ONLINE_RUNNING, Count.ONLINE_TOKENS),
        WorkClass.OFFLINE: (Count.OFFLINE_RUNNING, Count.OFFLINE_TOKENS),
    }
    work = {}
    for kind, (running, tokens) in places.items():
        count = min(int(shared.count(running)), in_flight[kind])
        work[kind.value] = {"running": count, "waiting": in_flight[kind] - count, "tokens": int(shared.count(tokens))}
    return {
        "at_s": now_s,
        "busy_s": shared.count(Count.BUSY_S),
        "harvested_s": shared.count(Count.HARVESTED_S),
        "kv_used": shared.count(Count.KV_USED) if any(in_flight.values()) else 0.0,
        "ended_steps": int(shared.count(Count.ENDED_STEPS)),
        **work,
        "ttft_s": (shared.count(Count.TTFT_S), shared.count(Count.TTFT_ALONE_S)),
        "tpot_s": (shared.count(Count.GAP_S), shared.count(Count.GAP_ALONE_S)),
        **llm.latencies(now_s),
    }
