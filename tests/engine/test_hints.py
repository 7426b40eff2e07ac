"""What requests say of their job reaches the queue: its weight, and the share guaranteed; a chat client cannot claim nonsense."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest

from harvester.core import PRIORITY_OFFLINE
from harvester.policy.kv.groups import KvGroups
from harvester.policy.order.offline import Fair, OfflineRow
from harvester.policy.step.view import Guarantee
from jobs.hint import SchedulingHint

if TYPE_CHECKING:
    from vllm.v1.request import Request

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module", autouse=True)
def _vllm() -> None:
    """Import it once, here: what its own modules warn of on import is not ours to mend."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import harvester.engine.vllm.core.reads  # noqa: F401


def request(name: str, job: str, **extra: Any) -> Request:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    params = SamplingParams(max_tokens=4, extra_args={"job": job, **extra})
    return Request(name, [1, 2, 3], params, None, priority=PRIORITY_OFFLINE, arrival_time=0.0)


def row(one: Request) -> OfflineRow:
    from harvester.engine.vllm.core.reads import row_of

    return row_of(one, KvGroups.one(16))


def lane(*requests: Request) -> Fair:
    order = Fair()
    for one in requests:
        order.add(row(one))
    return order


def test_the_newest_request_says_what_its_job_weighs() -> None:
    order = lane(request("a1", "a", weight=1.0), request("b1", "b", weight=1.0))
    order.charge("a", 100.0)
    order.charge("b", 100.0)
    order.add(row(request("a2", "a", weight=4.0)))
    order.charge("a", 100.0)
    order.charge("b", 30.0)
    assert [row.name for row in order.rows()] == ["a1", "a2", "b1"], "100 / 4 is less than 30"


def test_a_row_that_is_embedded_says_its_job_as_others_do() -> None:
    from vllm.pooling_params import PoolingParams
    from vllm.v1.request import Request

    hint = SchedulingHint(job="a", window=3, weight=2.0, share=0.5)
    one = Request("a1", [1, 2, 3], None, PoolingParams(task="embed", extra_kwargs=hint.to_args()), priority=PRIORITY_OFFLINE)
    found = row(one)
    assert (found.job, found.weight, found.guarantee) == ("a", 2.0, Guarantee(0.5, False))
    silent = row(Request("b1", [1, 2, 3], None, PoolingParams(task="embed"), priority=PRIORITY_OFFLINE))
    assert (silent.job, silent.weight, silent.guarantee) == ("", 1.0, None)


def test_the_largest_share_of_the_jobs_with_work_is_guaranteed() -> None:
    assert lane().guarantee() is None
    order = lane(request("a", "a", share=0.1), request("b", "b", share=0.2, above_slo=True))
    assert order.guarantee() == Guarantee(0.2, above_slo=True)
    order.take("b")
    assert order.guarantee() == Guarantee(0.2, above_slo=True), "it was admitted, and has not ended"
    order.end("b")
    assert order.guarantee() == Guarantee(0.1)
    order.add(row(request("a2", "a", share=0.0)))
    assert order.guarantee() is None


@pytest.mark.parametrize(
    ("extra", "weight", "guarantee"),
    [
        ({"weight": -1, "share": "x"}, 1e-6, None),
        ({"weight": "7", "share": float("nan")}, 1.0, None),
        ({"weight": 0, "share": 5.0, "above_slo": "yes"}, 1e-6, Guarantee(0.9)),
    ],
    ids=["negative", "no numbers", "too much"],
)
def test_a_hint_that_is_nonsense_harms_nobody(extra: dict[str, Any], weight: float, guarantee: Guarantee | None) -> None:
    found = row(request("a", "", **extra))
    assert (found.weight, found.guarantee) == (weight, guarantee)
