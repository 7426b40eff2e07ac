"""The waiting online requests, with the sums that planning needs: reading them costs the same whether ten wait or 20,000."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from itertools import chain
from typing import NamedTuple, Protocol

MIN_STALE = 64  # heap entries of requests that wait no longer; fewer are not worth a rebuild


class Waiting(NamedTuple):
    """A waiting online request. It holds no KV: it is new, or was preempted."""

    name: str
    tokens: int  # prompt and answer so far, all of which it computes before its next token
    blocks: int  # KV blocks it needs to be admitted
    due_s: float  # when its first token is due, or was


class WaitingView(Protocol):
    """The waiting online requests as a plan reads them. Everything but iteration is O(1)."""

    @property
    def tokens(self) -> int:
        """Sum over all of them."""

    @property
    def blocks(self) -> int:
        """KV blocks that they need together."""

    @property
    def due_s(self) -> float:
        """When the earliest of their first tokens is due; inf where none is promised."""

    @property
    def unpromised(self) -> bool:
        """Whether one of them has no TTFT SLO."""

    @property
    def names(self) -> Container[str]:
        """A live set of their names, for repeated membership tests."""

    def get(self, name: str) -> Waiting | None: ...

    def __contains__(self, name: object) -> bool: ...

    def __iter__(self) -> Iterator[Waiting]: ...

    def __len__(self) -> int: ...


class WaitingOnline:
    """A `WaitingView` kept by an adapter: `add` and `remove` cost O(log n), spread over the calls."""

    def __init__(self, waiting: Iterable[Waiting] = ()) -> None:
        self.tokens = self.blocks = 0
        self._held: dict[str, Waiting] = {}
        self._due: list[tuple[float, str]] = []  # a heap; entries of those that are gone are skipped when they come to its top
        self._unpromised = 0
        for one in waiting:
            self.add(one)

    def add(self, one: Waiting) -> None:
        """Add a request that waits. One of the same name is replaced."""
        self.remove(one.name)
        self._held[one.name] = one
        self.tokens += one.tokens
        self.blocks += one.blocks
        if one.due_s == math.inf:
            self._unpromised += 1
        else:
            heappush(self._due, (one.due_s, one.name))

    def remove(self, name: str) -> None:
        """Remove a request that waits no longer. Unknown names are ignored."""
        one = self._held.pop(name, None)
        if one is None:
            return
        self.tokens -= one.tokens
        self.blocks -= one.blocks
        self._unpromised -= one.due_s == math.inf
        if len(self._due) > 2 * len(self._held) + MIN_STALE:
            self._due = [(kept.due_s, kept.name) for kept in self._held.values() if kept.due_s < math.inf]
            heapify(self._due)

    @property
    def due_s(self) -> float:
        while self._due:
            due_s, name = self._due[0]
            one = self._held.get(name)
            if one is not None and one.due_s == due_s:
                return due_s
            heappop(self._due)
        return math.inf

    @property
    def unpromised(self) -> bool:
        return self._unpromised > 0

    @property
    def names(self) -> Container[str]:
        return self._held.keys()

    def get(self, name: str) -> Waiting | None:
        return self._held.get(name)

    def __contains__(self, name: object) -> bool:
        return name in self._held

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._held.values())

    def __len__(self) -> int:
        return len(self._held)

    def check(self) -> None:
        """Raise AssertionError where a sum is not that of those held."""
        held = list(self._held.values())
        assert (self.tokens, self.blocks) == (sum(one.tokens for one in held), sum(one.blocks for one in held))
        assert self.due_s == min((one.due_s for one in held), default=math.inf)
        assert self.unpromised == any(one.due_s == math.inf for one in held)


class WithOtherBlocks:
    """A `WaitingView` in which requests need other numbers of KV blocks than counted, by name: running requests may share theirs."""

    def __init__(self, waiting: WaitingView, blocks: Mapping[str, int]) -> None:
        self._waiting, self._blocks = waiting, blocks
        self.tokens, self.due_s, self.unpromised, self.names = waiting.tokens, waiting.due_s, waiting.unpromised, waiting.names
        counted = sum([one.blocks for name in blocks if (one := waiting.get(name)) is not None])
        self.blocks = waiting.blocks - counted + sum(blocks.values())

    def get(self, name: str) -> Waiting | None:
        one = self._waiting.get(name)
        return one if one is None else one._replace(blocks=self._blocks.get(name, one.blocks))

    def __contains__(self, name: object) -> bool:
        return name in self._waiting

    def __iter__(self) -> Iterator[Waiting]:
        return (one._replace(blocks=self._blocks.get(one.name, one.blocks)) for one in self._waiting)

    def __len__(self) -> int:
        return len(self._waiting)


class WithMore:
    """A `WaitingView` plus the requests that lose their KV in the step being planned."""

    def __init__(self, waiting: WaitingView, more: Iterable[Waiting]) -> None:
        self._waiting, self._more = waiting, WaitingOnline(more)
        self.tokens = waiting.tokens + self._more.tokens
        self.blocks = waiting.blocks + self._more.blocks
        self.due_s = min(waiting.due_s, self._more.due_s)
        self.unpromised = waiting.unpromised or self._more.unpromised

    @property
    def names(self) -> Container[str]:
        return self

    def get(self, name: str) -> Waiting | None:
        return self._waiting.get(name) or self._more.get(name)

    def __contains__(self, name: object) -> bool:
        return name in self._waiting or name in self._more

    def __iter__(self) -> Iterator[Waiting]:
        return chain(self._waiting, self._more)

    def __len__(self) -> int:
        return len(self._waiting) + len(self._more)
