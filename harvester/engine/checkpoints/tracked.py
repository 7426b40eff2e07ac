"""The requests whose KV may be on the host, and the copy jobs in flight for them, as the engine core sees both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol


class Request(Protocol):
    """What the planner reads of vLLM's request."""

    @property
    def request_id(self) -> str: ...
    @property
    def priority(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_computed_tokens(self) -> int: ...
    @property
    def num_in_flight_tokens(self) -> int: ...
    @property
    def num_preemptions(self) -> int: ...
    @property
    def block_hashes(self) -> Sequence[bytes]: ...
    @property
    def skip_reading_prefix_cache(self) -> bool: ...
    def is_finished(self) -> bool: ...


class KvBlock(Protocol):
    """What the planner reads of a KV block. ``block_hash`` is None until the block is full and in the prefix cache."""

    @property
    def block_id(self) -> int: ...
    @property
    def is_null(self) -> bool: ...
    @property
    def block_hash(self) -> object | None: ...


@dataclass(slots=True)
class Tracked:
    """``keys``: hashes of its full blocks; ``blocks``: its KV blocks in the last step; ``jobs``: one load, or any number of stores."""

    request: Request
    keys: list[bytes] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    jobs: set[int] = field(default_factory=set)
    admitted_tokens: int = 0  # tokens that it was given KV of when it was last admitted
    local_tokens: int = 0  # found in the prefix cache when it was last looked up
    partial_tokens: int | None = None  # where the load found by that look-up ends, if inside a block
    finished: bool = False  # the step after its end was planned

    @property
    def written_tokens(self) -> int:
        """Tokens whose KV is written: none until the step that admitted the request is answered.

        vLLM shares a prefix as soon as another request is due to compute it, in that very step or one in flight. Such a step may end early.
        """
        answered = self.request.num_computed_tokens - self.request.num_in_flight_tokens
        return answered if answered > self.admitted_tokens else 0

    def take_blocks(self, blocks: Iterable[int], anew: bool) -> None:
        """The request has these KV blocks from the planned step on, in addition to those it had, or ``anew`` in place of them."""
        if anew:
            self.blocks.clear()
        if not self.blocks:
            self.admitted_tokens = self.request.num_computed_tokens
        self.blocks.extend(blocks)

    def update_keys(self, hashes_per_block: int) -> None:
        self.keys.extend(self.request.block_hashes[hashes_per_block * (len(self.keys) + 1) - 1 :: hashes_per_block])


@dataclass(slots=True)
class InFlight:
    """A copy job. ``pending``: ranks yet to report it; ``sources``: KV blocks a store reads; ``keys``: of the host blocks a load reads."""

    request_id: str
    store: bool
    pending: int
    slots: list[int]
    sources: list[int]
    keys: frozenset[bytes]
    failed: bool = False


class Jobs:
    """The copy jobs that not all ``ranks`` have reported, by number. Numbers are never used twice."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._next = self._first_valid = 0
        self._jobs: dict[int, InFlight] = {}
        self._fences: dict[int, set[int]] = {}  # KV block that its request has given back -> stores that still read it

    def __len__(self) -> int:
        return len(self._jobs)

    def __getitem__(self, number: int) -> InFlight:
        return self._jobs[number]

    def numbers(self) -> set[int]:
        return set(self._jobs)

    def store(self, request_id: str, slots: list[int], sources: list[int]) -> int:
        """The number of a new job that copies the KV blocks ``sources`` to these host slots."""
        return self._add(InFlight(request_id, True, self._ranks, slots, sources, frozenset()))

    def load(self, request_id: str, slots: list[int], keys: Iterable[bytes]) -> int:
        """The number of a new job that reads these host slots, which hold the blocks ``keys``."""
        return self._add(InFlight(request_id, False, self._ranks, slots, [], frozenset(keys)))

    def _add(self, job: InFlight) -> int:
        number, self._next = self._next, self._next + 1
        self._jobs[number] = job
        return number

    def report(self, number: int, ranks: int, failed: bool) -> InFlight | None:
        """``ranks`` more ranks have ended the job. Returns it once all have; None before, and for a job from before `forget_all`."""
        if number < self._first_valid:
            return None
        job = self._jobs[number]
        job.failed |= failed
        job.pending -= ranks
        assert job.pending >= 0, f"copy job {number} was reported by more than {self._ranks} ranks"
        if job.pending:
            return None
        del self._jobs[number]
        for block in job.sources:
            self._unfence(block, number)
        return job

    def fence(self, number: int) -> None:
        """The request gives its KV blocks back: whoever gets one of them must wait for the store."""
        for block in self._jobs[number].sources:
            self._fences.setdefault(block, set()).add(number)

    def reading(self, blocks: Iterable[int]) -> set[int]:
        """Stores that read one of these blocks for a request that has ended."""
        return {number for block in blocks for number in self._fences.get(block, ())} if self._fences else set()

    def forget_all(self) -> None:
        """Drop all jobs. Later reports of them are ignored."""
        self._first_valid = self._next
        self._jobs.clear()
        self._fences.clear()

    def _unfence(self, block: int, number: int) -> None:
        numbers = self._fences.get(block)
        if numbers is not None:
            numbers.discard(number)
            if not numbers:
                del self._fences[block]
