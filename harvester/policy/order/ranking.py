"""Names sorted by a key each: the first ones are found without visiting the others."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Mapping
from heapq import merge
from typing import Any, Generic, Protocol, TypeVar

Key = tuple[Any, ...]
MANY = 32  # changed keys, from which on sorting all is faster than moving each


class Ranking:
    """Least key first, equals in the order in which they came. A change costs O(log n) and a move in memory: 10 us among 20,000."""

    def __init__(self) -> None:
        self._places: dict[str, Key] = {}
        self._sorted: list[Key] = []

    def put(self, name: str, key: Key) -> None:
        """Add a name. ``key`` must differ from that of any other name."""
        self._places[name] = place = (*key, name)
        insort(self._sorted, place)

    def drop(self, name: str) -> None:
        """Raises KeyError where it is not held."""
        del self._sorted[bisect_left(self._sorted, self._places.pop(name))]

    def change(self, keys: Mapping[str, Key]) -> None:
        """New keys for names that are held."""
        if len(keys) < MANY:
            for name, key in keys.items():
                self.drop(name)
                self.put(name, key)
            return
        self._places.update({name: (*key, name) for name, key in keys.items()})
        self._sorted = sorted(self._places.values())

    def among(self, names: Collection[str]) -> list[str]:
        """Those of ``names`` that are held, in order."""
        return [place[-1] for place in sorted([self._places[name] for name in names if name in self._places])]

    def order(self) -> Iterator[str]:
        """Names in order. The ranking must not change while they are read."""
        return (place[-1] for place in self._sorted)

    def __iter__(self) -> Iterator[Key]:
        """Keys in order, each followed by its name."""
        return iter(self._sorted)


class Keyed(Protocol):
    """A request that computes its sort key, which must differ from that of any other."""

    def key(self, now_s: float) -> Key: ...


K = TypeVar("K", bound=Keyed)


class MovingRanking(Generic[K]):
    """A ranking for keys that change with every step a request takes part in: those that have begun are sorted anew each time.

    They are about as many as run. The others keep their keys, until `stale` names some of them.
    """

    def __init__(self) -> None:
        self._held: dict[str, K] = {}
        self._fresh = Ranking()
        self._begun: set[str] = set()

    def put(self, name: str, held: K, now_s: float) -> None:
        self._held[name] = held
        self._fresh.put(name, held.key(now_s))

    def drop(self, name: str) -> None:
        """Raises KeyError where it is not held."""
        del self._held[name]
        if name in self._begun:
            self._begun.remove(name)
        else:
            self._fresh.drop(name)

    def begun(self, names: Iterable[str]) -> Iterator[K]:
        """Record that these take part in a step. Yields those that are held."""
        for name in names:
            held = self._held.get(name)
            if held is None:
                continue
            if name not in self._begun:
                self._fresh.drop(name)
                self._begun.add(name)
            yield held

    def stale(self, names: Iterable[str], now_s: float) -> dict[str, K]:
        """Compute the keys of these anew. Returns those that are held and have not begun."""
        fresh = {name: self._held[name] for name in names if name in self._held and name not in self._begun}
        self._fresh.change({name: held.key(now_s) for name, held in fresh.items()})
        return fresh

    def order(self, now_s: float) -> Iterator[str]:
        """Names in order. The ranking must not change while they are read."""
        return (place[-1] for place in merge(self._fresh, self._places(self._begun, now_s)))

    def among(self, names: Iterable[str], now_s: float) -> list[str]:
        """Those of ``names`` that are held, in order."""
        return [place[-1] for place in self._places([name for name in names if name in self._held], now_s)]

    def _places(self, names: Iterable[str], now_s: float) -> list[Key]:
        return sorted([(*self._held[name].key(now_s), name) for name in names])
