"""The scheduler as a GPU has it: vLLM's second model runner with its slots, two steps in flight, and drafts."""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from harvester.config import parse_config
from harvester.engine.checkpoints.budget import transfer_config
from harvester.engine.embedded.folder import embedded_model
from harvester.engine.shared.settings import pack
from harvester.model_config import CheckpointConfig

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    from vllm.config import ParallelConfig, SpeculativeConfig, VllmConfig
    from vllm.v1.outputs import DraftTokenIds

    from bench.harness.engine import drive as driving
    from bench.harness.engine.drive import WORD, Drive
    from harvester.engine.vllm.core import scheduler
    from harvester.engine.vllm.core.scheduler import AsyncHarvestScheduler, HarvestScheduler
    from harvester.engine.vllm.platform import keeps_slots

pytestmark = pytest.mark.engine
SLOTS, CHATS, ROWS, DRAFTS = 4, 7, 60, 3


def drive_of(order: str) -> Drive:
    config = parse_config({"schedule": {"online_order": order, "safepoints": "off"}}, "test")
    return Drive(embedded_model(), AsyncHarvestScheduler, 4000, SLOTS, 16, pack(config))


def held_at_most(drive: Drive) -> int:
    """Most requests that a worker holds at once: from their first step until it is told that they end or lose their KV."""
    held, most, came = set[str](), 0, 0
    flying: deque[tuple[Any, Any]] = deque()
    for number in range(600):
        if came < CHATS and number % 2 == 0:
            drive.add(f"chat-{came}", 40, 60, offline=False, arrived_s=time.time())
            came += 1
        output = drive.schedule()
        held -= {*output.finished_req_ids, *(output.preempted_req_ids or ())}
        held |= {new.req_id for new in output.scheduled_new_reqs} | set(output.scheduled_cached_reqs.req_ids)
        most = max(most, len(held))
        if output.total_num_scheduled_tokens:
            drive.sent(output)
        flying.append((output, drive.output(output)))
        if len(flying) == 2:
            drive.take(*flying.popleft())
        if len(drive.finished) == CHATS:
            break
    assert len(drive.finished) == CHATS, "each is answered"
    return most


@pytest.mark.parametrize("order", ["mlfq", "sjf", "fcfs", "edf"])
def test_no_more_requests_hold_kv_than_the_runner_has_slots(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "keeps_slots", lambda config: True)  # VllmConfig refuses the second runner where Triton is missing
    drive = drive_of(order)
    drive.scheduler.use_v2_model_runner = True
    assert held_at_most(drive) == SLOTS


def test_the_first_runner_has_room_for_those_that_sit_out() -> None:
    drive = drive_of("mlfq")
    assert not keeps_slots(drive.config)
    assert held_at_most(drive) > SLOTS


@pytest.mark.parametrize(("cpu", "defers"), [(True, True), (False, False)], ids=["copies of a thread", "copies of a device"])
def test_kv_that_was_taken_is_free_in_the_same_step_where_a_device_orders_its_copies(
    cpu: bool, defers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VllmConfig, "max_concurrent_batches", 2)
    monkeypatch.setattr(scheduler, "on_cpu", lambda: cpu)
    transfer = transfer_config(CheckpointConfig(enabled=True, host_gib=0.05), 1)
    drive = Drive(embedded_model(), AsyncHarvestScheduler, 60, 16, 16, pack(parse_config({}, "test")), transfer=transfer)
    assert drive.scheduler.defer_block_free == defers


@pytest.fixture(params=[0, DRAFTS], ids=["without drafts", "with drafts"])
def drafts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    def with_drafts(**given: Any) -> VllmConfig:
        target = {"target_model_config": given["model_config"], "target_parallel_config": ParallelConfig()}
        drafted = SpeculativeConfig(method="ngram", num_speculative_tokens=DRAFTS, prompt_lookup_max=DRAFTS, **target)
        return VllmConfig(**given, speculative_config=drafted)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if request.param:
            monkeypatch.setattr(driving, "VllmConfig", with_drafts)
        yield request.param


def test_rows_that_decode_with_drafts_run_beside_chat(drafts: int) -> None:
    config = parse_config({"slo": {"ttft_slo_ms": 60_000.0, "tpot_slo_ms": 60_000.0}}, "test")
    drive = Drive(embedded_model(), HarvestScheduler, 8000, 128, 16, pack(config))

    def step() -> set[str]:
        output = drive.schedule()
        drive.sent(output)
        drive.update(output)
        if drafts:
            names = list(output.num_scheduled_tokens)
            drive.scheduler.update_draft_token_ids(DraftTokenIds(names, [[WORD] * drafts for _ in names]))
        return set(output.num_scheduled_tokens)

    for number in range(ROWS):
        drive.add(f"row-{number}", 60, 900, offline=True, arrived_s=time.time())
    for _ in range(150):
        step()
    drive.add("chat", 50, 300, offline=False, arrived_s=time.time())
    beside = [len(names) - 1 for names in (step() for _ in range(40)) if "chat" in names]
    assert max(beside[10:]) == ROWS, "an SLO of a minute leaves room for all"
