"""The verdict on each part that was verified."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from harvester.engine.verify.answers import Pressed
from harvester.engine.verify.signals import Signals
from harvester.engine.verify.ties import MAX_TIE, Compared
from harvester.engine.verify.times import Times

MIN_ENDED = 0.9  # least share of the steps that were asked to end
FEW_SIGNALS = 5  # fewer give no verdict
RATIO_P50, MAX_RATIO_P99 = (0.75, 1.33), 8.0  # actual over predicted step time; the latency model's margin ends at 8
SUM_OVER_WALL = (0.5, 1.1)  # gaps between steps do not count; a step counted twice does


class Aspect(StrEnum):
    TOKENS = "tokens"
    SIGNALS = "signals"
    TIMES = "times"
    KV = "kv"


@dataclass(frozen=True, slots=True)
class Verdict:
    """``ok`` None: undecided here. ``said``: one line with the figures, or with the reason for ``ok``.

    ``shorter_than_s``: it is undecided because steps take less than this. That is so at each start, and no reason to look again.
    """

    part: Aspect
    ok: bool | None
    said: str
    shorter_than_s: float | None = None

    def as_json(self) -> dict[str, Any]:
        short = {} if self.shorter_than_s is None else {"shorter_than_s": self.shorter_than_s}
        return {"part": self.part.value, "ok": self.ok, "said": self.said, **short}


def tokens_verdict(turns: Sequence[Compared], tie: float, pressed: Pressed) -> Verdict:
    different, tied = sum(one.different for one in turns), sum(one.tied for one in turns)
    answers, tokens, compared = (sum(getattr(one, name) for one in turns) for name in ("answers", "tokens", "compared"))
    done = f"{pressed.ended_steps} steps ended early, {pressed.preempted} requests lost their KV"
    said = (
        f"{answers - different} of {answers} answers as stock vLLM's ({compared / max(1, tokens):.0%} of the tokens, {tied} ties); {done}"
    )
    if different:
        return Verdict(Aspect.TOKENS, False, said)
    if tie > MAX_TIE:
        return Verdict(
            Aspect.TOKENS, None, f"stock vLLM's own log-probabilities move by {tie / 2:.2f} here: its answers cannot be compared"
        )
    if not pressed.ended_steps or not pressed.preempted:
        return Verdict(Aspect.TOKENS, None, f"{said}: not enough was done to it")
    return Verdict(Aspect.TOKENS, all(one.identical for one in turns), said)


def signals_verdict(found: Signals, min_s: float = 0.0) -> Verdict:
    """``min_s``: shorter steps got no signal."""
    if found.asked < FEW_SIGNALS:
        are_short = found.short >= FEW_SIGNALS
        why = f"most take less than {1e3 * min_s:.0f} ms" if are_short else "they are too short"
        return Verdict(Aspect.SIGNALS, None, f"only {found.asked} steps could be asked to end: {why}", min_s if are_short else None)
    times = detect_ms(found)
    after = f", after {times['p50']:.1f} ms (p50), {times['p99']:.1f} ms (p99)" if times["p50"] is not None else ""
    return Verdict(Aspect.SIGNALS, found.ended >= MIN_ENDED * found.asked, f"{found.ended} of {found.asked} steps asked to end did{after}")


def times_verdict(found: Times) -> Verdict:
    p50, p99, whole = found.ratio_p50, found.ratio_p99, found.sum_over_wall
    sums = f"all steps together {whole:.0%} of the wall"
    if not SUM_OVER_WALL[0] <= whole <= SUM_OVER_WALL[1]:
        return Verdict(Aspect.TIMES, False, sums)
    if p50 is None or p99 is None:
        return Verdict(Aspect.TIMES, None, f"{sums}; too few steps to tell how well they are predicted")
    ok = RATIO_P50[0] <= p50 <= RATIO_P50[1] and p99 <= MAX_RATIO_P99
    return Verdict(Aspect.TIMES, ok, f"actual over predicted step time p50 {p50:.2f}, p99 {p99:.2f}; {sums}")


def kv_verdict(ranks: Sequence[bool], pressed: Pressed | None = None) -> Verdict:
    failed = pressed.failed_copies if pressed is not None else 0
    said = f"blocks came back from host memory whole on {sum(ranks)} of {len(ranks)} ranks"
    if pressed is not None and pressed.stored_blocks:
        said += f"; of {pressed.stored_blocks} blocks saved and {pressed.loaded_blocks} read back {failed} copies failed"
    return Verdict(Aspect.KV, bool(ranks) and all(ranks) and not failed, said)


def detect_ms(found: Signals) -> dict[str, float | None]:
    """P50, p90 and p99 (nearest rank) in ms; None where no step ended."""
    ordered = sorted(found.detect_s)

    def rank(share: float) -> float | None:
        return round(1e3 * ordered[math.ceil(share * len(ordered)) - 1], 3) if ordered else None

    return {"p50": rank(0.5), "p90": rank(0.9), "p99": rank(0.99)}
