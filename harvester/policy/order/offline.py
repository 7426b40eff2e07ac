"""The order of offline work: which waiting row is admitted next.

An order holds every offline row that the engine has, and is told when one waits, is admitted and ends.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from itertools import chain, takewhile
from typing import Any, NamedTuple, Protocol

from harvester.policy.order.fair import FairOrder
from harvester.policy.step.view import Guarantee

PREFIX_TOKENS = 64  # rows that share the first so many tokens of their prompts stay together, and hit a warm prefix cache


class OfflineRow(NamedTuple):
    """One offline request that waits.

    ``begun``: it ran before and lost its KV. ``weight``: of its job among jobs. ``slice_id``: rows of a slice stay together. ``prefix``:
    the first tokens of its prompt. ``final_blocks``: KV blocks when it has made its last allowed token. ``tokens``: known so far, prompt
    and answer, for which it needs ``blocks``. ``max_tokens``: of its answer. ``expected_tokens``: median length of such answers
    elsewhere; None: unknown. ``adapter``: number of its LoRA adapter; 0: none.
    """

    name: str
    job: str = ""
    begun: bool = False
    weight: float = 1.0
    guarantee: Guarantee | None = None
    priority: int = 0
    slice_id: int = 0
    prefix: tuple[int, ...] = ()
    arrival_s: float = 0.0
    final_blocks: int = 1
    tokens: int = 1
    blocks: int = 1
    prompt_tokens: int = 1
    max_tokens: int = 1
    expected_tokens: int | None = None
    adapter: int = 0

    @property
    def emitted(self) -> int:
        """Tokens of its answer that it has made."""
        return self.tokens - self.prompt_tokens


class Late(NamedTuple):
    """A job near its deadline. ``share``: of slots and KV, guaranteed to it; ``held``: rows that have been admitted and have not ended."""

    job: str
    share: float
    held: int


class OfflineOrder(Protocol):
    """The order in which offline rows are admitted. Names are unique. Calls are O(log rows), except `rows`, which is lazy."""

    def add(self, row: OfflineRow) -> None:
        """The row waits. The newest row of a job decides its weight and guarantee; one that waits again decides nothing."""

    def take(self, name: str) -> None:
        """The row waits no longer: it was admitted, or it has ended. Ignored where it does not wait."""

    def end(self, name: str) -> None:
        """The row has ended, waiting or not. Unknown names are ignored."""

    def charge(self, job: str, tokens: float) -> None:
        """The job was served ``tokens``. Ignored where it has no rows any more."""

    @property
    def known(self) -> Mapping[str, OfflineRow]:
        """The rows that have not ended, by name, each as it was when it waited last."""

    def rows(self, passed: Container[str] = ()) -> Iterator[OfflineRow]:
        """The waiting rows, in the order of admission, without those of the jobs ``passed``, to which more may come while they are read."""

    def guarantee(self) -> Guarantee | None:
        """The largest guarantee of a job with rows; None where no job has one."""

    def late(self) -> list[Late]:
        """The jobs with a guarantee and waiting rows; first the one that holds the fewest slots for its share."""

    def __len__(self) -> int:
        """How many wait."""


class _Rows:
    """The rows that have not ended, by job, and the guarantees of jobs."""

    def __init__(self) -> None:
        self._known: dict[str, OfflineRow] = {}
        self._counts: Counter[str] = Counter()
        self._guarantees: dict[str, Guarantee] = {}  # as the newest row of the job says
        self._waiting: dict[str, OfflineRow] = {}
        self._waits = Counter[str]()  # waiting rows by job

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def known(self) -> Mapping[str, OfflineRow]:
        return self._known

    def guarantee(self) -> Guarantee | None:
        return max(self._guarantees.values(), key=lambda given: given.share, default=None) if self._guarantees else None

    def late(self) -> list[Late]:
        if not self._guarantees:
            return []
        found = [
            Late(job, given.share, self._counts[job] - self._waits[job]) for job, given in self._guarantees.items() if self._waits[job]
        ]
        return sorted(found, key=lambda one: one.held / one.share)

    def _enter(self, row: OfflineRow) -> None:
        assert row.name not in self._waiting, f"{row.name} waits already"
        if row.guarantee is not None and self._tells(row):
            self._guarantees[row.job] = row.guarantee
        elif self._tells(row):
            self._guarantees.pop(row.job, None)
        if row.name not in self._known:
            self._counts[row.job] += 1
        self._known[row.name] = row
        self._waiting[row.name] = row
        self._waits[row.job] += 1

    def _unwait(self, name: str) -> OfflineRow | None:
        """The row waits no longer; None where it did not."""
        row = self._waiting.pop(name, None)
        if row is not None:
            self._waits[row.job] -= 1
        return row

    def _tells(self, row: OfflineRow) -> bool:
        """Whether the row says what its job is given now. One that lost its KV says what that was when it was sent."""
        return not row.begun or row.job not in self._counts

    def _leave(self, name: str) -> str | None:
        """Forget a row that has ended. Returns its job if that has no other row."""
        row = self._known.pop(name, None)
        if row is None:
            return None
        job = row.job
        self._counts[job] -= 1
        if self._counts[job]:
            return None
        del self._counts[job], self._waits[job]
        self._guarantees.pop(job, None)
        return job

    def check(self) -> None:
        """Raise AssertionError where a row waits that has ended, or a job is counted wrong."""
        assert set(self._waiting) <= set(self._known)
        assert self._counts == Counter(row.job for row in self._known.values())
        assert +self._waits == Counter(row.job for row in self._waiting.values())
        assert set(self._guarantees) | set(self._waits) <= set(self._counts)


class Fair(_Rows):
    """Jobs by tokens served over weight. Within a job: rows that lost their KV first, then slice by slice, and by prefix in a slice.

    Rows without a job are requests of many clients, and come in order of arrival.
    """

    def __init__(self) -> None:
        super().__init__()
        self._fair = FairOrder()
        self._queues: dict[str, list[OfflineRow]] = {}

    def add(self, row: OfflineRow) -> None:
        if self._tells(row):
            self._fair.join(row.job, row.weight)
        self._enter(row)
        insort(self._queues.setdefault(row.job, []), row, key=_place)

    def take(self, name: str) -> None:
        row = self._unwait(name)
        if row is None:
            return
        rows = self._queues[row.job]
        _remove(rows, row, _place)
        if not rows:
            del self._queues[row.job]

    def end(self, name: str) -> None:
        self.take(name)
        job = self._leave(name)
        if job is not None:
            self._fair.leave(job)

    def charge(self, job: str, tokens: float) -> None:
        if job in self._fair:
            self._fair.charge(job, tokens)

    def rows(self, passed: Container[str] = ()) -> Iterator[OfflineRow]:
        for job in self._fair.order(self._queues):
            yield from takewhile(lambda row: row.job not in passed, self._queues[job])

    def check(self) -> None:
        super().check()
        assert sorted(row.name for row in chain(*self._queues.values())) == sorted(self._waiting)
        assert all(rows and rows == sorted(rows, key=_place) for rows in self._queues.values())


class Fcfs(_Rows):
    """First come, first served, across jobs; rows that lost their KV first."""

    def __init__(self) -> None:
        super().__init__()
        self._queue: list[OfflineRow] = []

    def add(self, row: OfflineRow) -> None:
        self._enter(row)
        insort(self._queue, row, key=self._key)

    def take(self, name: str) -> None:
        row = self._unwait(name)
        if row is not None:
            _remove(self._queue, row, self._key)

    def end(self, name: str) -> None:
        self.take(name)
        self._leave(name)

    def charge(self, job: str, tokens: float) -> None:
        """What was served changes nothing."""

    def rows(self, passed: Container[str] = ()) -> Iterator[OfflineRow]:
        return (row for row in self._queue if row.job not in passed)

    def _key(self, row: OfflineRow) -> tuple[Any, ...]:
        """What rows are sorted by; it does not change while the row waits."""
        return not row.begun, row.arrival_s


def _place(row: OfflineRow) -> tuple[bool, int, int, tuple[int, ...], float]:
    return not row.begun, row.priority, row.slice_id, row.prefix if row.job else (), row.arrival_s


def _remove(rows: list[OfflineRow], row: OfflineRow, key: Callable[[OfflineRow], tuple[Any, ...]]) -> None:
    """Take ``row`` out of ``rows``, which are sorted by ``key``."""
    place = bisect_left(rows, key(row), key=key)
    while rows[place].name != row.name:
        place += 1
    del rows[place]
