"""Chat gets the KV that vLLM asks for, no less and no more: with several KV groups, a watermark, or prompts that share their beginning."""

from __future__ import annotations

import warnings

import pytest

from harvester.engine.embedded.folder import embedded_model
from harvester.engine.shared.state import SharedState
from harvester.policy.kv.groups import KvGroups

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    from bench.harness.engine.drive import Drive
    from harvester.engine.vllm.core import kv
    from harvester.engine.vllm.core.scheduler import HarvestScheduler

pytestmark = pytest.mark.engine
BLOCK, STATE_BLOCK = 16, 544  # tokens
SECTIONS = {"share": {"reserved_slots": 0, "reserved_kv": 0.0}, "schedule": {"reserve": "fixed"}}


def beside_a_chat(groups: int, free: int, window: int = 256, watermark: float = 0.0) -> Drive:
    """Rows and one chat run. Of 300 blocks for each group ``free`` ones are left; the rest is held."""
    windows = [window] * (groups - 1)
    drive = Drive(embedded_model(), HarvestScheduler, 300 * groups + 1, 64, BLOCK, SECTIONS, windows=windows, watermark=watermark)
    run_rows_and_a_chat(drive, 300, free)
    return drive


def run_rows_and_a_chat(drive: Drive, row_tokens: int, free: int) -> None:
    """Five rows with answers of ``row_tokens`` and a chat run; all other blocks but ``free`` ones are held."""
    for number in range(5):
        drive.add(f"row-{number}", 400, row_tokens, offline=True)
    drive.step()
    drive.add("A", 50, 1900, offline=False)
    for _ in range(3):
        drive.step()
    drive.scheduler.kv_cache_manager.block_pool.get_new_blocks(drive.free_blocks - free)


def steps_until_served(drive: Drive, name: str, most: int = 40) -> int:
    for steps in range(1, most):
        drive.step()
        if drive.requests[name].num_output_tokens:
            return steps
    return most


def preempted(drive: Drive) -> int:
    return sum(request.num_preemptions for request in drive.requests.values())


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_a_chat_gets_the_kv_of_all_groups_at_once(groups: int) -> None:
    drive = beside_a_chat(groups, free=45)
    rows = len(drive.running) - 1
    drive.add("B", 600, 5, offline=False)
    assert steps_until_served(drive, "B") == 1
    assert preempted(drive) == (0 if groups == 1 else 1 if groups == 2 else 2)
    assert len([name for name in drive.running if name.startswith("row")]) == rows - preempted(drive)


def test_a_chat_gets_the_kv_that_the_watermark_keeps_free_at_admission() -> None:
    drive = beside_a_chat(1, free=50, watermark=0.1)
    drive.add("B", 600, 5, offline=False)
    assert steps_until_served(drive, "B") == 1
    assert preempted(drive) == 1


@pytest.mark.parametrize("was_skipped", [False, True], ids=["new", "once-skipped"])
def test_a_chat_that_vllm_refuses_for_kv_that_nobody_counted_gets_that_of_rows(was_skipped: bool) -> None:
    """vLLM notes a chat that waited for its grammar or its adapter, and keeps the note until it runs."""
    drive = beside_a_chat(6, free=45)
    drive.scheduler._kv = KvGroups.one(BLOCK)
    drive.scheduler._ahead.clear()
    drive.add("B", 600, 5, offline=False)
    if was_skipped:
        drive.scheduler.deferred_waiting.add(drive.requests["B"])
    assert steps_until_served(drive, "B") <= 5
    assert preempted(drive) <= 3


@pytest.mark.parametrize("window", [64, 1024])
def test_the_blocks_that_a_request_holds_are_those_that_are_counted(window: int) -> None:
    drive = Drive(embedded_model(), HarvestScheduler, 2001, 8, BLOCK, SECTIONS, windows=[window] * 3, step_tokens=500)
    kv = drive.scheduler._kv
    drive.add("chat", 1100, 60, offline=False)
    while "chat" not in drive.finished:
        free = drive.free_blocks
        before = drive.requests["chat"].num_computed_tokens
        asked = kv.admitted(1100) if before == 0 else 0
        assert asked <= free
        tokens = drive.step().get("chat", 0)
        taken = 2000 - drive.free_blocks
        if "chat" not in drive.finished:
            assert kv.held(before + tokens) <= taken <= kv.held(before) + kv.step(before, before + tokens) + 3


@pytest.mark.parametrize("windows", [[], [1024] * 6], ids=["one", "seven"])
def test_an_engine_with_several_groups_tells_its_front_end_the_blocks_of_a_request(windows: list[int]) -> None:
    shared = SharedState.make()
    try:
        sections = {**SECTIONS, "shared_state": str(shared.path)}
        drive = Drive(embedded_model(), HarvestScheduler, 9001, 8, BLOCK, sections, windows=windows)
        assert shared.kv_tokens(1024) == (9000 * 1024 / drive.scheduler._kv.held(1024) if windows else None)
    finally:
        shared.remove()


def with_states(drafts: int) -> Drive:
    """Three groups with a recurrent state, one with attention, and blocks of 544 tokens, as in Qwen3-Next."""
    return Drive(embedded_model(), HarvestScheduler, 400, 64, STATE_BLOCK, SECTIONS, model_tokens=8000, states=[drafts] * 3, full_last=True)


@pytest.mark.parametrize("drafts", [0, 2])
@pytest.mark.parametrize("tokens", [100, 1000, 3000])
def test_the_blocks_that_a_recurrent_state_has_for_drafts_are_counted(tokens: int, drafts: int) -> None:
    drive = with_states(drafts)
    scheduler, counted = drive.scheduler, drive.scheduler._kv
    taken = scheduler.kv_cache_manager.coordinator.get_num_blocks_to_allocate
    blocks = tuple[list[object], ...]([] for _ in range(4))
    assert counted.admitted(tokens) == taken("x", tokens, blocks, 0, 0, 0, tokens, apply_admission_cap=True, prefill_end=tokens)
    drive.add("row", tokens, 600, offline=True)
    over = 0
    while "row" not in drive.finished:
        drive.step()
        if "row" not in drive.finished:
            held, computed = 399 - drive.free_blocks, drive.requests["row"].num_computed_tokens
            assert counted.held(computed) <= held <= counted.held(computed) + 3, "at a block's end each group keeps the last state too"
            over += held > counted.held(computed)
    assert over <= 600 // 100


def test_a_chat_gets_the_kv_for_its_drafts_at_once() -> None:
    drive = with_states(2)
    run_rows_and_a_chat(drive, 3000, free=5)
    drive.add("B", 100, 5, offline=False)
    assert steps_until_served(drive, "B") == 1
    assert preempted(drive) == 1


@pytest.mark.parametrize("drafts", [0, 2])
def test_the_reserve_learns_what_chats_take_beside_a_prompt_that_they_share_states_and_blocks_for_drafts_too(drafts: int) -> None:
    drive = with_states(drafts)
    drive.enter(drive.asked("A", list(range(10 * STATE_BLOCK + 100)), 500, offline=False))
    for _ in range(5):
        drive.step()
    taken = 0
    for number in range(60):
        free, first = drive.free_blocks, 100_000 + 1000 * number
        chat = drive.asked(f"B{number}", [*range(10 * STATE_BLOCK), *range(first, first + 560)], 1, offline=False)
        drive.enter(chat)
        computed = 0
        while not chat.num_output_tokens:
            output = drive.schedule()
            computed += output.num_scheduled_tokens.get(chat.request_id, 0)
            taken = free - drive.free_blocks
            drive.sent(output)
            drive.update(output)
    assert computed == 560, "its beginning is cached"
    brain, blocks = drive.scheduler._brain, drive.scheduler._kv.admitted(6000)
    cached = 3  # states at the end of the shared beginning, which nobody holds any more
    assert (blocks, taken) == (12 + 3 * (1 + drafts), 2 + cached + 3 * (1 + drafts))
    assert brain._shares.chat_own * blocks == pytest.approx(taken, abs=0.01)


def test_a_cached_state_that_nobody_holds_is_counted_beside_those_of_the_chat() -> None:
    drive = with_states(0)
    drive.enter(drive.asked("A", list(range(1100)), 1, offline=False))
    while "A" not in drive.finished:
        drive.step()
    for number in range(5):
        drive.add(f"row-{number}", 400, 3000, offline=True)
    drive.step()
    drive.scheduler.kv_cache_manager.block_pool.get_new_blocks(drive.free_blocks - 5)  # left: the two blocks and three states of A's prompt
    drive.enter(drive.asked("B", list(range(2300)), 5, offline=False))
    drive.step()
    assert drive.requests["B"].num_computed_tokens > 1088, "its beginning is cached"
    assert preempted(drive) == 2


def with_a_common_prompt(groups: int, answer_tokens: int) -> Drive:
    """Rows, and a chat whose prompt begins with that of `ask`; 45 blocks are free. The chat runs, or has ended if its answer is short."""
    drive = Drive(embedded_model(), HarvestScheduler, 400 * groups + 1, 64, BLOCK, SECTIONS, windows=[1024] * (groups - 1))
    for number in range(3):
        drive.add(f"row-{number}", 400, 300, offline=True)
    drive.step()
    ask(drive, "A", 5, answer_tokens)
    for _ in range(3):
        drive.step()
    drive.scheduler.kv_cache_manager.block_pool.get_new_blocks(drive.free_blocks - 45)
    return drive


def ask(drive: Drive, name: str, own: int, answer_tokens: int = 5) -> None:
    """A chat with a prompt of 640 common tokens and ``own`` ones."""
    first = 1_000_000 + 1000 * len(drive.requests)
    drive.enter(drive.asked(name, [*range(900_000, 900_640), *range(first, first + own)], answer_tokens, offline=False))


@pytest.mark.parametrize("groups", [1, 2])
def test_chats_that_share_the_prompt_of_a_running_one_take_no_row_its_kv(groups: int) -> None:
    drive = with_a_common_prompt(groups, 500)
    for name in "BCDE":
        ask(drive, name, 20)
    drive.step()
    assert all(drive.requests[name].num_output_tokens for name in "BCDE")
    assert preempted(drive) == 0


def test_a_cached_prompt_that_nobody_holds_is_counted_among_what_a_chat_takes() -> None:
    drive = with_a_common_prompt(1, 1)
    ask(drive, "B", 200)
    assert drive.step()["B"] == 200, "its beginning is cached"
    assert preempted(drive) == 1


@pytest.mark.parametrize(
    ("short_blocks", "max_found", "looked"),
    [(1000, 1024, 3), (1000, 41, 2), (41, 1024, 2), (40, 1024, 1)],
    ids=["all", "found", "enough", "one"],
)
def test_prompts_are_looked_up_until_enough_is_shared_or_much_is_found(
    monkeypatch: pytest.MonkeyPatch, short_blocks: int, max_found: int, looked: int
) -> None:
    """Each of the three prompts shares 40 blocks."""
    monkeypatch.setattr(kv, "MAX_FOUND", max_found)
    drive = with_a_common_prompt(1, 500)
    for name in "BCD":
        ask(drive, name, 20)
    scheduler = drive.scheduler
    whole = scheduler.waiting.seen()
    counted = kv.with_shared(whole, scheduler.requests, scheduler.kv_cache_manager, short_blocks)
    assert [before.blocks - after.blocks for before, after in zip(whole, counted, strict=True)] == [40] * looked + [0] * (3 - looked)
    assert whole.blocks - counted.blocks == 40 * looked
