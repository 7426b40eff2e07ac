"""Which replica a chat request is sent to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harvester.policy.admission.route import Silences, ranked


@pytest.mark.parametrize(
    ("expected_s", "groups"),
    [
        pytest.param([0.3, 0.01], [[1], [0]], id="a replica that computes a long offline prompt comes second"),
        pytest.param([0.011, 0.010], [[1, 0]], id="two idle ones are alike"),
        pytest.param([2.0, 1.9], [[1, 0]], id="two that are full are alike"),
        pytest.param([None, 0.5], [[0], [1]], id="a new one is idle"),
        pytest.param([None, None, None], [[0, 1, 2]], id="nobody has said anything"),
        pytest.param([0.5], [[0]], id="one alone"),
        pytest.param([], [], id="none"),
    ],
)
def test_the_sooner_first_token_is_chosen(expected_s: list[float | None], groups: list[list[int]]) -> None:
    assert ranked(expected_s) == groups


@given(st.lists(st.none() | st.floats(0, 100), max_size=8))
def test_every_replica_is_in_one_group_and_no_later_group_is_sooner(expected_s: list[float | None]) -> None:
    groups = ranked(expected_s)
    assert sorted(place for group in groups for place in group) == list(range(len(expected_s)))
    waits = [expected_s[place] or 0.0 for group in groups for place in group]
    assert waits == sorted(waits)


def test_a_replica_that_does_not_say_that_it_took_a_request_is_silent_until_it_is_heard() -> None:
    silences = Silences(1.0)
    silences.sent("a", 10.0)
    silences.sent("b", 10.0)
    silences.heard("b")
    silences.sent("a", 10.9)  # the first one counts
    assert silences.silent(10.9) == set()
    assert silences.silent(11.0) == {"a"}
    silences.heard("a")
    assert silences.silent(99.0) == set()
    silences.sent("a", 100.0)
    assert silences.silent(100.9) == set()
    silences.keep({"b"})
    assert silences.silent(999.0) == set()
