"""Copies of KV to host memory and back, by the block and by the clock."""

from __future__ import annotations

import pytest

from harvester.policy.view import Copies
from harvester.sim.host import SimHostMemory
from harvester.sim.trace import Request
from harvester.sim.track import Track
from tests.sim.brains import an_engine

BLOCK_S = 0.25


def a_track(name: str, computed: int, job: str = "job") -> Track:
    """A request with so many tokens computed, in blocks of 16."""
    track = Track(Request(name, 0.0, 200, 9, job), 0.0)
    track.computed, track.blocks = computed, -(-computed // 16)
    return track


def a_host(slots: int = 20) -> SimHostMemory:
    return SimHostMemory(an_engine(host_blocks=slots, block_copy_s=BLOCK_S))


def stored(host: SimHostMemory, track: Track, blocks: int, seconds: float, allowed: int | None = None) -> int:
    """Blocks copied beside a step of ``seconds`` in which so many are granted."""
    host.begin(Copies({track.name: blocks}, allowed, allowed, 4))
    host.grant({track.name: track})
    return host.advance(seconds)[1]


def test_a_step_stores_what_is_granted_as_far_as_it_lasts_and_the_rest_beside_the_next() -> None:
    host, track = a_host(), a_track("a", 100)
    assert stored(host, track, 4, 0.6) == 2
    host.begin(Copies())
    assert host.advance(0.4)[1] == 2  # 0.1 s of the third were spent already
    assert host.saved("a") == 4
    assert host.measured_s() == BLOCK_S
    assert host.measured_s() is None
    host.check()


def test_no_more_is_stored_than_the_step_allows_and_no_block_that_is_not_full() -> None:
    host, track = a_host(), a_track("a", 100)
    assert stored(host, track, 4, 9.0, allowed=1) == 1
    assert stored(host, track, 9, 9.0) == 5
    assert host.saved("a") == 6  # 96 of 100 tokens


def test_a_victim_saves_its_last_blocks_and_what_is_on_the_way_while_the_step_waits() -> None:
    host, track = a_host(), a_track("a", 40)
    host.begin(Copies({"a": 1}, None, None, 4))
    host.grant({"a": track})
    host.save(track)
    assert host.waited_s == 3 * BLOCK_S  # one on the way, one full, one partly filled
    assert host.find(track) is None  # not in the step in which it loses its KV
    host.begin(Copies())
    assert host.find(track) == 40


def test_a_victim_saves_no_more_than_the_step_may_wait_for_and_reads_back_that_much() -> None:
    host, track = a_host(), a_track("a", 100)
    host.begin(Copies(max_waited=2))
    host.save(track)
    host.begin(Copies())
    assert host.find(track) == 32


@pytest.mark.parametrize(("computed", "blocks"), [(32, 2), (40, 3)], ids=["whole blocks", "with a partly filled one"])
def test_what_is_read_back_is_there_after_its_blocks_have_come_over_the_link_beside_stores(computed: int, blocks: int) -> None:
    host, track, other = a_host(), a_track("a", computed), a_track("b", 160)
    host.begin(Copies(max_waited=9))
    host.save(track)
    host.begin(Copies({"b": 9}, None, None, 9))
    host.load(track, computed)
    host.grant({"b": other})
    assert host.advance(blocks * BLOCK_S - 0.1) == ([], 2 * (blocks - 1))  # full duplex
    assert host.until_next_s() == pytest.approx(0.1)
    assert host.advance(0.1) == (["a"], 2)
    host.check()


def test_of_what_a_step_allows_the_blocks_that_come_back_take_theirs_first() -> None:
    host, track, other = a_host(), a_track("a", 32), a_track("b", 160)
    host.begin(Copies(max_waited=9))
    host.save(track)
    host.begin(Copies({"b": 9}, 3, 3, 9))
    host.load(track, 32)
    host.grant({"b": other})
    assert host.advance(9.0) == (["a"], 3)


def test_memory_that_is_full_of_what_runs_takes_nothing_more_and_an_end_frees_it() -> None:
    host, one, other = a_host(slots=3), a_track("a", 48), a_track("b", 48)
    assert stored(host, one, 3, 9.0) == 3
    host.begin(Copies({"a": 1, "b": 3}, None, None, 0))
    host.grant({"a": one, "b": other})
    assert host.advance(9.0) == ([], 0)
    host.release("a")
    assert stored(host, other, 3, 9.0) == 3
    host.check()
