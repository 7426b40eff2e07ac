"""How much is simulated: all of it, or the short form."""

from __future__ import annotations

from dataclasses import dataclass

from bench.papers.loads import Dataset


@dataclass(frozen=True, slots=True)
class Scale:
    """``share``: of the seconds for which requests come. ``curves``: whether whole curves are drawn, not only where they cross a bound."""

    seeds: tuple[int, ...] = (1, 2)
    share: float = 1.0
    curves: bool = True

    def dataset(self, dataset: Dataset) -> Dataset:
        return dataset.for_seconds(self.share * dataset.seconds)

    def rates(self, shares: tuple[float, ...]) -> tuple[float, ...]:
        """All of ``shares``, or every other one."""
        return shares if self.curves else shares[1::2]

    def seconds(self, seconds: float) -> float:
        return self.share * seconds


FULL, QUICK = Scale(), Scale((1,), 1 / 3, False)
