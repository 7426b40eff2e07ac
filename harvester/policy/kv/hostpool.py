"""The pool of host blocks (slots) for checkpoints: which KV block is in which slot, who owns it, and which is evicted when memory runs out.

For each owner (a request) the pool holds its first KV blocks, never one behind a gap: a checkpoint is read from its beginning. Requests
with a common prefix share its blocks. A slot that is being written or read is not reused, even when its last owner has gone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class _Slot(Generic[K]):
    number: int
    key: K
    ready: bool = False  # written
    readers: int = 0
    owners: dict[str, None] = field(default_factory=dict)
    gone: bool = False  # no longer found by its key; freed when nobody writes or reads it

    @property
    def busy(self) -> bool:
        return not self.ready or self.readers > 0


class HostPool(Generic[K]):
    """``slots`` slots of one KV block each, named by keys. Not thread-safe; calls are O(keys given), but for `room` and eviction."""

    def __init__(self, slots: int) -> None:
        self._all = slots
        self.withheld = 0  # of the free slots, those that there is no memory for at present
        self.evicted = 0  # total blocks evicted for lack of memory
        self._free = list(range(slots - 1, -1, -1))  # the lowest first: memory is taken as far as the highest used
        self._found: dict[K, _Slot[K]] = {}
        self._slots: dict[int, _Slot[K]] = {}  # all that are not free
        self._owned: OrderedDict[str, dict[K, None]] = OrderedDict()  # least recently used first

    @property
    def capacity(self) -> int:
        """Slots that may be used."""
        return self._all - self.withheld

    @property
    def used(self) -> int:
        """Slots that hold a block, or will."""
        return len(self._slots)

    @property
    def owners(self) -> int:
        return len(self._owned)

    def held(self, owner: str) -> int:
        """Number of the owner's blocks that are held, from its first, written or not."""
        return len(self._owned.get(owner, ()))

    def state(self, key: K) -> bool | None:
        """Whether the block is written; None where it is not here."""
        slot = self._found.get(key)
        return None if slot is None else slot.ready

    def room(self, protected: Iterable[str], most: int) -> int:
        """Slots that are free, or would be if all but the ``protected`` owners gave theirs up, up to ``most``.

        O(owners + ``most`` + blocks being copied).
        """
        found = len(self._free) - self.withheld
        if found >= most:
            return most
        kept, seen = set(protected), set[K]()
        for own in (own for owner, own in self._owned.items() if owner not in kept):
            for key in reversed(own):
                slot = self._found[key]
                if found >= most or key in seen or not kept.isdisjoint(slot.owners):
                    break  # what is before a shared block is shared too
                if not slot.busy:
                    seen.add(key)
                    found += 1
            if found >= most:
                break
        return min(found, most)

    def touch(self, owner: str) -> None:
        """Mark the owner as the most recently used."""
        if owner in self._owned:
            self._owned.move_to_end(owner)

    def store(self, owner: str, keys: Sequence[K], protected: Iterable[str] = ()) -> dict[K, int] | None:
        """Hold the owner's next blocks. Returns the slots to write, without those of blocks that are here already; None: memory is short.

        It evicts no blocks of the owner itself or of ``protected`` owners, and none of ``keys``.
        """
        new = [key for key in dict.fromkeys(keys) if key not in self._found]
        if len(new) > len(self._free) - self.withheld:
            self._evict(len(new) - len(self._free) + self.withheld, {owner, *protected}, set(keys))
            if len(new) > len(self._free) - self.withheld:
                return None
        own = self._owned.setdefault(owner, {})
        self._owned.move_to_end(owner)
        for key in new:
            number = self._free.pop()
            self._found[key] = self._slots[number] = _Slot(number, key)
        for key in keys:
            self._found[key].owners[owner] = None
            own[key] = None
        return {key: self._found[key].number for key in new}

    def stored(self, slots: Iterable[int], ok: bool = True) -> None:
        """These slots are written; where not ``ok``, what is in them must not be read."""
        for number in slots:
            slot = self._slots[number]
            slot.ready = True
            if not ok and not slot.gone:
                self._drop(slot)
            self._settle(slot)

    def load(self, owner: str, keys: Iterable[K]) -> list[int]:
        """The slots to read, which are pinned until `loaded`. All must be written."""
        self.touch(owner)
        slots = [self._found[key] for key in keys]
        for slot in slots:
            assert slot.ready, f"host block {slot.number} is read before it is written"
            slot.readers += 1
        return [slot.number for slot in slots]

    def loaded(self, slots: Iterable[int], ok: bool = True) -> None:
        """These slots were read; where not ``ok``, what is in them must not be read again."""
        for number in slots:
            slot = self._slots[number]
            slot.readers -= 1
            if not ok and not slot.gone:
                self._drop(slot)
            self._settle(slot)

    def forget(self, owner: str, key: K) -> None:
        """Drop the owner's claim to this block and to all of its blocks behind it."""
        if key in self._owned.get(owner, ()):
            self._truncate(owner, key)

    def release(self, owner: str) -> None:
        """The owner ended. Blocks that nobody else owns are free at once, or once they are written and read."""
        for key in reversed(list(self._owned.pop(owner, ()))):
            slot = self._found[key]
            del slot.owners[owner]
            self._orphan(slot)

    def clear(self) -> None:
        """Forget everything, copies in flight too: `stored` and `loaded` must not be called for those."""
        withheld = self.withheld
        self.__init__(self._all)  # type: ignore[misc]
        self.withheld = withheld

    def _evict(self, count: int, protected: set[str], keep: set[K]) -> None:
        """Evict up to ``count`` slots: of the least recently used owners, from the last block of each."""
        goal = len(self._free) + count
        for owner in [owner for owner in self._owned if owner not in protected]:
            own = self._owned[owner]
            while own and len(self._free) < goal:
                key = next(reversed(own))  # its last block: what is before it stays of use
                slot = self._found[key]
                if key in keep or slot.busy:
                    break
                self._truncate(owner, key)
                self.evicted += slot.gone
            if len(self._free) >= goal:
                return

    def _drop(self, slot: _Slot[K]) -> None:
        """Remove the block from all of its owners, so that nobody finds it any more."""
        for owner in list(slot.owners):
            self._truncate(owner, slot.key)

    def _truncate(self, owner: str, key: K) -> None:
        own = self._owned[owner]
        place = list(own).index(key) if next(reversed(own)) != key else len(own) - 1
        for gone in list(own)[place:] if place < len(own) - 1 else [key]:
            del own[gone]
            slot = self._found[gone]
            del slot.owners[owner]
            self._orphan(slot)
        if not own:
            del self._owned[owner]

    def _orphan(self, slot: _Slot[K]) -> None:
        if not slot.owners and not slot.gone:
            slot.gone = True
            del self._found[slot.key]
        self._settle(slot)

    def _settle(self, slot: _Slot[K]) -> None:
        if slot.gone and not slot.busy and slot.number in self._slots:
            del self._slots[slot.number]
            self._free.append(slot.number)

    def check(self) -> None:
        """Raise AssertionError where a slot is lost, in two places, or held for nobody."""
        assert sorted([*self._free, *self._slots]) == list(range(self._all))
        assert 0 <= self.withheld <= len(self._free)
        assert all(slot.number == number for number, slot in self._slots.items())
        assert {slot.number for slot in self._found.values()} == {n for n, slot in self._slots.items() if not slot.gone}
        assert all(slot.key == key and slot.owners and not slot.gone for key, slot in self._found.items())
        assert all(slot.busy for slot in self._slots.values() if slot.gone)
        assert all(owner in self._found[key].owners for owner, own in self._owned.items() for key in own)
        assert all(key in self._owned[owner] for key, slot in self._found.items() for owner in slot.owners)
        assert all(slot.readers >= 0 for slot in self._slots.values())
