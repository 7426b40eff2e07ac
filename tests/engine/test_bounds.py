"""What vLLM limits besides tokens and KV, where requests are paused and steps are cut: adapters, images, blocks of ended requests."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harvester.config import parse_config
from harvester.engine.embedded.folder import embedded_model
from harvester.engine.shared.settings import pack
from harvester.engine.shared.state import Field, SharedState
from harvester.engine.shared.steporder import ENDED_EARLY
from harvester.policy.ran import StepRan

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    from vllm.lora.request import LoRARequest
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
    from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
    from vllm.v1.request import RequestStatus

    from bench.harness.engine.drive import Drive
    from harvester.engine.vllm.core.scheduler import AsyncHarvestScheduler, HarvestScheduler

pytestmark = pytest.mark.engine
FIXED = {"budget": "fixed", "reserve": "fixed", "online_order": "fcfs"}


def drive_of(kind: type = HarvestScheduler, step_tokens: int = 256, shared: Path | None = None, **share: int) -> Drive:
    config = parse_config({"schedule": FIXED, "share": {"offline_step_tokens": 64, **share}}, "test")
    return Drive(embedded_model(), kind, 1000, 8, 16, pack(config, shared), step_tokens=step_tokens)


def until_ended(drive: Drive, names: set[str], most: int = 400) -> None:
    for _ in range(most):
        if names <= drive.finished.keys():
            return
        drive.step()
    pytest.fail(f"no end: {names - drive.finished.keys()}")


# -- adapters -----------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def adapted() -> Drive:
    """One adapter at a time; the adapter of a request is the last letter of its name, ``-`` is none."""
    drive = drive_of()
    drive.scheduler.lora_config = SimpleNamespace(max_loras=1)
    return drive


def ask(drive: Drive, name: str, prompt_tokens: int, max_tokens: int, offline: bool) -> None:
    request = drive.made(name, prompt_tokens, max_tokens, offline=offline)
    if not name.endswith("-"):
        request.lora_request = LoRARequest(name[-1], ord(name[-1]), "/nowhere")
    drive.enter(request)


@pytest.mark.parametrize("prompt_tokens", [1500, 20], ids=["prompt", "answer"])
def test_a_chat_on_another_adapter_takes_the_place_of_rows_that_are_paused(adapted: Drive, prompt_tokens: int) -> None:
    ask(adapted, "row-a", prompt_tokens, 300, offline=True)
    adapted.step()
    adapted.step()
    ask(adapted, "chat-b", 40, 5, offline=False)
    adapted.step()
    assert adapted.requests["chat-b"].num_output_tokens == 1, "it does not wait for the end of a row"
    until_ended(adapted, {"chat-b", "row-a"})


def test_what_rows_compute_again_after_a_chat_on_another_adapter_is_not_put_down_to_admission(adapted: Drive) -> None:
    admission, again = adapted.scheduler._brain.parts.admission, list[int]()
    ran = admission.ran
    admission.ran = lambda computed, recomputed: again.append(recomputed) or ran(computed, recomputed)
    ask(adapted, "row-a", 410, 20, offline=True)
    for _ in range(4):
        adapted.step()
    ask(adapted, "chat-b", 40, 5, offline=False)
    until_ended(adapted, {"chat-b", "row-a"})
    assert adapted.requests["row-a"].num_preemptions == 1
    assert sum(again) == 0


def test_an_adapter_that_chat_has_is_waited_for_and_the_others_go_on(adapted: Drive) -> None:
    ask(adapted, "chat-a", 40, 30, offline=False)
    adapted.step()
    for name, offline in (("chat-b", False), ("row-a", True), ("row-b", True), ("row-", True), ("chat-", False)):
        ask(adapted, name, 40, 5, offline=offline)
    for _ in range(4):
        tokens = adapted.step()
        assert {name[-1] for name in tokens} <= {"a", "-"}
    assert adapted.requests["chat-"].num_output_tokens
    assert adapted.requests["chat-a"].num_preemptions == 0
    until_ended(adapted, {"chat-a", "chat-b", "chat-", "row-a", "row-b", "row-"})


def test_rows_are_admitted_while_a_chat_waits_for_the_adapter_of_another() -> None:
    drive = drive_of(reserved_slots=0, reserved_kv=0)
    drive.scheduler.lora_config = SimpleNamespace(max_loras=1)
    ask(drive, "chat-a", 40, 12, offline=False)
    drive.step()
    ask(drive, "chat-b", 40, 5, offline=False)
    ask(drive, "row-", 40, 30, offline=True)
    for _ in range(4):
        drive.step()
    assert drive.requests["row-"].num_output_tokens
    until_ended(drive, {"chat-a"})
    assert drive.step()["chat-b"] == 40
    until_ended(drive, {"chat-b", "row-"})


def test_rows_whose_adapter_has_no_place_keep_no_others_out_and_get_their_turn() -> None:
    drive = drive_of(reserved_slots=0, reserved_kv=0)
    drive.scheduler.lora_config = SimpleNamespace(max_loras=1)
    names = [f"{job}{number}-{adapter}" for job, adapter, count in (("one", "a", 80), ("two", "b", 4)) for number in range(count)]
    for number, name in enumerate(names):
        request = drive.asked(name, [1000 * number + token for token in range(40)], 20 + 3 * (number % 8), offline=True, job=name[:3])
        request.lora_request = LoRARequest(name[-1], ord(name[-1]), "/nowhere")
        drive.enter(request)
    drive.step()
    for _ in range(60):
        assert len(drive.step()) == 8, "a row that ends is followed by the next one of its job"
    until_ended(drive, set(names), most=1500)
    ends = list(drive.finished)
    assert max(ends.index(name) for name in names if name[-1] == "b") < len(ends) - 1, "they did not wait for the end of the other job"


# -- images -------------------------------------------------------------------------------------------------------------------------


def show(drive: Drive, name: str, prompt_tokens: int, at: int, length: int, offline: bool) -> None:
    request = drive.made(name, prompt_tokens, 5, offline=offline)
    request.mm_features = [MultiModalFeatureSpec(None, "image", name, PlaceholderRange(at, length))]
    drive.enter(request)


def test_a_row_that_is_paused_in_its_image_does_not_keep_the_cache_from_a_chat() -> None:
    drive = drive_of(step_tokens=64, offline_step_tokens=64)
    drive.scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=200)
    drive.scheduler.max_num_encoder_input_tokens = 200
    show(drive, "row", 400, 10, 180, offline=True)
    drive.step()
    drive.step()
    assert 10 < drive.requests["row"].num_computed_tokens < 190
    show(drive, "chat", 600, 10, 180, offline=False)
    until_ended(drive, {"chat"}, most=30)
    assert drive.requests["row"].num_preemptions == 1
    until_ended(drive, {"row"})


def test_chats_whose_images_do_not_fit_beside_each_other_cost_no_row_its_kv() -> None:
    drive = drive_of(step_tokens=64)
    drive.scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=200)
    drive.scheduler.max_num_encoder_input_tokens = 200
    drive.add("row", 20, 100, offline=True)
    drive.step()
    for name in ("one", "two"):
        show(drive, name, 300, 10, 180, offline=False)
    until_ended(drive, {"one", "two"})
    assert drive.requests["row"].num_preemptions == 0


@pytest.mark.parametrize("whole", [True, False])
def test_an_image_that_the_model_sees_whole_is_computed_in_one_step(whole: bool) -> None:
    drive = drive_of(step_tokens=512)
    drive.scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=400)
    drive.scheduler.max_num_encoder_input_tokens = 400
    drive.scheduler.scheduler_config.disable_chunked_mm_input = whole
    drive.add("chat", 20, 60, offline=False)
    drive.step()
    show(drive, "row", 400, 90, 200, offline=True)
    seen = set[int]()
    for _ in range(60):
        drive.step()
        seen.add(drive.requests["row"].num_computed_tokens)
    assert any(90 < computed < 290 for computed in seen) is not whole
    until_ended(drive, {"row", "chat"})


# -- grammars -----------------------------------------------------------------------------------------------------------------------


def answer_by_grammar(drive: Drive, name: str) -> Any:
    """Enter a chat that waits for its grammar; it is ready once ``grammar`` of the returned object is set."""
    asked: Any = SimpleNamespace(grammar=None)
    chat = drive.made(name, 40, 5, offline=False)
    chat.status, chat.structured_output_request = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR, asked
    drive.enter(chat)
    return asked


def test_rows_go_on_while_the_grammar_of_a_chat_is_made() -> None:
    drive = drive_of(reserved_slots=0, reserved_kv=0)
    for number in range(4):
        drive.add(f"row-{number}", 20, 200, offline=True)
    drive.step()
    asked = answer_by_grammar(drive, "chat")
    drive.add("another", 20, 200, offline=True)
    for _ in range(5):
        assert len(drive.step()) == 5
    assert not any(drive.requests[f"row-{number}"].num_preemptions for number in range(4))
    asked.grammar = SimpleNamespace()
    assert drive.schedule().num_scheduled_tokens["chat"] == 40


def test_a_chat_whose_grammar_is_made_takes_no_row_its_kv_where_nothing_runs() -> None:
    drive = drive_of(step_tokens=64)
    drive.add("row", 600, 5, offline=True)
    drive.step()
    answer_by_grammar(drive, "chat")
    for _ in range(5):
        assert drive.step() == {"row": 64}
    assert drive.requests["row"].num_preemptions == 0


# -- requests that go between a step and its masks ------------------------------------------------------------------------------------


@pytest.fixture
def shared() -> Iterator[SharedState]:
    made = SharedState.make()
    made[Field.PLACES] = 4
    yield made
    made.remove()


def test_blocks_of_a_request_that_goes_before_masks_are_asked_for_are_forgotten_where_the_step_ends_early(shared: SharedState) -> None:
    """With grammars and two steps in flight vLLM handles aborts before it asks for the masks of the step that the workers have."""
    drive = drive_of(AsyncHarvestScheduler, shared=shared.path)
    prompt = list(range(1000, 1200))
    drive.enter(drive.asked("gone", prompt, 5, offline=True))
    output = drive.schedule()
    assert output.num_scheduled_tokens["gone"] == 200
    drive.scheduler.finish_requests("gone", RequestStatus.FINISHED_ABORTED)
    result = drive.output(output)
    result.sampled_token_ids = []
    setattr(result, ENDED_EARLY, True)
    drive.take(output, result)
    drive.enter(drive.asked("again", prompt, 5, offline=True))
    output = drive.schedule()
    assert output.num_scheduled_tokens["again"] == 200, "nothing of its prompt has been computed"


# -- KV that ends in the middle of a step ---------------------------------------------------------------------------------------------


def test_who_loses_kv_in_the_middle_of_a_step_leaves_no_block_that_nobody_wrote() -> None:
    tokens = 16
    sections = {"share": {"reserved_slots": 0, "reserved_kv": 0.0}, "schedule": {"reserve": "fixed"}}
    drive = Drive(embedded_model(), HarvestScheduler, 80, 8, tokens, sections, model_tokens=512, step_tokens=162)
    scheduler, pool = drive.scheduler, drive.scheduler.kv_cache_manager.block_pool
    prefix = list(range(4 * tokens))  # shared by two rows: either frees fewer blocks than it holds
    for name, own, at_s in (("C", 500, 1.0), ("V", 600, 2.0)):
        asked = prefix + [own + number for number in range(14 if name == "C" else 10)]
        drive.enter(drive.asked(name, asked, 100, offline=True, arrived_s=at_s, job="y"))
        drive.step()
    late = drive.asked("A", [1000 + number for number in range(12 * tokens)], 100, offline=True, arrived_s=3.0, job="x")
    drive.enter(late)
    drive.step()
    scheduler.running.sort(key=lambda request: "ACV".index(request.request_id))  # A is of another job: admitted first though it came last
    scheduler._ahead.clear()
    held = pool.get_new_blocks(drive.free_blocks - 1)
    computed = late.num_computed_tokens
    output = drive.schedule()
    drive.sent(output)
    drive.update(output)
    pool.free_blocks(held)
    assert late.request_id in output.num_scheduled_tokens or scheduler.kv_cache_manager.get_computed_blocks(late)[1] <= computed


@pytest.mark.parametrize(
    ("windows", "full_last"), [((), False), ((128,), False), ((128,), True)], ids=["one", "full-first", "window-first"]
)
def test_what_a_chat_shares_with_requests_that_run_is_known_and_what_only_the_cache_holds_is_not_shared(
    windows: tuple[int, ...], full_last: bool
) -> None:
    tokens, sections = 16, pack(parse_config({}, "test"), None)
    drive = Drive(embedded_model(), HarvestScheduler, 1200, 24, tokens, sections, model_tokens=1024, windows=windows, full_last=full_last)
    template, brain, shared = list(range(20 * tokens)), drive.scheduler._brain, list[int]()
    observe = brain.observe

    def watched(ran: StepRan, seconds: float, now_s: float) -> None:
        shared.append(ran.chat_blocks - ran.chat_taken_blocks)
        observe(ran, seconds, now_s)

    brain.observe = watched

    def ask(name: str, own: int, max_tokens: int) -> None:
        drive.enter(drive.asked(name, template + [own + number for number in range(40)], max_tokens, offline=False))

    ask("first", 1000, 4)
    until_ended(drive, {"first"})
    ask("later", 2000, 99)
    drive.step()
    ask("beside", 3000, 4)
    until_ended(drive, {"beside"})
    groups = 1 + len(windows)
    lost = 2 * len(windows)  # blocks of the template that the running chat's window has left
    assert [count for count in shared if count] == [20 * groups - lost]
    ask("a", 4000, 4)
    ask("b", 5000, 4)
    until_ended(drive, {"a", "b"})
    assert sum(shared) == (1 + 2) * (20 * groups - lost), "of both at once"


@pytest.mark.parametrize("shared", [0, 30])
def test_a_chat_gets_the_kv_of_rows_that_share_theirs_at_once(shared: int) -> None:
    tokens = 16
    sections = {"share": {"reserved_slots": 0, "reserved_kv": 0.0}, "schedule": {"reserve": "fixed"}}
    drive = Drive(embedded_model(), HarvestScheduler, 1200, 24, tokens, sections, model_tokens=1024, step_tokens=2048)
    for row in range(16):
        template = list(range(shared * tokens)) if shared else [10_000 * row + number for number in range(30 * tokens)]
        own = [5000 + 100 * row + number for number in range(8)]
        drive.enter(drive.asked(f"r{row}", template + own, 300, offline=True, job="j"))
        drive.step()
    drive.scheduler.kv_cache_manager.block_pool.get_new_blocks(drive.free_blocks - 4)  # held by others
    chat = drive.asked("chat", [900_000 + number for number in range(20 * tokens)], 8, offline=False)
    drive.enter(chat)
    steps = 0
    while not chat.num_output_tokens and steps < 60:
        drive.step()
        steps += 1
    assert steps <= 2
    rows = sum(name.startswith("r") for name in drive.running)
    assert rows >= (0 if shared else 14), "no more give way than must"
