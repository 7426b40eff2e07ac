"""When an online request's turn comes, and who gives up KV for whom."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harvester.policy.order.enst import HYSTERESIS, Resident, enst, swap_out

NEVER = float("inf")


def executed(levels: dict[str, int], batch: int = 1) -> dict[str, float]:
    return asked(levels, dict.fromkeys(levels, NEVER), batch)


def asked(levels: dict[str, int], promote_s: dict[str, float], batch: int = 1) -> dict[str, float]:
    counts = [0] * 12
    for level in levels.values():
        counts[level] += 1
    return enst(levels, promote_s, counts, 1.0, batch)


def test_the_first_queue_is_next() -> None:
    assert executed({"a": 0, "b": 0}) == {"a": 0.0, "b": 0.0}


def test_a_request_waits_for_the_quanta_in_which_all_above_it_sink_to_its_own_queue() -> None:
    # a: 1 s in queue 0 and 2 s in queue 1; b: 2 s in queue 1
    assert executed({"a": 0, "b": 1, "c": 2})["c"] == pytest.approx(5.0)
    assert executed({"a": 0, "b": 1, "c": 2}, batch=2)["c"] == pytest.approx(2.5)


def test_a_request_that_is_promoted_sooner_is_scheduled_then() -> None:
    assert asked({"a": 0, "c": 3}, {"a": NEVER, "c": 0.5})["c"] == 0.5
    assert asked({"a": 0, "c": 3}, {"a": NEVER, "c": -3.0})["c"] == 0.0


@given(st.dictionaries(st.text("abcdef", min_size=1, max_size=2), st.integers(0, 11), min_size=1), st.integers(1, 64))
def test_a_lower_queue_is_never_sooner(levels: dict[str, int], batch: int) -> None:
    found = executed(levels, batch)
    ordered = sorted(levels, key=levels.__getitem__)
    assert [found[name] for name in ordered] == sorted(found.values())


def residents(*ensts: float, unsaved: int = 0) -> list[Resident]:
    return [Resident(str(i), enst_s, 10, unsaved) for i, enst_s in enumerate(ensts)]


def test_the_latest_turn_gives_up_its_kv_first_and_no_more_do_than_must() -> None:
    assert swap_out(residents(1.0, 9.0, 5.0), 12, 0.0, 0.0, 4) == ("1", "2")
    assert swap_out(residents(1.0, 9.0, 5.0), 10, 0.0, 0.0, 4) == ("1",)


def test_nobody_gives_up_kv_where_it_would_not_be_enough() -> None:
    assert swap_out(residents(1.0, 9.0), 21, 0.0, 0.0, 4) == ()


@pytest.mark.parametrize(
    ("enst_s", "waiting_s", "copy_s", "unsaved"),
    [(3.0, 2.0, 0.0, 0), (3.0, 0.0, 0.4, 0), (3.0, 0.0, 0.0, 3)],
    ids=["nearly as soon", "soon again", "not covered"],
)
def test_a_request_keeps_its_kv(enst_s: float, waiting_s: float, copy_s: float, unsaved: int) -> None:
    assert swap_out(residents(enst_s, unsaved=unsaved), 5, waiting_s, copy_s, 3) == ()


def test_what_is_not_on_the_host_is_saved_while_the_step_waits_for_it_and_no_more() -> None:
    """Each has two blocks to save and its partly filled one."""
    given = residents(9.0, 8.0, 7.0, unsaved=2)
    assert [swap_out(given, 20, 0.0, 0.0, bound) for bound in (5, 6)] == [(), ("0", "1")]
    assert swap_out([*given, Resident("covered", 6.0, 10, 0)], 20, 0.0, 0.0, 4) == ("0", "covered")


COPY_S = 0.01


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=6), st.integers(1, 60), st.floats(0, 50))
def test_two_requests_never_push_each_other_out(later_s: list[float], need: int, waiting_s: float) -> None:
    """``later_s``: by how much more than must be the turn of each resident comes later than that of the waiting request."""
    ensts = [HYSTERESIS * waiting_s + 10 * COPY_S + more_s for more_s in later_s]
    chosen = swap_out(residents(*ensts), min(need, 10 * len(ensts)), waiting_s, COPY_S, 100)
    assert chosen
    for name in chosen:
        given_up = ensts[int(name)]
        assert swap_out([Resident("w", waiting_s, 10, 0)], 1, given_up, COPY_S, 100) == ()
