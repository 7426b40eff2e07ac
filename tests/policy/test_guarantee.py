"""The guaranteed share: it opens kept room, and lengthens a step beyond chat's promise only where the deployment says so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from harvester.policy.admission.curve import Curve, Row
from harvester.policy.brain import Brain
from harvester.policy.model.load import StepLoad
from harvester.policy.order.offline import Fair, OfflineRow
from harvester.policy.order.online import OnlineRequest
from harvester.policy.parts import PartsConfig, parts_of
from harvester.policy.ran import StepRan
from harvester.policy.step.batch import batch_of
from harvester.policy.step.guarantee import Lack, in_turn, stretched_s
from harvester.policy.step.plan import plan_step
from harvester.policy.step.view import Guarantee, Owed, StepPlan, StepView
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


def asked_of(
    admission: str,
    running: dict[str, int],
    waiting: dict[str, int],
    shares: dict[str, float],
    *,
    order: str = "fair",
    chats: int = 16,
    chat_blocks: int = 10,
    sizes: dict[str, int] | None = None,
    answers: dict[str, int] | None = None,
    kept: tuple[int, float] = (32, 0.1),
) -> tuple[Brain, EngineView]:
    """Chats, and rows by job, in an engine of 64 slots and 2,000 blocks, before a step.

    ``sizes``: KV blocks of a row at its end, by job, nearly all of them its prompt's; 20 for the others, half of them the prompt's.
    ``answers``: the same by job where the prompt has 10, and half of the answer is made where the row runs. ``kept``: slots, and share of
    the blocks, kept for chat.
    """
    limits = PolicyConfig(reserved_slots=kept[0], reserved_kv=kept[1], offline_step_tokens=256)
    brain = Brain(parts_of(PartsConfig(admission=admission, reserve="fixed", budget="fixed", offline_order=order), a_model(CPU)), limits)
    held = list[Running]()
    for number in range(chats):
        brain.arrive(OnlineRequest(f"c{number}", blocks=chat_blocks), 1.0)
        held.append(ONLINE._replace(name=f"c{number}", blocks_now=chat_blocks, context=16 * chat_blocks - 1))

    def row(name: str, job: str) -> OfflineRow:
        guarantee, weight = Guarantee(shares[job]) if job in shares else None, 8.0 if job in shares else 100.0
        size = {**(sizes or {}), **(answers or {})}.get(job, 20)
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
            now = one.final_blocks // 2 if answers and job in answers else one.blocks
            held.append(OFFLINE._replace(name=one.name, blocks_now=now, blocks_final=one.final_blocks, context=16 * now - 1))
    for job, count in waiting.items():
        for number in range(count):
            brain.arrive(row(f"{job}-w{number}", job), 2.0)
    brain.offline.charge("late", 1e6)  # by the fair order the others are next
    return brain, EngineView(held, WaitingOnline(), 2000 - sum(one.blocks_now for one in held), 2000, 64, 3.0, 16, 2048)


def plan_of(*given: Any, **named: Any) -> Plan:
    """The plan of the step: see `asked_of`."""
    brain, seen = asked_of(*given, **named)
    return brain.plan(seen)


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
def test_of_the_jobs_that_lack_some_of_their_share_the_first_whose_next_row_fits_is_tried_first(
    long_blocks: int, free_blocks: int, expected: str
) -> None:
    chats, rows = [ONLINE._replace(blocks_now=100)] * 16, [OFFLINE._replace(blocks_now=20)] * 10
    at, waiting = EngineView([*chats, *rows], WaitingOnline(), free_blocks, 2000, 64, 3.0, 16, 2048), Fair()
    waiting.add(OfflineRow("l", "long", final_blocks=long_blocks))
    waiting.add(OfflineRow("s", "late", final_blocks=20))
    lacks = [Lack("long", 9, 500), Lack("late", 5, 300)]
    found = in_turn(lacks, at, batch_of(at.running), waiting.rows, lambda row: row.final_blocks)
    assert found[0].job == expected
    assert sorted(found) == sorted(lacks)
    assert in_turn(lacks, at, batch_of(at.running), waiting.rows, lambda row: 2000) == lacks, "where none fits, as they came"
    assert in_turn([], at, batch_of(at.running), waiting.rows, lambda row: 20) == []


def test_a_late_job_whose_answers_will_fill_its_share_leaves_the_guarantee_to_another() -> None:
    """Its rows hold 400 of the 500 blocks of its share, and will hold 800."""
    running, waiting, long = {"long": 4, "late": 5}, {"long": 20, "late": 20}, {"long": 200, "late": 20}
    for shares in ({"late": 0.25}, {"late": 0.25, "long": 0.25}):
        plan = plan_of("expected", running, waiting, shares, chat_blocks=50, answers=long, kept=(32, 0.45))
        assert admitted(plan) == {"late": 11}


@ADMISSION
@pytest.mark.parametrize("order", ["fair", "fcfs"])
def test_a_late_job_whose_own_rows_leave_no_room_for_its_next_one_keeps_no_other_out(admission: str, order: str) -> None:
    """Of 500 blocks beside chat and its reserve, and 500 of its share, its rows hold 400; the next one has 200."""
    running, waiting, sizes = {"long": 2}, {"other": 20, "long": 20}, {"long": 200}

    def plan(shares: dict[str, float]) -> Plan:
        return plan_of(admission, running, waiting, shares, order=order, chats=50, sizes=sizes, kept=(0, 0.5))

    assert set(admitted(plan({"long": 0.25}))) == {"other"}
    assert plan({"long": 0.25}) == plan({})


@ADMISSION
@pytest.mark.parametrize("order", ["fair", "fcfs"])
def test_a_late_job_whose_next_row_waits_for_rows_of_others_keeps_those_out_but_no_other_late_job(admission: str, order: str) -> None:
    running, waiting, sizes = {"other": 16}, {"other": 20, "long": 20, "late": 3}, {"long": 400, "other": 100}

    def given_room(shares: dict[str, float]) -> set[str]:
        return set(admitted(plan_of(admission, running, waiting, shares, order=order, chats=10, sizes=sizes, kept=(0, 0.0))))

    assert given_room({}) == {"other"}
    assert given_room({"long": 0.25}) == set()
    assert given_room({"long": 0.25, "late": 0.25}) == {"late"}
    assert given_room({"late": 0.25}) == {"late", "other"}


def test_late_jobs_whose_rows_find_no_room_are_looked_at_again_without_another_look_at_the_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that refuses the first rows of several jobs refuses all of them in the next one, while the same rows run."""
    rows, looks, original = {"long": 4, "late": 4}, list[bool](), Curve.peak_tokens

    def counted(curve: Curve, more: Sequence[Row], spare: float) -> float:
        looks.append(bool(curve._rows))  # a curve of the job's own rows has none by name
        return original(curve, more, spare)

    monkeypatch.setattr(Curve, "peak_tokens", counted)
    brain, seen = asked_of(
        "expected", rows, {"other": 9, **rows}, dict.fromkeys(rows, 0.25), answers=dict.fromkeys(rows, 220), kept=(0, 0.3)
    )
    assert admitted(brain.plan(seen)) == {}
    assert sum(looks) == 3, "of two late jobs, and of the first row without a guarantee"
    assert len(looks) > 3, "and of the rows of each late job alone"
    looks.clear()
    brain.observe(StepRan(StepLoad.decode(8), served={"long": 4, "late": 4}), 0.1, 3.1)
    longer = [one._replace(context=one.context + 1) for one in seen.running]
    assert admitted(brain.plan(replace(seen, running=longer))) == {}
    assert looks == []


@ADMISSION
def test_a_late_job_that_is_given_no_row_costs_no_plan_of_the_step(admission: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plans, original = list[bool](), plan_step

    def counted(view: StepView, *args: Any) -> StepPlan:
        plans.append(view.owed is not None)
        return original(view, *args)

    monkeypatch.setattr("harvester.policy.brain.plan_step", counted)
    names = [f"late-{number}" for number in range(4)]
    rows, sizes = dict.fromkeys(names, 1), dict.fromkeys(names, 450)
    assert "late" not in admitted(plan_of(admission, rows, {"other": 9, **rows}, dict.fromkeys(names, 0.25), sizes=sizes, kept=(0, 0.0)))
    assert len(plans) == 1
    plans.clear()
    assert admitted(plan_of(admission, {}, {"late": 9}, {"late": 0.25}, kept=(0, 0.0)))
    assert plans == [True]


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
