"""The guaranteed share: it opens kept room, and lengthens a step beyond chat's promise only where the deployment says so."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from harvester.policy.step.guarantee import stretched_s
from harvester.policy.step.plan import plan_step
from harvester.policy.step.view import Guarantee, StepView
from harvester.policy.view import PolicyConfig, Running
from tests.policy.asked import slo
from tests.policy.machine import CPU, a_model

LIMITS = PolicyConfig(reserved_slots=4, reserved_kv=0.5, offline_step_tokens=64)
ONLINE = Running("chat", offline=False, step_tokens=1, blocks_now=2, blocks_final=0, blocks_step=0, context=50, decoding=True)
OFFLINE = Running("row", offline=True, step_tokens=1, blocks_now=2, blocks_final=4, blocks_step=0, context=50, decoding=True)
VIEW = StepView(
    running=[ONLINE, OFFLINE],
    online_waiting=0,
    online_waiting_blocks=0,
    offline_next_blocks=4,
    free_blocks=60,
    total_blocks=100,
    max_seqs=6,
)


def planned(share: float, **changes: object) -> tuple[int, int]:
    view = replace(VIEW, guarantee=Guarantee(share) if share else None, **changes)  # type: ignore[arg-type]
    plan = plan_step(view, LIMITS)
    return plan.offline_slots, plan.offline_blocks


def test_without_a_guarantee_the_reserve_is_kept() -> None:
    assert planned(0.0) == (0, 8)


@pytest.mark.parametrize(
    ("share", "expected"), [(0.1, (0, 8)), (0.5, (2, 46)), (0.9, (4, 58))], ids=["has it already", "half", "all that is free"]
)
def test_a_share_opens_slots_and_blocks_that_are_kept_for_arrivals(share: float, expected: tuple[int, int]) -> None:
    assert planned(share) == expected


def test_an_arrival_that_waits_comes_before_the_share() -> None:
    assert planned(0.9, online_waiting=1, online_waiting_blocks=2, waiting_tokens=20) == (0, 0)


@pytest.mark.parametrize(
    ("guarantee", "limit_s", "expected"),
    [
        (None, 0.1, 0.1),
        (Guarantee(0.25), 0.1, 0.1),
        (Guarantee(0.25, above_slo=True), 0.1, 0.12),
        (Guarantee(0.25, above_slo=True), 0.2, 0.2),
        (Guarantee(0.25, above_slo=True), -1.0, 0.12),
        (Guarantee(0.25, above_slo=True), math.inf, math.inf),
    ],
    ids=["none", "chat's promise first", "a quarter of the step", "room enough", "chat is late already", "nothing promised"],
)
def test_a_step_is_longer_only_where_the_deployment_says_so(guarantee: Guarantee | None, limit_s: float, expected: float) -> None:
    assert stretched_s(limit_s, replace(VIEW, guarantee=guarantee), online_s=0.09) == pytest.approx(expected)


def test_a_plan_gives_late_jobs_their_share_of_a_step_that_chat_fills() -> None:
    model = a_model(CPU)
    online = [ONLINE._replace(tpot_s=0.001)] * 4  # what is promised cannot be held, whatever the step holds
    view = replace(VIEW, running=[*online, *[OFFLINE] * 20], max_seqs=64, free_blocks=5000, total_blocks=10_000, max_tokens=512)

    def offline_tokens(guarantee: Guarantee | None) -> int:
        return plan_step(replace(view, guarantee=guarantee), LIMITS, slo(model)).offline_tokens or 0

    assert offline_tokens(None) == offline_tokens(Guarantee(0.3)) == 0
    assert 0 < offline_tokens(Guarantee(0.1, above_slo=True)) < offline_tokens(Guarantee(0.3, above_slo=True))
