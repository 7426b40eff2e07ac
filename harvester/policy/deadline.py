"""Jobs that would miss their deadline: how much more they get, in two stages, and what is said of it.

First more of the idle time than other jobs: the job's weight is raised, as far as the limit goes. Where that is used up, or no other job
has work, a minimum share of the engine is guaranteed to it, up to the cap. Both rise by what is lacking and fall slowly, so that a raised
job that is now in time does not lose at once what made it so.
"""

from __future__ import annotations

from dataclasses import dataclass

CALM = 0.8  # of the time left: a job expected to need less than that is let down again
FALL = 0.7  # each time
FIRST_SHARE = 0.02
MAX_STEP = 4.0  # a raise at once


@dataclass(frozen=True, slots=True)
class DeadlineLimits:
    """See `harvester.config.DeadlineConfig`."""

    most_boost: float
    share_cap: float


@dataclass(frozen=True, slots=True)
class Urgency:
    """``boost``: times the job's weight; ``share``: of the engine, guaranteed."""

    boost: float = 1.0
    share: float = 0.0

    @property
    def raised(self) -> bool:
        return self.boost > 1.0 or self.share > 0.0


@dataclass(frozen=True, slots=True)
class DeadlineView:
    """A job before a decision. ``high_s``: the slow end of its finish as it is served now, from now; None where nothing is known."""

    now_s: float
    deadline_at_s: float
    high_s: float | None
    urgency: Urgency
    others: bool  # have work too: a higher weight takes it from them


def decide(view: DeadlineView, limits: DeadlineLimits) -> Urgency:
    """The urgency from now on. It never falls while the job is expected to be late, and is within the limits."""
    left_s = view.deadline_at_s - view.now_s
    if view.high_s is None or left_s <= 0:
        return view.urgency
    pressure = view.high_s / left_s
    if pressure > 1.0:
        return _raised(view, limits, min(pressure, MAX_STEP))
    return _lowered(view.urgency) if pressure < CALM else view.urgency


def _raised(view: DeadlineView, limits: DeadlineLimits, pressure: float) -> Urgency:
    now = view.urgency
    boost = min(max(now.boost, now.boost * pressure), limits.most_boost) if view.others else now.boost
    if view.others and now.boost < limits.most_boost:
        return Urgency(boost, now.share)
    share = max(FIRST_SHARE, now.share) * pressure
    return Urgency(boost, min(share, limits.share_cap))


def _lowered(now: Urgency) -> Urgency:
    """The share first: it is what may cost chat something."""
    if now.share > 0.0:
        return Urgency(now.boost, now.share * FALL if now.share * FALL >= FIRST_SHARE else 0.0)
    return Urgency(max(1.0, now.boost * FALL))


def explain(view: DeadlineView, urgency: Urgency) -> str | None:
    """One sentence for the user; None for a job that needs nothing."""
    if view.high_s is None:
        return None
    late_s = view.now_s + view.high_s - view.deadline_at_s
    if not urgency.raised and late_s <= 0:
        return None
    state = f"may end {_time(late_s)} after its deadline" if late_s > 0 else "is expected to end in time"
    means = [f"{urgency.boost:.3g} times its weight"] * (urgency.boost > 1.0)
    means += [f"{urgency.share:.0%} of the engine guaranteed"] * (urgency.share > 0.0)
    return f"{state}; raised: {', '.join(means)}" if means else f"{state}; not raised: deadlines.most_boost and share_cap allow nothing"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
