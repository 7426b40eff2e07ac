"""The host blocks of the checkpoints: what is shared, given up, and never given away while it is copied."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from harvester.policy.kv.hostpool import HostPool


def full(pool: HostPool[str], owner: str, *keys: str) -> None:
    slots = pool.store(owner, keys)
    assert slots is not None
    pool.stored(slots.values())


def test_blocks_of_a_finished_request_are_free_at_once() -> None:
    pool: HostPool[str] = HostPool(4)
    full(pool, "a", "1", "2")
    pool.release("a")
    assert pool.used == 0
    assert pool.state("1") is None


def test_a_prefix_that_two_requests_share_is_held_once_and_stays_until_both_have_ended() -> None:
    pool: HostPool[str] = HostPool(4)
    full(pool, "a", "1", "2")
    assert list(pool.store("b", ["1", "3"]) or ()) == ["3"]
    pool.release("a")
    assert pool.state("1") is True
    assert pool.state("2") is None
    pool.release("b")
    assert pool.state("1") is None


def test_the_least_recently_used_checkpoint_loses_its_last_blocks_first() -> None:
    pool: HostPool[str] = HostPool(4)
    full(pool, "a", "a1", "a2")
    full(pool, "b", "b1", "b2")
    pool.touch("a")
    full(pool, "c", "c1")
    assert (pool.held("a"), pool.held("b"), pool.held("c")) == (2, 1, 1)
    assert pool.state("b1") is True
    assert pool.state("b2") is None
    assert pool.evicted == 1


def test_a_block_that_is_read_is_not_given_up() -> None:
    pool: HostPool[str] = HostPool(2)
    full(pool, "a", "a1", "a2")
    slots = pool.load("a", ["a1", "a2"])
    assert pool.store("b", ["b1"]) is None
    pool.loaded(slots)
    assert pool.store("b", ["b1"]) is not None


def test_a_slot_that_is_written_is_not_free_before_the_copy_ends_even_when_its_request_has_ended() -> None:
    pool: HostPool[str] = HostPool(1)
    slots = pool.store("a", ["a1"])
    pool.release("a")
    assert pool.store("b", ["b1"]) is None
    assert slots is not None
    pool.stored(slots.values())
    assert pool.store("b", ["b1"]) is not None


def test_the_end_of_an_old_copy_says_nothing_of_a_new_one_of_the_same_block() -> None:
    pool: HostPool[str] = HostPool(2)
    old = pool.store("a", ["x"])
    pool.release("a")
    new = pool.store("b", ["x"])
    assert old is not None
    assert new is not None
    pool.stored(old.values())
    assert pool.state("x") is False
    pool.stored(new.values())
    assert pool.state("x") is True


def test_a_failed_copy_takes_what_lies_behind_it_along_in_every_checkpoint_that_has_it() -> None:
    pool: HostPool[str] = HostPool(6)
    full(pool, "a", "1")
    slots = pool.store("a", ["2"])
    full(pool, "a", "3")
    pool.store("b", ["1", "2"])
    assert slots is not None
    pool.stored(slots.values(), ok=False)
    assert (pool.held("a"), pool.held("b")) == (1, 1)
    assert pool.state("2") is None
    assert pool.state("3") is None
    assert pool.used == 1


def test_ten_thousand_requests_leave_nothing_behind() -> None:
    pool: HostPool[tuple[int, int]] = HostPool(64)
    for number in range(10_000):
        slots = pool.store(str(number), [(number, block) for block in range(number % 9)]) or {}
        if number % 3:
            pool.stored(slots.values(), ok=number % 7 != 0)
            pool.release(str(number))
        else:
            pool.release(str(number))
            pool.stored(slots.values())
    pool.check()
    assert (pool.used, pool.owners) == (0, 0)


def test_slots_that_there_is_no_memory_for_are_not_used_and_others_are_given_up_instead() -> None:
    pool: HostPool[str] = HostPool(6)
    full(pool, "a", "a1", "a2")
    pool.withheld = 4
    assert (pool.capacity, pool.room([], 9)) == (2, 2)
    assert pool.store("b", ["b1", "b2", "b3"]) is None
    slots = pool.store("b", ["b1"])
    assert slots is not None
    assert max(slots.values()) < 2
    pool.clear()
    assert pool.capacity == 2


class Counted(dict[str, Any]):
    """Counts how often something is looked up."""

    looks = 0

    def __getitem__(self, key: str) -> Any:
        self.looks += 1
        return super().__getitem__(key)


def test_no_more_blocks_are_looked_at_than_there_is_room_asked_for() -> None:
    pool: HostPool[str] = HostPool(2000)
    full(pool, "kept", *[f"p{number}" for number in range(900)])
    for owner in "abcde":
        full(pool, owner, *[f"p{number}" for number in range(900)], *[f"{owner}{number}" for number in range(200)])
    pool._found = found = Counted(pool._found)
    assert [pool.room(["kept"], most) for most in (0, 100, 150, 1000)] == [0, 100, 150, 1000]
    assert found.looks <= 1200
    assert pool.room(["kept"], 9999) == 1100


class Pool(RuleBasedStateMachine):
    """Owners store chains of a small tree of prefixes, are read, fail, end and are evicted, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.pool: HostPool[str] = HostPool(5)
        self.chains: dict[str, str] = {}
        self.writes: list[tuple[list[int], list[str]]] = []
        self.reads: list[list[int]] = []

    @rule(owner=st.sampled_from("abc"), path=st.text("xy", min_size=1, max_size=4), count=st.integers(1, 3))
    def store(self, owner: str, path: str, count: int) -> None:
        path = self.chains.setdefault(owner, path + "xyxy")
        held = self.pool.held(owner)
        keys = [path[: i + 1] for i in range(held, min(held + count, len(path)))]
        slots = self.pool.store(owner, keys)
        if slots:
            self.writes.append((list(slots.values()), list(slots)))

    @precondition(lambda self: self.writes)
    @rule(place=st.integers(0, 99), ok=st.booleans())
    def written(self, place: int, ok: bool) -> None:
        slots, _ = self.writes.pop(place % len(self.writes))
        self.pool.stored(slots, ok)

    @rule(owner=st.sampled_from("abc"))
    def load(self, owner: str) -> None:
        path = self.chains.get(owner, "")
        keys = []
        for end in range(1, len(path) + 1):
            if self.pool.state(path[:end]) is not True:
                break
            keys.append(path[:end])
        self.reads.append(self.pool.load(owner, keys))

    @precondition(lambda self: self.reads)
    @rule(place=st.integers(0, 99), ok=st.booleans())
    def read(self, place: int, ok: bool) -> None:
        self.pool.loaded(self.reads.pop(place % len(self.reads)), ok)

    @rule(owner=st.sampled_from("abc"))
    def release(self, owner: str) -> None:
        self.pool.release(owner)
        self.chains.pop(owner, None)

    @rule(owner=st.sampled_from("abc"), at=st.integers(1, 4))
    def forget(self, owner: str, at: int) -> None:
        self.pool.forget(owner, self.chains.get(owner, "")[:at])

    @rule(slots=st.integers(0, 5))
    def withhold(self, slots: int) -> None:
        """Memory grows short, or there is some again."""
        self.pool.withheld = min(slots, 5 - self.pool.used)

    @invariant()
    def no_slot_is_lost_and_none_in_two_hands(self) -> None:
        self.pool.check()
        copied = [slot for slots, _ in self.writes for slot in slots]
        assert len(copied) == len(set(copied))
        assert not set(copied) & {slot for slots in self.reads for slot in slots}

    @invariant()
    def room_is_what_is_free_or_given_up_as_far_as_it_is_asked_for(self) -> None:
        found, slots = self.pool._found, self.pool._found.values()
        kept = {key for key, slot in found.items() if "a" in slot.owners}
        room = self.pool.capacity - self.pool.used + sum(slot.key not in kept and not slot.busy for slot in slots)
        assert [self.pool.room(["a"], most) for most in range(7)] == [min(room, most) for most in range(7)]

    @invariant()
    def what_is_held_has_no_gap(self) -> None:
        for owner, path in self.chains.items():
            held = self.pool.held(owner)
            assert all(self.pool.state(path[: i + 1]) is not None for i in range(held))


Pool.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPool = Pool.TestCase
