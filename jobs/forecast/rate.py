"""How fast a job moves: rows and tokens over the last minute of its work, and in spans over the last quarter of an hour."""

from __future__ import annotations

from collections import deque

from jobs.forecast.finish import Span

WINDOW_S = 60.0
SPAN_S = 10.0
SPANS = 90


class Rate:
    """Cumulative rows and tokens sampled over time: at each commit, and about once a second by each replica at work on the job."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int, int]] = deque()
        self._spans: deque[Span] = deque(maxlen=SPANS)
        self._span_from: tuple[float, int] | None = None
        self._outages = 0

    def add(self, now_s: float, rows: int, tokens: int, *, outages: int = 0) -> None:
        """Record the totals reached by ``now_s``. A new window starts where a total went back (a lease was lost), or after an outage.

        ``outages``: how many there were so far. The time of one says nothing of the rate; spans that ended before it stay.
        """
        went_back = bool(self._samples) and (rows < self._samples[-1][1] or tokens < self._samples[-1][2])
        if went_back or outages != self._outages:
            self._samples.clear()
            self._span_from = None
        self._outages = outages
        self._samples.append((now_s, rows, tokens))
        while len(self._samples) > 2 and now_s - self._samples[0][0] > WINDOW_S:
            self._samples.popleft()
        if self._span_from is None:
            self._span_from = (now_s, tokens)
        elif now_s - self._span_from[0] >= SPAN_S:
            self._spans.append(Span(now_s - self._span_from[0], tokens - self._span_from[1]))
            self._span_from = (now_s, tokens)

    def shift(self, by_s: float) -> None:
        """The clock was set by ``by_s`` seconds."""
        self._samples = deque((at_s + by_s, rows, tokens) for at_s, rows, tokens in self._samples)
        if self._span_from is not None:
            self._span_from = (self._span_from[0] + by_s, self._span_from[1])

    def clear(self) -> None:
        self._samples.clear()
        self._spans.clear()
        self._span_from = None

    @property
    def spans(self) -> list[Span]:
        """The spans that have ended; where there are none, the current one."""
        if self._spans or not self._samples or self._span_from is None:
            return list(self._spans)
        last, (from_s, from_tokens) = self._samples[-1], self._span_from
        return [Span(last[0] - from_s, last[2] - from_tokens)] if last[0] > from_s else []

    @property
    def settled(self) -> bool:
        """Whether it has been seen long enough to act on."""
        return len(self._spans) >= 2

    @property
    def tokens_per_s(self) -> float | None:
        """Over the window; None before any."""
        if len(self._samples) < 2:
            return None
        first, last = self._samples[0], self._samples[-1]
        elapsed_s, tokens = last[0] - first[0], last[2] - first[2]
        return tokens / elapsed_s if elapsed_s > 0 and tokens > 0 else None
