"""Answer lengths: online quantiles for each task and band of prompt lengths, from the task's own finished rows.

Rows of one job share a template, so the rows done predict the others; the longer the prompt, the longer the answer often is. Counts are
kept in bands of prompt tokens that double, and within a band in buckets of answer tokens that grow by a tenth. So a quantile is right
within a tenth, needs no sorting, and two histograms add up. Old rows fade: where a band holds many, all its counts are halved.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

QUANTILES = (0.5, 0.9)  # whose coverage is kept
GROWTH = 1.1  # from bucket to bucket
EXACT_TOKENS = 10  # up to here a bucket holds one length
MIN_ROWS = 20  # of a band; fewer say nothing about it
FADE_ROWS = 20_000

Counted = tuple[int, int, int]  # band, bucket, rows


def band_of(prompt_tokens: int) -> int:
    """0 for none, n for 2**(n-1) to 2**n - 1 tokens."""
    return max(0, prompt_tokens).bit_length()


def band_tokens(band: int) -> tuple[int, int]:
    """The least and the most prompt tokens of a band."""
    return (1 << band) >> 1, (1 << band) - 1


def bucket_of(output_tokens: int) -> int:
    if output_tokens <= EXACT_TOKENS:
        return max(0, output_tokens)
    return EXACT_TOKENS + math.ceil(math.log(output_tokens / EXACT_TOKENS) / math.log(GROWTH) - 1e-9)


def bucket_tokens(bucket: int) -> int:
    """The most tokens of a bucket."""
    return bucket if bucket <= EXACT_TOKENS else math.floor(EXACT_TOKENS * GROWTH ** (bucket - EXACT_TOKENS) + 1e-6)


def bucket_middle(bucket: int) -> float:
    return (bucket_tokens(bucket - 1) + 1 + bucket_tokens(bucket)) / 2 if bucket else 0.0


def counted(rows: Iterable[tuple[int, int]]) -> tuple[Counted, ...]:
    """A histogram of the (prompt tokens, answer tokens) of rows, for `Lengths.learn`: small, however many rows."""
    counts = Counter((band_of(prompt), bucket_of(output)) for prompt, output in rows)
    return tuple((band, bucket, number) for (band, bucket), number in sorted(counts.items()))


@dataclass(slots=True)
class Band:
    """Counts by bucket. ``saved[i]`` of ``judged`` rows were at most as long as quantile i, as predicted before they were seen."""

    buckets: Counter[int] = field(default_factory=Counter)
    judged: int = 0
    saved: list[int] = field(default_factory=lambda: [0] * len(QUANTILES))

    @property
    def rows(self) -> int:
        return self.buckets.total()

    def quantile(self, share: float) -> int:
        """Tokens that at least ``share`` of the rows do not exceed."""
        wanted, seen = share * self.rows, 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= wanted:
                return bucket_tokens(bucket)
        raise ValueError("a band without rows has no quantile")

    def learn(self, counts: Mapping[int, int]) -> None:
        if self.rows >= MIN_ROWS:
            told = [self.quantile(share) for share in QUANTILES]
            self.judged += sum(counts.values())
            for i, most in enumerate(told):
                self.saved[i] += sum(rows for bucket, rows in counts.items() if bucket_tokens(bucket) <= most)
        self.buckets.update(counts)
        if self.rows > FADE_ROWS:
            self.buckets = Counter({bucket: rows // 2 for bucket, rows in self.buckets.items() if rows > 1})


@dataclass(frozen=True, slots=True)
class BandReport:
    """``coverage``: for each of `QUANTILES` the share of rows that did not exceed the prediction made before them; None before any."""

    prompt_tokens_from: int
    prompt_tokens_to: int
    rows: int
    quantile_tokens: tuple[int, ...]
    coverage: tuple[float, ...] | None


class Lengths:
    """Answer lengths of one task on one model, learnt from finished rows, in bands by length of the prompt."""

    def __init__(self) -> None:
        self.bands: dict[int, Band] = {}
        self._told: tuple[int | None, tuple[float, float] | None] | None = None  # cache until more is learnt: read each second per job

    def learn(self, counts: Iterable[Counted]) -> None:
        """Add finished rows, after judging the earlier predictions by them."""
        by_band: dict[int, dict[int, int]] = {}
        for band, bucket, rows in counts:
            by_band.setdefault(band, {})[bucket] = rows
        for band, buckets in by_band.items():
            self.bands.setdefault(band, Band()).learn(buckets)
        self._told = None

    def quantile(self, prompt_tokens: int, share: float) -> int | None:
        """Answer tokens that ``share`` of rows with such a prompt do not exceed, by the nearest band of `MIN_ROWS`; None without one."""
        known = [band for band, counts in self.bands.items() if counts.rows >= MIN_ROWS]
        if not known:
            return None
        wanted = band_of(prompt_tokens)
        return self.bands[min(known, key=lambda band: (abs(band - wanted), -band))].quantile(share)

    def median(self) -> int | None:
        """Answer tokens that half of the rows do not exceed, over all bands; None of fewer than `MIN_ROWS`."""
        return self._over_all()[0]

    def spread(self) -> tuple[float, float] | None:
        """Mean and standard deviation of the answer tokens of a row, over all bands; None of fewer than `MIN_ROWS`."""
        return self._over_all()[1]

    def _over_all(self) -> tuple[int | None, tuple[float, float] | None]:
        if self._told is None:
            whole = Band(sum((band.buckets for band in self.bands.values()), Counter()))
            self._told = (whole.quantile(0.5), _spread(whole.buckets)) if whole.rows >= MIN_ROWS else (None, None)
        return self._told

    def report(self) -> tuple[BandReport, ...]:
        """Reports of the bands that have rows, by prompt length."""
        return tuple(_report(number, band) for number, band in sorted(self.bands.items()) if band.rows)

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` makes equal counts of."""
        return {str(n): [sorted(band.buckets.items()), band.judged, band.saved] for n, band in sorted(self.bands.items())}

    @classmethod
    def from_json(cls, values: Mapping[str, Sequence[Any]]) -> Lengths:
        lengths = cls()
        for number, (buckets, judged, saved) in values.items():
            lengths.bands[int(number)] = Band(Counter({int(bucket): int(rows) for bucket, rows in buckets}), judged, list(saved))
        return lengths


def _spread(counts: Counter[int]) -> tuple[float, float]:
    rows = counts.total()
    mean = sum(bucket_middle(bucket) * number for bucket, number in counts.items()) / rows
    variance = sum((bucket_middle(bucket) - mean) ** 2 * number for bucket, number in counts.items()) / rows
    return mean, math.sqrt(variance)


def _report(number: int, band: Band) -> BandReport:
    least, most = band_tokens(number)
    coverage = tuple(rows / band.judged for rows in band.saved) if band.judged else None
    return BandReport(least, most, band.rows, tuple(band.quantile(share) for share in QUANTILES), coverage)
