"""Jobs that would miss their deadline: how much more they get, in two stages, and how that is explained to the user.

First such a job gets more of the idle time than other jobs: its weight is boosted, up to ``max_boost``. Where that is used up, or no other
job has work, a minimum share of the engine is guaranteed to it, up to ``share_cap``. Both rise with the expected delay and fall
slowly, so that a raised job that is now in time does not lose at once what made it so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from jobs.config import DeadlineConfig
from jobs.forecast.stall import is_long
from jobs.hint import SchedulingHint

CALM = 0.8  # of the time left: a job expected to need less than that is lowered again
FALL = 0.7  # factor of each lowering
FIRST_SHARE = 0.02
MAX_STEP = 4.0  # maximum factor of one raise


@dataclass(frozen=True, slots=True)
class DeadlineView:
    """A job before a decision. ``high_s``: slow end of its expected finish as served now, seconds from now; None: not known.

    ``stalled_s``: for how long it has made no progress, though it has rows left.
    """

    now_s: float
    deadline_at_s: float
    high_s: float | None
    hint: SchedulingHint
    others: bool  # other jobs have work too: a higher weight takes tokens from them
    stalled_s: float = 0.0

    @property
    def slow_end_s(self) -> float | None:
        """``high_s``; where it is not known, infinite for a job that has made no progress for long."""
        if self.high_s is None and is_long(self.stalled_s, self.deadline_at_s - self.now_s):
            return math.inf
        return self.high_s


def decide(view: DeadlineView, limits: DeadlineConfig) -> SchedulingHint:
    """The hint from now on. Boost and share never fall while the job is expected to be late, and are within the limits."""
    left_s = view.deadline_at_s - view.now_s
    slow_s = view.slow_end_s
    if slow_s is None or left_s <= 0:
        return view.hint
    pressure = slow_s / left_s
    if pressure > 1.0:
        return _raised(view, limits, min(pressure, MAX_STEP))
    return _lowered(view.hint) if pressure < CALM else view.hint


def _raised(view: DeadlineView, limits: DeadlineConfig, pressure: float) -> SchedulingHint:
    now = view.hint
    boost = min(max(now.boost, now.boost * pressure), limits.max_boost) if view.others else now.boost
    if view.others and now.boost < limits.max_boost:
        return replace(now, boost=boost)
    share = min(max(FIRST_SHARE, now.share) * pressure, limits.share_cap)
    return replace(now, boost=boost, share=share, above_slo=limits.above_slo and share > 0.0)


def _lowered(now: SchedulingHint) -> SchedulingHint:
    """Lower the share before the boost, because it may cost chat something."""
    if now.share > 0.0:
        share = now.share * FALL if now.share * FALL >= FIRST_SHARE else 0.0
        return replace(now, share=share, above_slo=now.above_slo and share > 0.0)
    return replace(now, boost=max(1.0, now.boost * FALL))


def explain(view: DeadlineView, hint: SchedulingHint) -> str | None:
    """One sentence for the user; None for a job that needs nothing."""
    state, is_late = _state(view)
    if not hint.is_raised and not is_late:
        return None
    means = [f"{hint.boost:.3g} times its weight"] * (hint.boost > 1.0)
    means += [f"{hint.share:.0%} of the engine guaranteed"] * (hint.share > 0.0)
    return f"{state}; raised: {', '.join(means)}" if means else f"{state}; not raised: deadlines.max_boost and share_cap allow nothing"


def _state(view: DeadlineView) -> tuple[str, bool]:
    """What is expected of a job, and whether it is late."""
    slow_s = view.slow_end_s
    if slow_s is None:
        return "has no forecast of its end now", False
    if slow_s == math.inf:
        return f"has made no progress for {_time(view.stalled_s)}", True
    late_s = view.now_s + slow_s - view.deadline_at_s
    return (f"may end {_time(late_s)} after its deadline", True) if late_s > 0 else ("is expected to end in time", False)


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
