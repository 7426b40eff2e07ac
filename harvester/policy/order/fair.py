"""The fair order of jobs, by tokens served.

Each job has a virtual token counter: the job served least for its weight is next (Sheng et al., "Fairness in Serving Large Language
Models", OSDI 2024). All jobs make progress, whenever they came, and an idle job saves up no credit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class _Account:
    weight: float
    served: float  # tokens over weight


class FairOrder:
    """Virtual counters of the jobs that have work. Not thread-safe. Calls for a job that did not join raise KeyError."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}
        self._floor = 0.0  # lowest counter when a job last left: where a job starts if no other is here

    def __contains__(self, job: str) -> bool:
        return job in self._accounts

    def join(self, job: str, weight: float = 1.0) -> None:
        """A job has work (again). It starts level with the least served of the others: it neither waits for them nor they for it."""
        if weight <= 0.0:
            raise ValueError(f"weight={weight} of job {job} must be positive")
        if job in self._accounts:
            self._accounts[job].weight = weight
            return
        self._accounts[job] = _Account(weight, self._least())

    def leave(self, job: str) -> None:
        """The job has no work any more."""
        self._floor = self._least()
        del self._accounts[job]

    def charge(self, job: str, tokens: float) -> None:
        """The job was served ``tokens`` (prompt tokens computed and output tokens; not those from a cache)."""
        account = self._accounts[job]
        account.served += tokens / account.weight

    def served(self, job: str) -> float:
        """Its virtual counter: tokens over weight, from where it joined."""
        return self._accounts[job].served

    def order(self, jobs: Iterable[str]) -> list[str]:
        """``jobs`` as they are served: least served for its weight first, the first given among equals."""
        return sorted(jobs, key=self.served)

    def _least(self) -> float:
        return min((account.served for account in self._accounts.values()), default=self._floor)
