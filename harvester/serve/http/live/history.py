"""History of chat and jobs over 5 minutes, an hour and a day. Sampled every few seconds, kept in two ring files in the state folder."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, Literal, Self

from harvester.serve.http.live.ring import Ring

LOOK_S = 5
Span = Literal["5m", "1h", "1d"]
_SPANS: dict[str, tuple[str, int]] = {"5m": ("looks", 60), "1h": ("minutes", 60), "1d": ("minutes", 1440)}  # ring, steps
_NAN = math.nan


@dataclass(slots=True)
class Point:
    """One time step. The first seven fields are sums over it. The rest: quantiles of the minute before its last look with chat.

    With the SLO of those chats: all of one replica, the one whose P99 is worst for its SLO. NaN: unknown. ``had_s``: total time that chats
    took; ``alone_s``: what they would have taken without jobs, as the engine estimates.
    """

    seconds: float = 0.0
    chat_tokens: float = 0.0
    job_tokens: float = 0.0
    ttft_had_s: float = 0.0
    ttft_alone_s: float = 0.0
    tpot_had_s: float = 0.0
    tpot_alone_s: float = 0.0
    ttft_p50_ms: float = _NAN
    ttft_p99_ms: float = _NAN
    ttft_slo_ms: float = _NAN
    tpot_p50_ms: float = _NAN
    tpot_p99_ms: float = _NAN
    tpot_slo_ms: float = _NAN

    def add(self, look: Point) -> None:
        for field in fields(Point)[:SUMS]:
            setattr(self, field.name, getattr(self, field.name) + getattr(look, field.name))
        for kind in KINDS:
            has_chat = not math.isnan(getattr(look, f"{kind}_p99_ms"))
            for name in SHOWN if has_chat or math.isnan(getattr(self, f"{kind}_p99_ms")) else ():
                shown = getattr(look, f"{kind}_{name}_ms")
                if has_chat or not math.isnan(shown):  # replicas that do not answer tell no SLO
                    setattr(self, f"{kind}_{name}_ms", shown)

    @classmethod
    def of(cls, values: Sequence[float] | None) -> Self | None:
        return None if values is None else cls(*values)

    def rate(self, tokens: float) -> float | None:
        return round(tokens / self.seconds, 1) if self.seconds > 0 else None

    def slowdown(self, kind: str) -> float | None:
        """Ratio of the time that chat took to its time without jobs. None without chat."""
        had_s, alone_s = getattr(self, f"{kind}_had_s"), getattr(self, f"{kind}_alone_s")
        return had_s / alone_s if alone_s > 0 else None

    def is_kept(self, kind: str, max_slowdown: float) -> bool | None:
        """Whether the P99 meets the SLO; without an SLO, whether the slowdown is at most ``max_slowdown``. None without chat."""
        slo_ms, p99_ms, slowdown = getattr(self, f"{kind}_slo_ms"), getattr(self, f"{kind}_p99_ms"), self.slowdown(kind)
        if not math.isnan(slo_ms):
            return None if math.isnan(p99_ms) else bool(p99_ms <= slo_ms)
        return None if slowdown is None else slowdown <= max_slowdown


SUMS = 7
KINDS, SHOWN = ("ttft", "tpot"), ("p50", "p99", "slo")
WIDTH = len(fields(Point))


class History:
    """Used from one event loop. Nothing else uses ``folder``; its files never grow above 210 kB."""

    def __init__(self, folder: Path, max_slowdown: float) -> None:
        self._rings = {"looks": Ring(folder / "looks", LOOK_S, 72, WIDTH), "minutes": Ring(folder / "minutes", 60, 1500, WIDTH)}
        self._max_slowdown = max_slowdown
        self._before: dict[str, dict[str, Any]] = {}

    def close(self) -> None:
        for ring in self._rings.values():
            ring.close()

    def take(self, told: Iterable[dict[str, Any]], now_s: float) -> None:
        """Add a look at all replicas: the answers of `Replica.now`. The first look at a replica is the baseline of its counters."""
        now = {str(replica["id"]): replica for replica in told if "at_s" in replica}
        look = _look(self._before, now)
        self._before = now
        for ring in self._rings.values():
            number = int(now_s // ring.step_s)
            point = Point.of(ring.read(number)) or Point()
            point.add(look)
            ring.write(number, astuple(point))

    def answer_for(self, span: Span, now_s: float) -> dict[str, Any]:
        """Series of ``span`` as columns, oldest first, None if unknown; and in how many minutes the latency promise was kept."""
        name, steps = _SPANS[span]
        ring = self._rings[name]
        until = int(now_s // ring.step_s)
        points = [Point.of(values) for values in ring.last(until, steps)]
        return {
            "step_s": ring.step_s,
            "at_s": [(until - steps + 1 + place) * ring.step_s for place in range(steps)],
            **{kind: self._latency(kind, points) for kind in ("ttft", "tpot")},
            "chat_tokens_per_s": [point and point.rate(point.chat_tokens) for point in points],
            "job_tokens_per_s": [point and point.rate(point.job_tokens) for point in points],
            "max_slowdown": self._max_slowdown,
            "kept": {"1h": self._kept(60, now_s), "24h": self._kept(1440, now_s)},
        }

    def _latency(self, kind: str, points: Sequence[Point | None]) -> dict[str, list[float | None]]:
        """In ms. ``alone``: estimated P99 of the same chats without jobs; ``slo``: if none is set, ``alone`` times the maximum slowdown."""
        columns: dict[str, list[float | None]] = {"p50": [], "p99": [], "alone": [], "slo": []}
        for point in points:
            p50, p99, slo = (_known(point, f"{kind}_{name}_ms") for name in ("p50", "p99", "slo"))
            slowdown = point and point.slowdown(kind)
            alone = p99 / slowdown if p99 is not None and slowdown else None
            promised = slo if slo is not None or alone is None else alone * self._max_slowdown
            for name, value in (("p50", p50), ("p99", p99), ("alone", alone), ("slo", promised)):
                columns[name].append(None if value is None else round(value, 2))
        return columns

    def _kept(self, minutes: int, now_s: float) -> dict[str, int]:
        """How many minutes had chat, and how many of them broke neither the promise for TTFT nor that for TPOT."""
        ring = self._rings["minutes"]
        points = [point for point in map(Point.of, ring.last(int(now_s // 60), minutes)) if point is not None]
        verdicts = [[point.is_kept(kind, self._max_slowdown) for kind in ("ttft", "tpot")] for point in points]
        with_chat = [verdict for verdict in verdicts if verdict != [None, None]]
        return {"minutes": len(with_chat), "kept": sum(False not in verdict for verdict in with_chat)}


def _known(point: Point | None, name: str) -> float | None:
    value = math.nan if point is None else float(getattr(point, name))
    return None if math.isnan(value) else value


def _look(before: dict[str, dict[str, Any]], now: dict[str, dict[str, Any]]) -> Point:
    """Change from ``before`` to ``now``: counters summed over replicas, latencies of the worst replica."""
    look = Point()
    chatting = []
    for name, replica in now.items():
        then = before.get(name)
        if then is not None and then["at_s"] < replica["at_s"] and then["busy_s"] <= replica["busy_s"]:
            look.seconds = max(look.seconds, replica["at_s"] - then["at_s"])
            made = replica["online"]["tokens"] - then["online"]["tokens"]
            look.chat_tokens += made
            look.job_tokens += replica["offline"]["tokens"] - then["offline"]["tokens"]
            for kind in KINDS:
                had_s, alone_s = (new - old for new, old in zip(replica[f"{kind}_s"], then[f"{kind}_s"], strict=True))
                setattr(look, f"{kind}_had_s", getattr(look, f"{kind}_had_s") + had_s)
                setattr(look, f"{kind}_alone_s", getattr(look, f"{kind}_alone_s") + alone_s)
            if made:  # else the latencies are of chats that ended before
                chatting.append(replica)
    for kind in KINDS:
        for name, value_s in _worst(kind, chatting, now.values()).items():
            setattr(look, f"{kind}_{name}_ms", math.nan if value_s is None else value_s * 1000)
    return look


def _worst(kind: str, chatting: Iterable[dict[str, Any]], all_now: Iterable[dict[str, Any]]) -> dict[str, float | None]:
    """`SHOWN` of the replica whose P99 is worst for its own SLO, in seconds; where none has chat, the tightest SLO alone."""
    told = [(one[kind], one[f"{kind}_slo_s"]) for one in chatting if one[kind]]
    if not told:
        return {"slo": min((slo_s for one in all_now if (slo_s := one[f"{kind}_slo_s"]) is not None), default=None)}
    latency, slo_s = max(told, key=lambda one: (one[0]["p99"] / one[1] if one[1] else 0.0, one[0]["p99"]))
    return {"p50": latency["p50"], "p99": latency["p99"], "slo": slo_s}
