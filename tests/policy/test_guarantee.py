"""The guaranteed share: it opens kept room, and lengthens a step beyond chat's promise only where the deployment says so."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from harvester.policy.brain import Brain
from harvester.policy.order.offline import Fair, OfflineRow
from harvester.policy.order.online import OnlineRequest
from harvester.policy.parts import PartsConfig, parts_of
from harvester.policy.step.batch import batch_of
from harvester.policy.step.guarantee import Lack, served, stretched_s
from harvester.policy.step.plan import plan_step
from harvester.policy.step.view import Guarantee, Owed, StepView
from harvester.policy.view import EngineView, Plan, PolicyConfig, Running
from harvester.policy.waiting import WaitingOnline
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


def planned(first: int, blocks: int, first_blocks: int, **changes: object) -> tuple[int, int]:
    """The space in a step in which a job lacks ``blocks`` of its share, and ``first`` rows of it wait."""
    names = frozenset(f"w{number}" for number in range(first))
    view = replace(VIEW, owed=Owed(names, blocks, first_blocks) if first else None, **changes)  # type: ignore[arg-type]
    plan = plan_step(view, LIMITS)
    return plan.offline_slots, plan.offline_blocks


def test_without_a_guarantee_the_reserve_is_kept() -> None:
    assert planned(0, 0, 0) == (0, 8)


@pytest.mark.parametrize(
    ("lacking", "expected"),
    [((2, 46, 99), (2, 46)), ((9, 86, 99), (4, 58)), ((1, 46, 10), (1, 10))],
    ids=["half", "all that is free", "no more than its rows need"],
)
def test_what_a_job_lacks_opens_slots_and_blocks_that_are_kept_for_arrivals(
    lacking: tuple[int, int, int], expected: tuple[int, int]
) -> None:
    assert planned(*lacking) == expected


def test_an_arrival_that_waits_comes_before_the_share() -> None:
    assert planned(4, 86, 99, online_waiting=1, online_waiting_blocks=2, waiting_tokens=20) == (0, 0)


def plan_of(
    admission: str,
    running: dict[str, int],
    waiting: dict[str, int],
    shares: dict[str, float],
    *,
    order: str = "fair",
    chats: int = 16,
    chat_blocks: int = 10,
    sizes: dict[str, int] | None = None,
    kept: tuple[int, float] = (32, 0.1),
) -> Plan:
    """Chats, and rows by job, in an engine of 64 slots and 2,000 blocks.

    ``sizes``: KV blocks of a row at its end, by job; 20 for the others. ``kept``: slots, and share of the blocks, kept for chat.
    """
    limits = PolicyConfig(reserved_slots=kept[0], reserved_kv=kept[1], offline_step_tokens=256)
    brain = Brain(parts_of(PartsConfig(admission=admission, reserve="fixed", budget="fixed", offline_order=order), a_model(CPU)), limits)
    held = list[Running]()
    for number in range(chats):
        brain.arrive(OnlineRequest(f"c{number}", blocks=chat_blocks), 1.0)
        held.append(ONLINE._replace(name=f"c{number}", blocks_now=chat_blocks, context=16 * chat_blocks - 1))

    def row(name: str, job: str) -> OfflineRow:
        guarantee, weight = Guarantee(shares[job]) if job in shares else None, 8.0 if job in shares else 100.0
        size = (sizes or {}).get(job, 20)
        known = size - 1 if sizes and job in sizes else 10  # blocks that it needs by now
        lengths = {
            "final_blocks": size,
            "tokens": 16 * known,
            "blocks": known,
            "prompt_tokens": 16 * known,
            "max_tokens": 16 * (size - known),
        }
        return OfflineRow(name, job, weight=weight, guarantee=guarantee, **lengths)  # type: ignore[arg-type]

    for job, count in running.items():
        for number in range(count):
            one = row(f"{job}-r{number}", job)
            brain.arrive(one, 1.0)
            brain.offline.take(one.name)
            held.append(OFFLINE._replace(name=one.name, blocks_now=one.blocks, blocks_final=one.final_blocks, context=one.tokens - 1))
    for job, count in waiting.items():
        for number in range(count):
            brain.arrive(row(f"{job}-w{number}", job), 2.0)
    brain.offline.charge("late", 1e6)  # by the fair order the others are next
    return brain.plan(EngineView(held, WaitingOnline(), 2000 - sum(one.blocks_now for one in held), 2000, 64, 3.0, 16, 2048))


ADMISSION = pytest.mark.parametrize("admission", ["expected", "worst"])


def admitted(plan: Plan) -> dict[str, int]:
    jobs = [name.split("-")[0] for name in plan.admit]
    return {job: jobs.count(job) for job in dict.fromkeys(jobs)}


@ADMISSION
@pytest.mark.parametrize("order", ["fair", "fcfs"])
def test_rows_of_other_jobs_do_not_fill_the_share_of_a_late_job_and_are_not_given_it(admission: str, order: str) -> None:
    plan = plan_of(admission, {"other": 16}, {"other": 20, "late": 20}, {"late": 0.25}, order=order)
    assert admitted(plan) == {"late": 16}
    assert admitted(plan_of(admission, {"other": 16}, {"other": 20, "late": 20}, {}, order=order)) == {}


@ADMISSION
def test_below_its_share_a_late_job_goes_first_and_beyond_it_by_the_fair_order(admission: str) -> None:
    plan = plan_of(admission, {"late": 14}, {"other": 20, "late": 20}, {"late": 0.25}, chats=10)
    assert [name.split("-")[0] for name in plan.admit] == ["late"] * 2 + ["other"] * 6


@ADMISSION
def test_a_late_job_that_has_its_share_or_no_row_that_waits_opens_nothing(admission: str) -> None:
    assert admitted(plan_of(admission, {"late": 16}, {"other": 20, "late": 20}, {"late": 0.25})) == {}
    assert admitted(plan_of(admission, {"late": 1, "other": 15}, {"other": 20}, {"late": 0.25})) == {}
    most_kv = plan_of(admission, {"late": 6, "other": 10}, {"late": 20}, {"late": 0.028})  # 2 of 64 slots, 57 of 2,000 blocks
    assert admitted(most_kv) == {}


@ADMISSION
def test_the_late_job_that_holds_the_least_of_its_share_is_served_first(admission: str) -> None:
    plan = plan_of(admission, {"late": 3, "later": 5, "other": 8}, {"late": 20, "later": 20, "other": 20}, {"late": 0.2, "later": 0.1})
    assert admitted(plan) == {"late": 10}
    plan = plan_of(admission, {"late": 12, "later": 0, "other": 4}, {"late": 20, "later": 20, "other": 20}, {"late": 0.2, "later": 0.1})
    assert admitted(plan) == {"later": 7}


@ADMISSION
@pytest.mark.parametrize("size", [500, 300], ids=["it has its share", "what it lacks is less than its next row"])
def test_a_late_job_that_can_be_given_no_more_kv_leaves_the_guarantee_to_another(admission: str, size: int) -> None:
    running, waiting = {"long": 1, "late": 5, "other": 10}, {"long": 20, "late": 20, "other": 20}
    assert admitted(plan_of(admission, running, waiting, {"late": 0.25}, sizes={"long": size})) == {"late": 11}
    assert admitted(plan_of(admission, running, waiting, {"long": 0.25, "late": 0.25}, sizes={"long": size})) == {"late": 11}


@ADMISSION
def test_a_late_job_whose_rows_are_too_long_beside_chat_leaves_the_guarantee_to_another(admission: str) -> None:
    running, waiting, sizes = {"other": 16}, {"long": 20, "late": 20, "other": 20}, {"long": 450, "late": 3, "other": 3}
    plan = plan_of(admission, running, waiting, {"long": 0.25, "late": 0.25}, chat_blocks=100, sizes=sizes, kept=(32, 0.0))
    assert admitted(plan) == {"late": 16}


@pytest.mark.parametrize(
    ("long_blocks", "free_blocks", "expected"),
    [(450, 100, "late"), (450, 1600, "long"), (501, 1600, "late"), (450, 0, "late")],
    ids=["too long beside chat", "the chats share their prompt", "longer than what it lacks", "nothing is free"],
)
def test_of_the_jobs_that_lack_some_of_their_share_the_first_whose_next_row_fits_is_served(
    long_blocks: int, free_blocks: int, expected: str
) -> None:
    chats, rows = [ONLINE._replace(blocks_now=100)] * 16, [OFFLINE._replace(blocks_now=20)] * 10
    at, waiting = EngineView([*chats, *rows], WaitingOnline(), free_blocks, 2000, 64, 3.0, 16, 2048), Fair()
    waiting.add(OfflineRow("l", "long", final_blocks=long_blocks))
    waiting.add(OfflineRow("s", "late", final_blocks=20))
    lacks = [Lack("long", 9, 500), Lack("late", 5, 300)]
    found = served(lacks, at, batch_of(at.running), waiting.rows, lambda row: row.final_blocks)
    assert found is not None
    assert found.job == expected
    assert served(lacks, at, batch_of(at.running), waiting.rows, lambda row: 2000) == lacks[0], "where none fits, as without the others"
    assert served([], at, batch_of(at.running), waiting.rows, lambda row: 20) is None


@ADMISSION
def test_slots_opened_for_a_late_job_whose_rows_wait_for_chat_are_not_filled_by_others(admission: str) -> None:
    running, waiting, sizes = {"other": 14}, {"late": 20, "other": 20}, {"late": 500, "other": 3}
    plan = plan_of(admission, running, waiting, {"late": 0.25}, chat_blocks=100, sizes=sizes, kept=(32, 0.0))
    assert admitted(plan) == {"other": 2}
    assert plan == plan_of(admission, running, waiting, {}, chat_blocks=100, sizes=sizes, kept=(32, 0.0))


@ADMISSION
def test_kv_opened_for_a_late_job_whose_rows_wait_for_chat_is_not_filled_by_others(admission: str) -> None:
    running, waiting, sizes = {"other": 10}, {"late": 20, "other": 40}, {"late": 1200, "other": 20}
    plan = plan_of(admission, running, waiting, {"late": 0.7}, chat_blocks=60, sizes=sizes, kept=(0, 0.45))
    assert admitted(plan) == {}
    assert admitted(plan_of(admission, running, waiting, {}, chat_blocks=60, sizes=sizes, kept=(0, 0.45))) == {}


@ADMISSION
def test_a_late_row_that_fits_beside_chat_only_into_what_is_kept_is_admitted(admission: str) -> None:
    waiting, sizes = {"late": 20, "other": 20}, {"late": 450, "other": 3}
    plan = plan_of(admission, {}, waiting, {"late": 0.25}, chats=13, chat_blocks=100, sizes=sizes, kept=(0, 0.2))
    assert admitted(plan)["late"] == 1
    assert "late" not in admitted(plan_of(admission, {}, waiting, {}, chats=13, chat_blocks=100, sizes=sizes, kept=(0, 0.2)))


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
