"""Rates and shares over the last seconds, from a replica's counters."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

WINDOW_S = 10.0


class RateWindow:
    """Keeps the counters of the last ``WINDOW_S`` of each replica; one that is gone, silent for as long, or began anew is forgotten."""

    def __init__(self) -> None:
        self._past: dict[str, deque[dict[str, Any]]] = {}

    def take(self, replicas: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Current rates of each replica, by name. ``replicas``: answers of `harvester.serve.deployments.replica.Replica.now`.

        Shares of the window's time: ``harvested_time`` in steps of offline work alone, ``busy_time`` in all steps. Share of its tokens:
        ``harvested_tokens``. All are None at the first look; ``harvested_tokens`` is None too if there were no tokens.
        """
        told = {str(replica["id"]): replica for replica in replicas if "at_s" in replica}
        self._past = {name: past for name, past in self._past.items() if name in told}
        return [self._one(name, told[name]) for name in sorted(told)]

    def _one(self, name: str, now: dict[str, Any]) -> dict[str, Any]:
        past = self._past.setdefault(name, deque())
        if past and not _continues(past[-1], now):
            past.clear()
        past.append(now)
        while len(past) > 2 and past[1]["at_s"] <= now["at_s"] - WINDOW_S:
            past.popleft()
        return {
            "id": name,
            **({"model": now["model"]} if "model" in now else {}),  # a further one
            "at_s": round(now["at_s"], 3),
            "kv_used": now["kv_used"],
            "ended_steps": now["ended_steps"],
            "wrong": now.get("wrong", []),
            "ttft": _ms(now["ttft"], now["ttft_slo_s"]) | {"slowdown": _slowdown(past[0]["ttft_s"], now["ttft_s"])},
            "tpot": _ms(now["tpot"], now["tpot_slo_s"]) | {"slowdown": _slowdown(past[0]["tpot_s"], now["tpot_s"])},
            **_shares(past[0], now),
        }


def _continues(then: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether rates may be taken between two looks at a replica: its counters went on, and both lie within one window."""
    return bool(now["busy_s"] >= then["busy_s"] and 0.0 <= now["at_s"] - then["at_s"] <= WINDOW_S)


def _shares(then: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    seconds = now["at_s"] - then["at_s"]
    made = {work: now[work]["tokens"] - then[work]["tokens"] for work in ("online", "offline")}
    whole = sum(made.values())
    return {
        "harvested_time": _share(now["harvested_s"] - then["harvested_s"], seconds),
        "busy_time": _share(now["busy_s"] - then["busy_s"], seconds),
        "harvested_tokens": _share(made["offline"], whole),
        **{
            work: {
                "running": now[work]["running"],
                "waiting": now[work]["waiting"],
                "tokens_per_s": round(made[work] / seconds, 1) if seconds > 0 else None,
            }
            for work in ("online", "offline")
        },
    }


def _share(part: float, whole: float) -> float | None:
    """A share, at most 1: a step counts at its end, and may have begun before the window."""
    return round(min(1.0, max(0.0, part / whole)), 4) if whole > 0 else None


def _slowdown(then: Sequence[float], now: Sequence[float]) -> float | None:
    """Slowdown of chat by jobs. ``then`` and ``now``: (seconds taken, seconds without jobs). None if chat took no time."""
    had_s, alone_s = (after - before for before, after in zip(then, now, strict=True))
    return round(had_s / alone_s, 2) if alone_s > 0.0 else None


def _ms(latency: dict[str, float] | None, slo_s: float | None) -> dict[str, float | None]:
    known = latency or {}
    kept = {name: round(known[name] * 1000, 2) if name in known else None for name in ("p50", "p99")}
    return {"count": known.get("count", 0), **kept, "slo": None if slo_s is None else round(slo_s * 1000, 2)}
