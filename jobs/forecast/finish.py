"""Expected finish of a job, with its spread: from the rate at which idle time was harvested, and the tokens left."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Z = 1.28  # standard deviations to each side: four of five jobs end within the spread
ALIKE_SPANS = 3.0  # chat comes in waves, so neighbouring spans are correlated: as many count as one
UNKNOWN_SHARE = 0.5  # standard deviation of a rate that was seen in one span only, as a share of it
MIN_SHARE = 0.2  # of the mean rate: lower bound of the slow end


@dataclass(frozen=True, slots=True)
class Span:
    """What was served in a span of time, in tokens."""

    seconds: float
    tokens: float


@dataclass(frozen=True, slots=True)
class Left:
    """Tokens that are left to do, with their standard deviation."""

    tokens: float
    sd_tokens: float = 0.0


@dataclass(frozen=True, slots=True)
class Finish:
    """Seconds from now. Four of five jobs end between ``low_s`` and ``high_s``."""

    seconds: float
    low_s: float
    high_s: float


def finish(left: Left, spans: Sequence[Span]) -> Finish | None:
    """Expected finish from recent spans of work, in order; None where nothing was served in them.

    The expected rate is the mean of the spans. Its variance comes from how the spans differ, in two terms: one for the number of spans
    seen, one for the number to come, which is the lower the nearer the end is.
    """
    seconds, tokens = sum(span.seconds for span in spans), sum(span.tokens for span in spans)
    if seconds <= 0 or tokens <= 0:
        return None
    mean = tokens / seconds
    expected_s = left.tokens / mean
    to_come = max(1.0, expected_s / (seconds / len(spans)) / ALIKE_SPANS)
    seen = max(1.0, len(spans) / ALIKE_SPANS)
    sd = _sd(spans, mean) * math.sqrt(1 / seen + 1 / to_come)
    fast, slow = mean + Z * sd, max(mean - Z * sd, MIN_SHARE * mean)
    more = Z * left.sd_tokens
    return Finish(expected_s, max(0.0, left.tokens - more) / fast, (left.tokens + more) / slow)


def _sd(spans: Sequence[Span], mean: float) -> float:
    """Standard deviation of the spans' rates, weighted by their lengths."""
    if len(spans) < 2:
        return UNKNOWN_SHARE * mean
    seconds = sum(span.seconds for span in spans)
    return math.sqrt(sum(span.seconds * (span.tokens / span.seconds - mean) ** 2 for span in spans if span.seconds > 0) / seconds)
