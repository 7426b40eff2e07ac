"""The order of offline work, between jobs and inside a slice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harvester.policy.order.fair import FairOrder
from harvester.policy.order.offline import Fair, OfflineRow
from harvester.policy.parts import OFFLINE_ORDERS, PartsConfig
from harvester.policy.step.view import Guarantee


def test_jobs_that_are_equal_take_turns() -> None:
    fair = FairOrder()
    fair.join("a")
    fair.join("b")
    served = []
    for _ in range(4):
        job = fair.order(["a", "b"])[0]
        served.append(job)
        fair.charge(job, 100)
    assert served == ["a", "b", "a", "b"]


@given(st.floats(0.2, 5.0), st.integers(1, 500), st.integers(1, 500))
def test_jobs_get_tokens_in_proportion_to_their_weights_whatever_the_length_of_their_rows(weight: float, of_a: int, of_b: int) -> None:
    fair, tokens = FairOrder(), {"a": 0, "b": 0}
    fair.join("a", weight)
    fair.join("b")
    for _ in range(200):
        job = fair.order(tokens)[0]
        row = of_a if job == "a" else of_b
        tokens[job] += row
        fair.charge(job, row)
    assert abs(tokens["a"] / weight - tokens["b"]) <= max(of_a / weight, of_b) + 1e-6


def test_a_new_job_starts_level_with_the_least_served_and_need_not_be_waited_for() -> None:
    fair = FairOrder()
    fair.join("old")
    fair.charge("old", 10_000)
    fair.join("new")
    assert fair.served("new") == fair.served("old")


def test_a_job_that_left_saves_up_no_claim_on_the_others() -> None:
    fair = FairOrder()
    fair.join("a")
    fair.join("b")
    fair.leave("a")
    fair.charge("b", 5_000)
    fair.join("a")
    assert fair.served("a") == 5_000


def test_a_job_alone_that_leaves_and_comes_back_owes_nothing_to_a_later_one() -> None:
    fair = FairOrder()
    fair.join("a")
    fair.charge("a", 700)
    fair.leave("a")
    fair.join("b")
    fair.join("a")
    assert fair.served("a") == fair.served("b") == 700


def test_joining_again_only_sets_the_weight() -> None:
    fair = FairOrder()
    fair.join("a")
    fair.charge("a", 100)
    fair.join("a", 2.0)
    fair.charge("a", 100)
    assert fair.served("a") == 150


def test_no_jobs_have_an_empty_order() -> None:
    assert FairOrder().order([]) == []


def test_a_weight_that_is_not_positive_is_refused() -> None:
    with pytest.raises(ValueError, match=r"weight=0\.0 of job a must be positive"):
        FairOrder().join("a", 0.0)


def test_requests_without_a_job_come_by_arrival_and_rows_of_a_job_by_prefix() -> None:
    order = Fair()
    for number, (job, prefix) in enumerate([("", (9,)), ("", (1,)), ("job", (9,)), ("job", (1,))]):
        order.add(OfflineRow(f"r{number}", job, prefix=prefix, arrival_s=float(number)))
    assert [row.name for row in order.rows()] == ["r0", "r1", "r3", "r2"]


@pytest.mark.parametrize("name", OFFLINE_ORDERS)
def test_a_row_that_lost_its_kv_does_not_bring_back_what_its_job_was_given_before(name: str) -> None:
    order, late = OFFLINE_ORDERS[name](PartsConfig()), Guarantee(0.25)
    old = OfflineRow("old", "late")
    order.add(old)
    order.take("old")
    order.add(OfflineRow("other", "other", arrival_s=1.0))
    order.add(OfflineRow("new", "late", weight=8.0, guarantee=late, arrival_s=2.0))
    order.add(old._replace(begun=True))
    assert order.guarantee() == late
    order.take("old")
    order.charge("late", 100.0)
    order.charge("other", 50.0)
    if name == "fair":
        assert [row.name for row in order.rows()] == ["new", "other"], "100 / 8 is less than 50"
    order.add(old._replace(name="newer", guarantee=None))
    assert order.guarantee() is None, "it is new"


def test_a_row_that_lost_its_kv_brings_what_its_job_had_where_nothing_is_known_of_that() -> None:
    order = Fair()
    order.add(OfflineRow("old", "late", begun=True, weight=8.0, guarantee=Guarantee(0.25)))
    assert order.guarantee() == Guarantee(0.25)


class Counted(OfflineRow):
    """A row that counts how often a row is looked at by name."""

    looks = 0

    @property
    def name(self) -> str:
        Counted.looks += 1
        return str(self[0])


@pytest.mark.parametrize("name", OFFLINE_ORDERS)
def test_a_row_is_found_without_a_look_at_those_before_it(name: str) -> None:
    order = OFFLINE_ORDERS[name](PartsConfig())
    for number in range(1000):
        order.add(Counted(f"r{number}", "job", arrival_s=float(number)))
    Counted.looks = 0
    for number in range(999, -1, -1):
        order.end(f"r{number}")
    assert len(order) == 0
    assert Counted.looks <= 10 * 1000
