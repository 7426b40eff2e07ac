"""What requests say of their job reaches the queue: its weight, and the share guaranteed; a chat client cannot claim nonsense."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from harvester.core import PRIORITY_OFFLINE
from harvester.policy.order.fair import FairOrder
from harvester.policy.view import Guarantee

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from harvester.engine.core.queue import OfflineLane

pytestmark = pytest.mark.engine


def request(name: str, job: str, **extra: Any) -> Request:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    params = SamplingParams(max_tokens=4, extra_args={"job": job, **extra})
    return Request(name, [1, 2, 3], params, None, priority=PRIORITY_OFFLINE, arrival_time=0.0)


def lane() -> tuple[OfflineLane, FairOrder]:
    from harvester.engine.core.queue import OfflineLane

    fair = FairOrder()
    return OfflineLane(fair), fair


def test_the_newest_request_says_what_its_job_weighs() -> None:
    offline, fair = lane()
    offline.add(request("a1", "a", weight=1.0))
    fair.charge("a", 100.0)
    offline.add(request("a2", "a", weight=4.0))
    fair.charge("a", 100.0)
    assert fair.served("a") == 125.0


def test_the_largest_share_of_the_jobs_with_work_is_guaranteed() -> None:
    offline, fair = lane()
    assert offline.guarantee() is None
    offline.add(request("a", "a", share=0.1))
    offline.add(request("b", "b", share=0.2, above_slo=True))
    assert offline.guarantee() == Guarantee(0.2, above_slo=True)
    fair.leave("b")
    assert offline.guarantee() == Guarantee(0.1)
    offline.add(request("a2", "a", share=0.0))
    assert offline.guarantee() is None


@pytest.mark.parametrize(
    ("extra", "weight", "guarantee"),
    [
        ({"weight": -1, "share": "x"}, 1e-6, None),
        ({"weight": "7", "share": float("nan")}, 1.0, None),
        ({"weight": 0, "share": 5.0, "above_slo": "yes"}, 1e-6, Guarantee(0.9)),
    ],
    ids=["negative", "no numbers", "too much"],
)
def test_a_claim_that_is_nonsense_harms_nobody(extra: dict[str, Any], weight: float, guarantee: Guarantee | None) -> None:
    offline, fair = lane()
    offline.add(request("a", "", **extra))
    fair.charge("", 1.0)
    assert fair.served("") == pytest.approx(1.0 / weight)
    assert offline.guarantee() == guarantee
