"""KV blocks of requests in models with several KV groups, and what admission makes of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harvester.policy.kv.groups import Group, KvGroups

GROUP = st.builds(Group, st.sampled_from([16, 32]), st.none() | st.integers(1, 200), st.none(), st.sampled_from([0, 2]))
GROUPS = st.lists(GROUP, min_size=1, max_size=5)


@given(st.integers(0, 5000), st.integers(0, 300), st.sampled_from([16, 32]))
def test_one_group_is_counted_by_its_tokens(tokens: int, more: int, size: int) -> None:
    kv = KvGroups.one(size)
    assert kv.is_one
    assert kv.held(tokens) == kv.admitted(tokens) == -(-tokens // size)
    assert kv.step(tokens, tokens + more) == -(-(tokens + more) // size) - -(-tokens // size)


@given(GROUPS, st.integers(0, 2000), st.integers(0, 300))
def test_a_step_takes_what_is_held_after_it_and_what_windows_free(groups: list[Group], tokens: int, more: int) -> None:
    kv = KvGroups(groups)
    assert kv.held(tokens) + kv.step(tokens, tokens + more) >= kv.held(tokens + more)
    assert kv.held(tokens) <= kv.admitted(tokens)
    assert kv.step(tokens + 1, tokens + 2) <= kv.per_decode


@pytest.mark.parametrize(
    ("tokens", "held", "admitted"), [(100, 4 * 7, 4 * 7), (160, 4 * 10, 4 * 10), (1600, 100 + 3 * 4, 100 + 3 * 20)], ids=str
)
def test_a_window_holds_its_own_tokens_and_asks_for_those_of_a_step_too(tokens: int, held: int, admitted: int) -> None:
    kv = KvGroups([Group(16), *[Group(16, kept_tokens=63 if tokens > 1000 else 255, most=20)] * 3])
    assert (kv.held(tokens), kv.admitted(tokens)) == (held, admitted)


def test_a_group_with_a_bound_and_no_window_is_a_ring_of_so_many_blocks() -> None:
    kv = KvGroups([Group(16), Group(4, None, 1)])
    assert (kv.held(160), kv.admitted(160), kv.step(160, 320), kv.per_decode) == (11, 11, 10, 1)


def test_a_state_has_blocks_for_drafts_beside_its_own_from_the_first_token_on() -> None:
    kv = KvGroups([Group(16), *[Group(16, kept_tokens=1, most=3, extra=2)] * 3])
    assert [(kv.held(tokens), kv.admitted(tokens)) for tokens in (1, 16, 160)] == [(10, 10), (10, 10), (19, 19)]
    assert (kv.held(0), kv.step(0, 16), kv.step(16, 17), kv.per_decode) == (0, 10, 4, 4)


@given(GROUPS, st.integers(1, 2000), st.integers(0, 2000))
def test_blocks_that_others_hold_are_not_asked_for_and_a_state_is_asked_for_whole(groups: list[Group], tokens: int, shared: int) -> None:
    kv, shared = KvGroups([*groups, Group(16, kept_tokens=1, most=3, extra=2)]), min(shared, tokens - 1)
    saved = sum(shared // group.block_tokens for group in groups)
    assert kv.admitted(tokens) - kv.admitted(tokens, shared) == saved
