"""What a key's job may copy, and how much of the disk stays free."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from connectors.errors import CopyTooLargeError, StorageError
from harvester.errors import LowDiskError
from harvester.serve.access.identity import Identity
from harvester.serve.http.jobs.intake import Intake, size_of
from harvester.serve.http.jobs.upload import receive
from harvester.serve.http.jobs.uploads_api import Uploads
from harvester.serve.refusals import answer_of
from jobs.access.limits import Limits
from jobs.batches.files import FileStore
from jobs.config import HarvestConfig
from jobs.plan.planner import JobPlanner
from jobs.spec import JobRequest, SourceSpec
from jobs.storage.folder import StateFolder
from jobs.tasks.abilities import Abilities
from jobs.testing import ManualClock
from tests.fakes.scripted_job import harvest, opened, planned

HUGE = 1 << 60


def planner(tmp_path: Path, **harvest: int) -> JobPlanner:
    folder = StateFolder(tmp_path / "state")
    folder.prepare()
    return JobPlanner(folder, HarvestConfig(**harvest), "tiny")


def request(tmp_path: Path) -> JobRequest:
    path = tmp_path / "docs.jsonl"
    path.write_text((json.dumps({"text": "a" * 99}) + "\n") * 100)
    return JobRequest(source=SourceSpec(uri=str(path)), task="summarize")


def test_a_job_that_copies_more_than_its_key_may_is_413_and_leaves_nothing(tmp_path: Path) -> None:
    plans = planner(tmp_path)
    plans.plan(request(tmp_path), Abilities(context_tokens=4096), limits=Limits(max_copied_bytes=20_000), is_user=True)
    before = sorted(plans.folder.jobs.iterdir())
    with pytest.raises(CopyTooLargeError, match="more than 5,000 bytes") as refused:
        plans.plan(request(tmp_path), Abilities(context_tokens=4096), limits=Limits(max_copied_bytes=5_000), is_user=True)
    assert answer_of(refused.value).status_code == 413
    assert sorted(plans.folder.jobs.iterdir()) == before


def test_a_job_is_refused_while_the_disk_has_less_free_than_is_kept(tmp_path: Path) -> None:
    plans = planner(tmp_path, min_free_bytes=HUGE)
    with pytest.raises(LowDiskError, match=r"harvest\.min_free_bytes") as refused:
        plans.plan(request(tmp_path), Abilities(context_tokens=4096), is_user=True)
    answer = answer_of(refused.value)
    assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
    assert list(plans.folder.jobs.iterdir()) == []


@pytest.mark.parametrize("sent_to", ["uploads", "files"])
async def test_a_file_is_received_only_as_long_as_enough_of_the_disk_stays_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent_to: str
) -> None:
    monkeypatch.setattr("harvester.serve.http.jobs.intake.CHECK_BYTES", 64)
    free = [200]
    monkeypatch.setattr("jobs.storage.folder.shutil.disk_usage", lambda path: SimpleNamespace(free=free[0]))
    folder, who = StateFolder(tmp_path), Identity("ann", frozenset())

    async def body() -> AsyncIterator[bytes]:
        yield b'--B\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + b"1" * 64
        free[0] = 99
        yield b"1" * 63
        yield b"1"
        raise AssertionError("read on, though the disk is nearly full")

    async def send() -> None:
        if sent_to == "uploads":
            uploads = Uploads(folder, min_free_bytes=100)
            await uploads.append(uploads.path("ab" * 32, "a.csv", who), 0, body(), None, is_last=True, who=who)
        else:
            async with Intake(FileStore(tmp_path, ManualClock()), folder, 100).receiving(who, tmp_path / "file") as receipt:
                await receive(body(), b"B", receipt, None)

    with pytest.raises(LowDiskError, match="99 bytes free"):
        await send()


def test_a_file_whose_size_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert size_of(tmp_path / "none") == size_of(tmp_path / "none" / "a") == 0
    path = tmp_path / ("a" * 300)
    with pytest.raises(StorageError, match=f"^cannot read {path}: "):
        size_of(path)


async def test_a_job_stands_still_with_one_line_while_the_disk_is_low_and_goes_on_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.run.runner.STORAGE_WAIT_S", 0.01)
    free = [0]
    monkeypatch.setattr("jobs.storage.folder.shutil.disk_usage", lambda path: SimpleNamespace(free=free[0]))
    clock, folder = ManualClock(), StateFolder(tmp_path / "state")
    folder.prepare()
    with_ledger = opened(folder.ledger, folder, clock)
    plan = planned(tmp_path, 3, clock)
    with_ledger.submit(plan, new=True)
    work = asyncio.create_task(harvest(with_ledger, folder, clock))
    while not (with_ledger.show(plan.spec.id).message or "").startswith("the disk of"):  # noqa: ASYNC110 - the ledger has no event
        await asyncio.sleep(0.01)
    assert with_ledger.show(plan.spec.id).rows_ok == 0
    free[0] = 1 << 40
    await work
    assert with_ledger.show(plan.spec.id).rows_ok == 24
    with_ledger.close()
