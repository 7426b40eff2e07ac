"""Admission by what rows are expected to hold: the curve, the medians, the margin, and who gives way when KV runs out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harvester.policy.admission.curve import ANEW, WIDTH, Curve, Row
from harvester.policy.admission.expected import LOOK_AGAIN, Expected
from harvester.policy.admission.left import RowLength, tokens_left
from harvester.policy.admission.margin import LEAST, MOST, KvMargin
from harvester.policy.admission.rule import Admission, WorstCase
from harvester.policy.admission.shortage import short_of_kv
from harvester.policy.bisection import largest, largest_from_below
from harvester.policy.model.lengths import MAX_JOBS, MAX_ROWS, MIN_ROWS, AnswerLengths
from harvester.policy.order.offline import OfflineRow
from harvester.policy.step.batch import batch_of
from harvester.policy.step.view import Owed, StepPlan, StepView
from harvester.policy.view import EngineView, PolicyConfig, Running
from harvester.policy.waiting import WaitingOnline
from tests.policy.asked import rows_of, view

BLOCK = 16
LIMITS = PolicyConfig(reserved_slots=0, reserved_kv=0.0, offline_step_tokens=64)

# -- the curve ------------------------------------------------------------------------------------------------------------------------

ROWS = st.lists(st.tuples(st.integers(1, 500), st.integers(1, 500)), max_size=12)


def held_at(rows: list[tuple[int, int]], step: int) -> float:
    """Tokens held after ``step`` steps of one token a row, and half a block for each row that is still there."""
    return sum(tokens + step + BLOCK / 2 for left, tokens in rows if left >= step)


def curve_of(rows: list[tuple[int, int]], width: int = 1) -> Curve:
    curve, by_name = Curve(width), {f"r{number}": row for number, row in enumerate(rows)}
    curve.follow(by_name, by_name.__getitem__)
    return curve


@given(rows=ROWS, more=ROWS)
def test_the_peak_is_the_most_that_the_rows_hold_at_any_step(rows: list[tuple[int, int]], more: list[tuple[int, int]]) -> None:
    expected = max((held_at([*rows, *more], step) for step in range(501)), default=0.0)
    assert curve_of(rows).peak_tokens(more, BLOCK / 2) == expected


@example(rows=[], more=[(208, 1), (218, 1), (223, 1)])
@given(rows=ROWS, more=ROWS)
def test_classes_move_the_peak_by_their_width_a_row_at_most(rows: list[tuple[int, int]], more: list[tuple[int, int]]) -> None:
    fine, coarse = (curve_of(rows, width).peak_tokens(more, BLOCK / 2) for width in (1, WIDTH))
    assert abs(fine - coarse) <= (len(rows) + len(more)) * WIDTH


@given(most=st.integers(0, 70), fit=st.integers(0, 90))
def test_the_largest_prefix_is_found(most: int, fit: int) -> None:
    assert largest_from_below(most, lambda count: count <= fit) == min(most, fit)
    assert largest(most, lambda count: count <= fit) == min(most, fit)


# -- the medians ----------------------------------------------------------------------------------------------------------------------


def test_nothing_is_said_before_so_many_rows_have_ended() -> None:
    lengths = AnswerLengths()
    for tokens in range(1, MIN_ROWS + 1):
        assert lengths.median("job", 50) is None
        lengths.learn("job", 50, tokens)
    assert lengths.median("job", 50) == MIN_ROWS // 2 + 1
    assert lengths.median("other", 50) is None


def test_long_prompts_have_a_median_of_their_own_and_bands_with_few_rows_that_of_all() -> None:
    lengths = AnswerLengths()
    for _ in range(MIN_ROWS):
        lengths.learn("job", 50, 10)
        lengths.learn("job", 600, 300)
    lengths.learn("job", 3, 1)
    assert [lengths.median("job", prompt) for prompt in (40, 1000, 3)] == [10, 300, 10]


def test_medians_follow_the_newest_rows_and_are_told_anew_only_when_they_have_moved() -> None:
    lengths = AnswerLengths()
    for _ in range(MAX_ROWS):
        lengths.learn("job", 50, 100)
    told = lengths.version
    for _ in range(MAX_ROWS // 2):
        lengths.learn("job", 50, 104)
    assert (lengths.median("job", 50), lengths.version) == (100, told)
    for _ in range(MAX_ROWS):
        lengths.learn("job", 50, 200)
    assert lengths.median("job", 50) == 200
    assert lengths.version > told


def test_the_jobs_that_ended_rows_last_are_remembered() -> None:
    lengths = AnswerLengths()
    for job in range(MAX_JOBS + 1):
        for _ in range(MIN_ROWS):
            lengths.learn(str(job), 50, 7)
            lengths.learn("busy", 50, 9)
    assert [lengths.median(job, 50) for job in ("0", "1", "2", "busy", str(MAX_JOBS))] == [None, None, 7, 9, 7]


# -- the margin -----------------------------------------------------------------------------------------------------------------------


def test_the_margin_rises_by_half_while_more_than_a_hundredth_is_computed_again_and_falls_slower() -> None:
    margin = KvMargin()
    margin.ran(999, 500, 1000)
    assert margin.share == LEAST  # fewer tokens than the KV holds were computed so far
    margin.ran(1, 0, 1000)
    assert margin.share == pytest.approx(1.5 * LEAST)
    for _ in range(20):
        margin.ran(1000, 11, 1000)
    assert margin.share == MOST
    margin.ran(1000, 10, 1000)
    assert margin.share == pytest.approx(0.9 * MOST)
    for _ in range(99):
        margin.ran(1000, 0, 1000)
    assert margin.share == LEAST


# -- the rule -------------------------------------------------------------------------------------------------------------------------


def a_row(name: str, prompt: int = 64, emitted: int = 0, most: int = 1000, job: str = "job") -> OfflineRow:
    blocks, final = -(-(prompt + emitted) // BLOCK), -(-(prompt + most) // BLOCK)
    return OfflineRow(
        name, job, emitted > 0, final_blocks=final, blocks=blocks, tokens=prompt + emitted, prompt_tokens=prompt, max_tokens=most
    )


def running(row: OfflineRow) -> Running:
    """``row`` as a running request in decode."""
    return Running(row.name, True, 1, -(-(row.tokens - 1) // BLOCK), row.final_blocks, 0, row.tokens - 1, True)


def seen(rows: list[OfflineRow], total: int, **fields: object) -> StepView:
    runs = [running(row) for row in rows]
    free = total - sum(one.blocks_now for one in runs)
    known = {row.name: row for row in rows}
    return replace(view(*runs, free_blocks=free, total_blocks=total, max_seqs=256, offline_rows=known, online_idle_s=1e9), **fields)  # type: ignore[arg-type]


def admitted(rule: Expected, waiting: list[OfflineRow], at: StepView) -> int:
    at = replace(at, offline_next_blocks=waiting[0].blocks)
    batch = batch_of(at.running)
    return len(rule.admitted(rows_of(waiting), rule.space(at, batch, LIMITS), at, batch, LIMITS))


def knowing(tokens: int, jobs: str = "job") -> Expected:
    """An admission that has seen rows of ``jobs`` answered with ``tokens`` tokens."""
    rule = Expected()
    for _ in range(MIN_ROWS):
        rule.ended(a_row("ended", job=jobs), tokens)
    return rule


WAITING = [a_row(f"w{number}") for number in range(200)]


def test_until_twenty_rows_have_ended_a_row_is_counted_with_all_that_it_may_make() -> None:
    at = seen([], 1000)
    at = replace(at, running=[running(a_row("r"))], offline_rows={"r": a_row("r")}, free_blocks=995)
    assert admitted(Expected(), WAITING, at) == 13  # 15,680 tokens at 1,072 a row, less the one that runs
    assert admitted(knowing(100), WAITING, at) == 90  # at 172 a row


def test_what_is_known_of_rows_elsewhere_holds_until_twenty_have_ended_here() -> None:
    told = [row._replace(expected_tokens=300) for row in WAITING]
    assert admitted(Expected(), told, seen([a_row("r", most=1)], 1000)) == 42  # at 372 a row
    assert admitted(knowing(100), told, seen([a_row("r", most=1)], 1000)) == 91


def test_what_an_aborted_row_had_made_says_nothing() -> None:
    rule = Expected()
    for _ in range(MIN_ROWS):
        rule.ended(a_row("ended"), None)
    assert rule.lengths.median("job", 64) is None


def test_rows_that_are_about_to_end_make_room_for_those_that_begin() -> None:
    rule = knowing(200)
    fresh, old = ([a_row(f"r{number}", emitted=emitted) for number in range(40)] for emitted in (1, 180))
    assert admitted(rule, WAITING, seen(fresh, 1000)) < admitted(rule, WAITING, seen(old, 1000, free_blocks=500)) > 0


def test_a_row_that_has_outgrown_the_median_is_thought_to_go_on_but_not_beyond_what_it_may_make() -> None:
    for emitted, most, left in ((20, 1000, 80), (95, 1000, 28.5), (400, 1000, 120), (400, 410, 10)):
        assert tokens_left(RowLength(64, 100, most), 64 + emitted) == left


def test_a_margin_keeps_rows_out() -> None:
    rule, at = knowing(100), seen([a_row("r")], 1000)
    before = admitted(rule, WAITING, at)
    rule.ran(16_000, 8000)
    rule.ran(16_000, 8000)
    assert rule.margin.share == pytest.approx(2.25 * LEAST)
    assert admitted(rule, WAITING, at) < before


def test_a_row_that_needs_the_margin_keeps_those_behind_it_out_until_no_other_runs_and_then_takes_it() -> None:
    large = a_row("large", prompt=15_000, most=750)  # 15,758 tokens with half a block, of 15,680 without the margin, or 16,000
    waiting = [large, *WAITING[:3]]
    beside = seen([a_row("r")], 1000)
    chat = Running("chat", False, 1, 5, 0, 0, 5 * BLOCK - 1, True)
    alone = replace(seen([], 1000), running=[chat], free_blocks=995)
    assert admitted(Expected(), waiting, beside) == 0
    assert admitted(Expected(), waiting, alone) == 1
    more = chat._replace(blocks_now=20, context=20 * BLOCK - 1)
    assert admitted(Expected(), waiting, replace(alone, running=[more], free_blocks=980)) == 3, "for chat"


@pytest.mark.parametrize(("prompt", "chat_blocks"), [(13_900, 100), (5_900, 600), (4_300, 700)])
def test_a_row_that_needs_the_margin_only_beside_chat_waits_for_chat_and_keeps_none_out(prompt: int, chat_blocks: int) -> None:
    left = (1000 - chat_blocks) * BLOCK
    large = a_row("large", prompt=prompt, most=left - prompt - BLOCK)  # fits into what chat leaves, and not into it without the margin
    chat = Running("chat", False, 1, chat_blocks, 0, 0, chat_blocks * BLOCK - 1, True)
    beside = replace(seen([a_row("r")], 1000), free_blocks=990 - chat_blocks)
    beside = replace(beside, running=[*beside.running, chat])
    assert admitted(Expected(), [large, *WAITING[:3]], beside) == 3


def test_chat_and_its_reserve_are_kept_out_of_the_curve_and_a_guarantee_opens_the_reserve() -> None:
    rule, rows = knowing(100), [a_row("r")]
    alone = seen(rows, 1000)
    chat = Running("chat", False, 1, 300, 0, 0, 300 * BLOCK - 1, True)
    beside = replace(alone, running=[*alone.running, chat], free_blocks=alone.free_blocks - 300, online_idle_s=0.0)
    kept = replace(beside, reserve=(3, 200))
    given_ = replace(kept, owed=Owed(frozenset(row.name for row in WAITING), 595, 999))
    counts = [admitted(rule, WAITING, at) for at in (alone, beside, kept, given_)]
    assert counts == [90, 62, 43, 54]  # of 980, 680, 480 and 600 blocks, 172 tokens a row


def test_a_row_whose_kv_is_read_back_counts_as_one_that_runs() -> None:
    rule, back = knowing(100), a_row("back", emitted=1)
    at = seen([a_row("r")], 1000)
    loading = replace(
        at, loading_rows={"back": back.tokens}, offline_rows={**at.offline_rows, "back": back}, free_blocks=at.free_blocks - 5
    )
    assert admitted(rule, WAITING, at) - admitted(rule, WAITING, loading) == 1


def test_blocks_of_a_common_prefix_are_counted_once() -> None:
    rule = knowing(100)
    rows = [a_row(f"r{number}", prompt=640) for number in range(20)]
    apart = seen(rows, 1000)
    shared = replace(apart, free_blocks=apart.free_blocks + 19 * 38)  # of 40 blocks of each prompt 38 are the same
    assert admitted(rule, WAITING, apart) == 4
    assert admitted(rule, WAITING, shared) > 50


def beside_chats_with_a_common_prompt(rows: list[OfflineRow]) -> StepView:
    """50 chats with 30 blocks each, of which 29 are the same: 79 blocks of 1,000."""
    chats = [Running(f"c{number}", False, 1, 30, 0, 0, 30 * BLOCK - 1, True) for number in range(50)]
    alone = seen(rows, 1000)
    return replace(alone, running=[*alone.running, *chats], free_blocks=alone.free_blocks - 79)


@pytest.mark.parametrize("rule", [WorstCase(), knowing(100)], ids=["worst", "expected"])
def test_chats_with_a_common_prompt_leave_rows_what_is_free(rule: Admission) -> None:
    small = [a_row(f"w{number}", most=100) for number in range(200)]
    at = beside_chats_with_a_common_prompt([a_row("r", most=100)])
    batch = batch_of(at.running)
    assert len(rule.admitted(rows_of(small), rule.space(at, batch, LIMITS), at, batch, LIMITS)) >= 80  # of 920 blocks, 11 a row


@pytest.mark.parametrize("rule", [WorstCase(), knowing(100)], ids=["worst", "expected"])
def test_beside_chats_with_a_common_prompt_a_row_that_waits_for_rows_is_not_passed(rule: Admission) -> None:
    at = beside_chats_with_a_common_prompt([a_row(f"r{number}", prompt=1600, most=100) for number in range(7)])  # of 221 free blocks
    large, small = a_row("large", prompt=6000, most=100), a_row("small", most=100)
    batch = batch_of(at.running)
    assert rule.admitted(rows_of([small]), rule.space(at, batch, LIMITS), at, batch, LIMITS) == ("small",)
    assert rule.admitted(rows_of([large, small]), rule.space(at, batch, LIMITS), at, batch, LIMITS) == ()


def test_prompts_take_what_is_free_beside_those_that_are_not_computed_yet() -> None:
    prompt = Running("p", True, 128, 0, 70, 8, 0)
    at = seen([a_row("r")], 1000)
    at = replace(at, running=[*at.running, prompt], free_blocks=14)
    assert knowing(17).space(at, batch_of(at.running), LIMITS) == (254, 6)
    at = seen([a_row("r")], 1000)
    assert len(knowing(17).admitted(rows_of(WAITING), (254, 6), at, batch_of(at.running), LIMITS)) == 1


def later(at: StepView, tokens: int) -> StepView:
    """``at`` when each running row has made ``tokens`` more."""
    return replace(at, running=[one._replace(context=one.context + tokens) for one in at.running])


def test_a_row_that_did_not_fit_is_tried_again_when_another_has_ended_or_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    rule, rows = knowing(100), [a_row(f"r{number}") for number in range(30)]
    full, looks = seen(rows, 300), 0
    original = Curve.peak_tokens

    def counted(curve: Curve, more: list[Row], spare: float) -> float:
        nonlocal looks
        looks += 1
        return original(curve, more, spare)

    monkeypatch.setattr(Curve, "peak_tokens", counted)
    for made in range(LOOK_AGAIN):
        assert admitted(rule, WAITING, later(full, made)) == 0
        rule.ran(len(rows), 0)
    assert looks == 1
    for _ in range(2):
        assert admitted(rule, WAITING, later(full, LOOK_AGAIN)) == 0
        rule.ran(len(rows), 0)
    assert looks == 2
    fewer = later(seen(rows[:26], 300), LOOK_AGAIN)
    assert admitted(rule, WAITING, fewer) == admitted(knowing(100), WAITING, fewer) > 0


def test_a_plan_that_was_dropped_leaves_nothing_behind() -> None:
    """Made while a step ran in which a row ended; the plan without that row is the same as where nobody had planned before."""
    rows = [a_row(f"r{number}", emitted=90 + number) for number in range(34)]
    full = seen(rows, 400)
    once, twice = knowing(100), knowing(100)
    for made in range(200):
        at = later(full, made)
        rest = replace(at, running=at.running[:-1], free_blocks=at.free_blocks + at.running[-1].blocks_now)
        if made % 3 == 0:
            admitted(twice, WAITING, at)
        assert admitted(twice, WAITING, rest) == admitted(once, WAITING, rest)
        assert (twice._refused, twice._curve._rows, twice._curve._classes) == (once._refused, once._curve._rows, once._curve._classes)
        for rule in (once, twice):
            rule.ran(33, 0)


@settings(deadline=None)
@given(plan=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 60), st.integers(1, 90), st.booleans()), max_size=30))
def test_the_rows_that_are_kept_make_the_curve_of_rows_computed_anew(plan: list[tuple[int, int, int, bool]]) -> None:
    """Each step: so many rows come with so many tokens left and known, and perhaps the oldest one ends."""
    curve, rows, number = Curve(width=1), dict[str, tuple[float, float]](), 0
    for coming, left, tokens, ends in plan:
        for _ in range(coming):
            rows[f"r{number}"] = (left + 40, tokens + number)
            number += 1
        if ends and rows:
            del rows[next(iter(rows))]
        curve.follow(rows, rows.__getitem__)
        anew = Curve(width=1)
        anew.follow(rows, rows.__getitem__)
        assert curve.peak_tokens([(70, 10)], 8.0) == anew.peak_tokens([(70, 10)], 8.0)
        rows = {name: (one[0] - 1, one[1] + 1) for name, one in rows.items()}
        curve.passed()


def test_a_row_that_was_left_out_of_steps_is_found_within_some_looks() -> None:
    curve, rows = Curve(width=1), {f"r{number}": (100.0, 50.0) for number in range(20)}
    curve.follow(rows, rows.__getitem__)
    for _ in range(10):
        curve.passed()  # nobody moved, so that each now ends ten steps later
    assert curve.peak_tokens([(90.0, 60.0)], 0.0) == 21 * 150.0
    curve.follow(rows, rows.__getitem__)
    once = curve.peak_tokens([], 0.0)
    curve.follow(rows, rows.__getitem__)
    assert curve.peak_tokens([], 0.0) == once, "asked twice at one step"
    for _ in range(ANEW):
        rows = {name: (one[0] - 1, one[1] + 1) for name, one in rows.items()}
        curve.passed()
        curve.follow(rows, rows.__getitem__)
    anew = Curve(width=1)
    anew.follow(rows, rows.__getitem__)
    assert curve.peak_tokens([(70.0, 50.0)], 0.0) == anew.peak_tokens([(70.0, 50.0)], 0.0)


# -- when KV runs out -----------------------------------------------------------------------------------------------------------------


def decode(name: str, offline: bool = True, full: bool = True, blocks: int = 4) -> Running:
    """``full``: its last block is, so that it needs another one."""
    return Running(name, offline, 1, blocks, 90, int(full), BLOCK * blocks - (not full), True)


def lost(rows: list[Running], free: int, pause: tuple[int, ...] = (), preempt: tuple[int, ...] = ()) -> tuple[int, ...]:
    run = tuple(place for place in range(len(rows)) if place not in (*pause, *preempt))
    freed = sum(rows[place].blocks_now for place in preempt)
    return short_of_kv(EngineView(rows, WaitingOnline(), free - freed, 999, 32, 0.0, BLOCK, 512), StepPlan(run, pause, preempt, None, 0, 0))


def test_the_newest_rows_give_way_as_many_as_are_needed() -> None:
    rows = [decode(name) for name in "abcdef"]
    assert lost(rows, 6) == ()
    assert lost(rows, 5) == (5,)
    assert lost(rows, 1) == (5,)
    assert lost(rows, 0) == (5, 4)


def test_a_row_that_is_left_out_of_the_step_gives_way_too_and_one_that_is_preempted_already_does_not() -> None:
    rows = [decode(name) for name in "abc"]
    assert lost(rows, 1, pause=(2,)) == (2,)
    assert lost(rows, 1, preempt=(2,)) == (1,)


def test_chat_takes_the_kv_of_the_last_row_and_a_row_alone_keeps_its_own() -> None:
    assert lost([decode("row", full=False), decode("chat", offline=False)], 0) == (0,)
    assert lost([decode("row")], 0) == ()
    assert lost([decode("chat", offline=False)], 0) == ()


def test_prompts_need_what_the_step_has_tokens_for() -> None:
    prompts = [Running(name, True, 480, 0, 90, 30, 0) for name in "ab"]
    assert lost([decode("old", full=False), *prompts], 32) == ()  # the two share 511 tokens: 30 blocks and 2
    assert lost([decode("old", full=False), *prompts], 31) == (2,)


KINDS = st.builds(decode, st.just("r"), st.booleans(), st.booleans(), st.integers(1, 9))


@settings(max_examples=200)
@given(rows=st.lists(KINDS, max_size=9), free=st.integers(0, 9))
def test_all_that_run_on_find_their_blocks_or_no_row_is_left_to_take(rows: list[Running], free: int) -> None:
    gone = lost(rows, free)
    assert all(rows[place].offline for place in gone)
    offline = [place for place, one in enumerate(rows) if one.offline]
    assert list(gone) == offline[::-1][: len(gone)]
    need = sum(one.blocks_step for place, one in enumerate(rows) if place not in gone)
    freed = free + sum(rows[place].blocks_now for place in gone)
    least = 0 if len(offline) < len(rows) else 1
    assert need <= freed or len(offline) - len(gone) <= least
