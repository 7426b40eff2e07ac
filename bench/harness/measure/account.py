"""What a system completed in parts of a stretch, measured three ways: tokens, rows and work a second.

Tokens a second alone say little in a short time: they reward prompts, and punish a stretch that begins while every slot is decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.harness.measure.prices import Prices
from bench.harness.measure.stretch import Stretch

Part = tuple[float, float]  # begin and end, in seconds from the start of a load
THREE = ("total_tokens_per_s", "rows_per_s", "work_per_s")


def account(rounds: Sequence[Stretch], parts: Sequence[Part], prices: Prices) -> dict[str, Any]:
    """Rates over all rounds within ``parts``, whose ends are moved to the nearest samples of the counters.

    ``rows_per_s``: offline requests that ended. ``work_per_s``: see `bench.harness.measure.prices`; recomputed tokens do not count.
    ``busy_share``: share of the time that the engine spent in steps. All are None if no part holds two samples.
    """
    found = [_within(stretch, part, prices) for stretch in rounds for part in parts]
    seconds, online, both, rows, work_s, busy_s = (sum(values) for values in zip((0.0,) * 6, *found, strict=True))
    if not seconds:
        return dict.fromkeys(("seconds", "online_tokens_per_s", "offline_tokens_per_s", *THREE, "busy_share"))
    return {
        "seconds": round(seconds, 2),
        "online_tokens_per_s": round(online / seconds, 1),
        "offline_tokens_per_s": round(max(0, both - online) / seconds, 1) if rounds[0].offline else 0.0,
        "total_tokens_per_s": round(both / seconds, 1),
        "rows_per_s": round(rows / seconds, 4),
        "work_per_s": round(work_s / seconds, 4),
        "busy_share": round(busy_s / seconds, 4),
    }


def _within(stretch: Stretch, part: Part, prices: Prices) -> tuple[float, ...]:
    """Seconds, online tokens, all tokens, rows, seconds of work, seconds in steps."""
    begin, end = _samples(stretch, part)
    if begin >= end:
        return (0.0,) * 6
    first, last = stretch.samples[begin].at_s, stretch.samples[end].at_s
    steps = [step for step in stretch.steps if first <= step.at_s < last]
    rows = sum(first <= at_s < last for at_s in stretch.rows_s)
    return last - first, *stretch.tokens(begin, end), rows, sum(map(prices.step_s, steps)), sum(step.seconds for step in steps)


def _samples(stretch: Stretch, part: Part) -> tuple[int, int]:
    """Indices of the samples nearest to the ends of a part."""
    last = len(stretch.samples) - 1
    begin, end = (min(last, max(0, round(at_s / stretch.seconds * last))) for at_s in part)
    return begin, end


def settled(parts: Sequence[Part], settle_s: float) -> list[Part]:
    """Each of ``parts`` without its first ``settle_s``; shorter parts are left out."""
    return [(begin_s + settle_s, end_s) for begin_s, end_s in parts if begin_s + settle_s < end_s]


def accounts(rounds: Sequence[Stretch], chat: Sequence[Part], settle_s: float, prices: Prices) -> dict[str, Any]:
    """What a co-serving scenario adds to the summary of a system. ``chat``: the parts of the load in which chat comes."""
    whole = account(rounds, [(0.0, rounds[0].seconds)], prices)
    return {
        **{name: whole[name] for name in (*THREE[1:], "busy_share")},
        "settled": {"from_s": settle_s, **account(rounds, settled(chat, settle_s), prices)},
    }
