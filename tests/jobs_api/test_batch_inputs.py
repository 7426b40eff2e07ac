"""The rows that a batch's input was made into: kept while they may be needed, and gone once the client has let the batch go."""

from __future__ import annotations

import asyncio
import io
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from openai.types import Batch

from harvester.serve.http.jobs.removal import DAY_S, remove_old, removed
from jobs.batches.input import InputReader
from jobs.batches.line import LineRules
from jobs.batches.plan import BatchPlanner
from jobs.batches.record import BatchRecord, BatchWish
from jobs.batches.states import BatchStatus
from jobs.config import BatchConfig
from jobs.engine import ApiCall
from jobs.errors import StateError
from jobs.storage.mirror import Mirror
from jobs.testing import DirectLedger, Refused, last_content
from tests.fakes.bureau import ENDED, MODEL, Bureau, going, jsonl, line

LINES = [line(i) for i in range(8)]


def rows(bureau: Bureau, batch: Batch) -> Path:
    return bureau.folder.snapshot(batch.id) / "requests.parquet"


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it does not come to pass")


async def has_rows(bureau: Bureau, batch: Batch) -> bool:
    await bureau.controller.tidy()
    return rows(bureau, batch).exists()


async def delete(bureau: Bureau, *file_ids: str | None) -> None:
    for file_id in file_ids:
        await bureau.api.files.delete(file_id or "")


async def test_rows_stay_while_input_and_output_are_there(bureau: Bureau) -> None:
    batch = await bureau.ended(LINES, output_expires_after={"anchor": "created_at", "seconds": 7200})
    bureau.clock.advance(7100.0)
    assert await has_rows(bureau, batch)


async def test_rows_go_with_the_input_file_and_what_was_made_of_them_stays(bureau: Bureau) -> None:
    batch = await bureau.ended(LINES)
    await delete(bureau, batch.input_file_id)
    assert not await has_rows(bureau, batch)
    assert not bureau.folder.snapshot(batch.id).exists()
    assert len(await bureau.lines(batch.output_file_id)) == 8
    assert list(bureau.folder.results(batch.id).glob("part-*.parquet"))
    assert (await bureau.api.batches.retrieve(batch.id)).status == "completed"


async def test_a_batchs_job_is_removed_once_its_client_has_let_the_batch_go(bureau: Bureau) -> None:
    batch = await bureau.ended(LINES)
    client, view = DirectLedger(bureau.ledger, bureau.clock), bureau.ledger.show(batch.id)
    with pytest.raises(StateError, match=f"job {batch.id} is of a batch; delete its files first"):
        await removed(client, bureau.folder, view)
    bureau.clock.advance(2 * DAY_S)
    assert await remove_old(client, bureau.folder, 1.0, bureau.clock()) == []
    await delete(bureau, batch.input_file_id)
    assert not await has_rows(bureau, batch)
    assert [gone.id for gone in await remove_old(client, bureau.folder, 1.0, bureau.clock())] == [batch.id]
    assert not (bureau.folder.jobs / batch.id).exists()
    await bureau.controller.tidy()
    assert (await bureau.api.batches.retrieve(batch.id)).status == "completed"
    assert len(await bureau.lines(batch.output_file_id)) == 8


async def test_rows_go_when_the_input_file_has_expired(bureau: Bureau) -> None:
    file_id = await bureau.upload(LINES, expires_after={"anchor": "created_at", "seconds": 3600})
    batch = await bureau.api.batches.create(input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h")
    batch = await bureau.until(batch.id, ENDED)
    assert await has_rows(bureau, batch)
    bureau.clock.advance(3601.0)
    assert not await has_rows(bureau, batch)


async def test_rows_go_when_the_output_has_expired(bureau: Bureau) -> None:
    batch = await bureau.ended(LINES, output_expires_after={"anchor": "created_at", "seconds": 7200})
    bureau.clock.advance(7201.0)
    assert not await has_rows(bureau, batch)
    assert (await bureau.api.files.retrieve(batch.input_file_id)).id == batch.input_file_id


def first_refused(request: ApiCall) -> str:
    content = last_content(request)
    if content == "say 0":
        raise Refused(400, "no")
    return content


@pytest.mark.parametrize("reply", [first_refused], ids=["one refused"])
async def test_rows_stay_until_the_last_of_two_files_is_gone(bureau: Bureau) -> None:
    batch = await bureau.ended(LINES)
    await delete(bureau, batch.output_file_id)
    assert await has_rows(bureau, batch)
    await delete(bureau, batch.error_file_id)
    assert not await has_rows(bureau, batch)


async def test_rows_of_a_batch_that_goes_on_stay_without_their_input_file(idle_bureau: Bureau) -> None:
    batch = await idle_bureau.until((await idle_bureau.create(LINES)).id, {"in_progress"})
    await delete(idle_bureau, batch.input_file_id)
    assert await has_rows(idle_bureau, batch)
    async with going(idle_bureau.runner().run()):
        done = await idle_bureau.until(batch.id, ENDED)
    assert (done.status, len(await idle_bureau.lines(done.output_file_id))) == ("completed", 8)
    assert not await has_rows(idle_bureau, done)


async def test_rows_of_an_ended_batch_whose_job_goes_on_stay_until_it_has_ended(idle_bureau: Bureau) -> None:
    batch = await idle_bureau.until((await idle_bureau.create(LINES)).id, {"in_progress"})
    await idle_bureau.api.batches.cancel(batch.id)
    await idle_bureau.until(batch.id, {"cancelled"})
    await delete(idle_bureau, batch.input_file_id)
    idle_bureau.ledger.resume(batch.id, idle_bureau.clock())
    assert await has_rows(idle_bureau, batch)
    idle_bureau.ledger.cancel(batch.id, idle_bureau.clock())
    assert not await has_rows(idle_bureau, batch)
    assert not (idle_bureau.folder.jobs / batch.id).exists(), "no row was run, so that nothing is left"


async def test_rows_without_a_job_go(tmp_path: Path) -> None:
    """Cancelled after its input was read and before its job was entered; and one whose ledger was lost."""
    bureau = Bureau(tmp_path, BatchConfig(), last_content)
    async with bureau.http:
        wish = BatchWish(input_file_id=await bureau.upload(LINES), endpoint="/v1/chat/completions", completion_window="24h")
        for status in (BatchStatus.CANCELLED, BatchStatus.FAILED):
            made = await bureau.controller.create(wish)
            record = bureau.controller._store.get(made["id"])
            BatchPlanner(bureau.folder, bureau.files, BatchConfig(), bureau.runner().config, "scripted").plan(
                record, ["scripted"], lambda: False
            )
            assert bureau.folder.snapshot(record.id).exists()
            bureau.controller._store.put(record.reach(status, bureau.clock()))
            await bureau.controller.tidy()
            assert not (bureau.folder.jobs / record.id).exists()
    bureau.ledger.close()


async def test_a_keeper_tidies_by_itself(tmp_path: Path) -> None:
    bureau = Bureau(tmp_path, BatchConfig(), last_content)
    bureau.controller._tidy_s = 0.01
    async with bureau.http, going(bureau.controller.run(), bureau.runner().run()):
        batch = await bureau.ended(LINES)
        assert rows(bureau, batch).exists()
        await delete(bureau, batch.input_file_id)
        await until(lambda: not rows(bureau, batch).exists())
        assert not bureau.folder.snapshot(batch.id).exists()
    bureau.ledger.close()


async def test_a_job_whose_rows_are_gone_fails_with_the_reason_when_it_is_resumed(idle_bureau: Bureau) -> None:
    batch = await idle_bureau.until((await idle_bureau.create(LINES)).id, {"in_progress"})
    await idle_bureau.api.batches.cancel(batch.id)
    await idle_bureau.until(batch.id, {"cancelled"})
    await delete(idle_bureau, batch.input_file_id)
    assert not await has_rows(idle_bureau, batch)
    idle_bureau.ledger.resume(batch.id, idle_bureau.clock())
    async with going(idle_bureau.runner().run()):
        await until(lambda: idle_bureau.ledger.show(batch.id).state == "failed")
    message = f"the requests of batch {batch.id} were removed when its files were; make a new batch of them"
    assert idle_bureau.ledger.show(batch.id).message == message


def test_reading_lets_the_threads_that_answer_have_their_turn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now_ms, rests = itertools.count(), list[float]()
    clock = SimpleNamespace(monotonic=lambda: next(now_ms) / 1e3, sleep=rests.append)
    monkeypatch.setattr("jobs.batches.input.time", clock)
    reader = InputReader(LineRules("/v1/chat/completions", [MODEL]), BatchConfig())
    reader.write(io.BytesIO(jsonl([line(i) for i in range(8)])), tmp_path / "rows.parquet", "file-1")
    assert (reader.rows, len(rests)) == (8, 8)


async def test_a_change_of_a_batch_waits_for_one_whose_client_hung_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bureau, begun, go_on = Bureau(tmp_path, BatchConfig(), last_content), threading.Event(), threading.Event()
    async with bureau.http:
        batch = await bureau.create(LINES)
        put = bureau.controller._store.put

        def slow(record: BatchRecord) -> None:
            begun.set()
            assert go_on.wait(20.0)
            put(record)

        monkeypatch.setattr(bureau.controller._store, "put", slow)
        asking = asyncio.create_task(bureau.api.batches.cancel(batch.id))
        await until(begun.is_set)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        changing = asyncio.create_task(bureau.controller._change(batch.id, model="other"))
        for _ in range(100):
            await asyncio.sleep(0)
        go_on.set()
        await changing
        await until(lambda: bureau.controller.records()[0].status is BatchStatus.CANCELLING)
        assert bureau.controller.records()[0].model == "other"
    bureau.ledger.close()


class CountingStorage(Mirror):
    """Counts what it is asked."""

    asked = 0

    @contextmanager
    def _mapped(self, doing: str, path: Path) -> Iterator[None]:
        self.asked += 1
        with super()._mapped(doing, path):
            yield


@pytest.mark.parametrize("has_let_go", [True, False], ids=["let go", "kept"])
async def test_ended_batches_cost_a_storage_no_requests_for_ever(tmp_path: Path, has_let_go: bool) -> None:
    mirror = CountingStorage(tmp_path / "state", str(tmp_path / "shared"))
    bureau = Bureau(tmp_path, BatchConfig(), last_content, mirror)
    asked = list[int]()
    async with bureau.http:
        async with going(bureau.controller.run(), bureau.runner().run()):
            batches = [await bureau.ended(LINES) for _ in range(3)]
        if has_let_go:
            await delete(bureau, *(batch.input_file_id for batch in batches))
        for _ in range(3):
            before = mirror.asked
            await bureau.controller.tidy()
            asked.append(mirror.asked - before)
    assert [rows(bureau, batch).exists() for batch in batches] == [not has_let_go] * 3
    assert asked[1:] == ([0, 0] if has_let_go else [1, 1]), "one list of all files, while there is a batch to let go"
    bureau.ledger.close()
