"""The harvest loop: every row ends exactly once, whatever dies, fills up or changes its mind beside it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.memory import MemorySink
from connectors.open import open_source
from connectors.parquet.parts import PartsSink
from harvester.errors import SourceAwayError, SourceError, StorageError
from jobs.engine import EngineGone, Prompt, RowError, RowRequest
from jobs.plan.job import plan_job
from jobs.run import runner as runner_module
from jobs.run.active import ActiveSlice
from jobs.run.row_return import RowReturn
from jobs.run.slice import READERS, open_slice
from jobs.run.spool.records import Spool
from jobs.spec import JobRequest, JobSpec, Lease, LeaseProgress, PartStats, SourceSpec
from jobs.states import JobState
from jobs.tasks.spec import AnswerKind
from jobs.testing import DirectLedger, ScriptedEngine, last_line
from tests.fakes.harvest_world import HARVEST, LEASE_S, PATIENCE_S, World, harvest, until
from tests.fakes.lost_ledger import LostLedger, at_work
from tests.fakes.scripted_ledger import spec_of


def lost_ledger(world: World) -> LostLedger:
    return LostLedger(world.ledger, world.clock)


# -- rows ---------------------------------------------------------------------------------------------------------------------------


async def test_every_row_ends_exactly_once(world: World) -> None:
    world.submit(50)
    engine = ScriptedEngine(concurrency=8)
    view = await harvest(world, engine)
    results = world.results()
    assert results["row_id"].to_pylist() == list(range(50))
    assert results["output"].to_pylist() == [f"row {i}" for i in range(50)]
    assert results["number"].to_pylist() == list(range(50))
    assert set(results["status"].to_pylist()) == {"ok"}
    assert (view.state, view.rows_ok, view.rows_error, view.rows_recomputed) == (JobState.COMPLETED, 50, 0, 0)
    assert engine.calls == 50


async def test_tokens_of_the_rows_are_tokens_of_the_job(world: World) -> None:
    world.submit(10)
    view = await harvest(world, ScriptedEngine())
    results = world.results()
    assert view.prompt_tokens == sum(results["prompt_tokens"].to_pylist())
    assert view.output_tokens == sum(results["output_tokens"].to_pylist()) == 20


async def test_a_finished_slice_leaves_no_spool_behind(world: World) -> None:
    job_id = world.submit(10)
    await harvest(world, ScriptedEngine())
    assert not list((world.folder.jobs / job_id / "spool").iterdir())


async def test_the_parts_are_one_for_each_slice_in_the_jobs_folder(world: World, tmp_path: Path) -> None:
    job_id = world.submit(12)
    world.sinks[job_id] = PartsSink(world.folder.results(job_id))
    view = await harvest(world, ScriptedEngine())
    assert sorted(path.name for path in Path(view.results).iterdir()) == [f"part-00000{i}.parquet" for i in range(3)]
    assert world.results(job_id)["row_id"].to_pylist() == list(range(12))


def _not_utf8() -> pa.Array:
    texts = pa.array([b"good", b"\xff\xfe bad", b"also good", b"fine"])
    return pa.Array.from_buffers(pa.string(), len(texts), texts.buffers())


@pytest.mark.parametrize(
    ("texts", "code"),
    [
        (["good", None, "also good", "fine"], "null_text"),
        (["good", "", "also good", "fine"], "empty_text"),
        (["good", " \n\t", "also good", "fine"], "empty_text"),
        (_not_utf8(), "not_utf8"),
    ],
    ids=["null", "empty", "white-space", "not-utf-8"],
)
async def test_a_cell_that_is_no_text_ends_as_an_error_row_and_the_others_go_on(world: World, texts: pa.Array, code: str) -> None:
    world.submit(texts)
    engine = ScriptedEngine()
    view = await harvest(world, engine)
    results = world.results()
    assert results["status"].to_pylist() == ["ok", "error", "ok", "ok"]
    assert results["error_code"].to_pylist() == [None, code, None, None]
    assert results["output"].to_pylist() == ["good", None, "also good", "fine"]
    assert (view.state, view.rows_ok, view.rows_error, engine.calls) == (JobState.COMPLETED, 3, 1, 3)


async def test_rows_that_begin_while_others_are_given_away_wait_no_more(world: World) -> None:
    class Asking(DirectLedger):
        """A ledger that wants rows back, and is slow to take them: the runner begins four meanwhile."""

        async def wanted(self, holder: str) -> list[str]:
            return [active.lease.lease_id]

        async def split(self, lease_id: str, keep_rows: int) -> bool:
            for _ in range(4):
                await active.feed.take()
                active.rows_waiting -= 1
            return await super().split(lease_id, keep_rows)

    world.harvest = HARVEST.model_copy(update={"min_slice_rows": 10, "slices_per_job": 1})
    world.submit(10)
    lease = world.ledger.lease("a", "scripted", world.clock())
    assert lease is not None
    active = ActiveSlice(lease)
    active.start(list(range(10)), [])
    await RowReturn("a", Asking(world.ledger, world.clock), {lease.lease_id: active}).give_back()
    rest = world.ledger.lease("b", "scripted", world.clock())
    assert rest is not None
    assert (rest.slice.row_start, rest.slice.row_count) == (5, 5)
    assert active.rows_waiting == 1, "of ten, four have begun and five are given away"
    assert [await active.feed.take(), await active.feed.take()] == [4, None]


@pytest.mark.parametrize("prompt", ["Sum up: {text}", "Sum up {title}: {text}"], ids=["kept", "in-the-prompt"])
async def test_a_column_beside_the_text_that_is_not_utf8_costs_at_most_its_row(world: World, prompt: str) -> None:
    path = world.inputs / "docs.parquet"
    pq.write_table(pa.table({"text": ["one", "two", "three", "four"], "title": _not_utf8()}), path)
    world.enter(SourceSpec(uri=str(path)), "docs-0001", prompt=prompt)
    view = await harvest(world, ScriptedEngine())
    results = world.results()
    is_asked = "{title}" in prompt
    assert (view.state, view.rows_ok, view.rows_error) == (JobState.COMPLETED, 4 - is_asked, int(is_asked))
    assert results["title"].to_pylist() == ["good", "\ufffd\ufffd bad", "also good", "fine"]
    if is_asked:
        assert results["error_code"].to_pylist() == [None, "not_utf8", None, None]
        assert results["error_message"].to_pylist()[1] == "column title: the text is not valid UTF-8: byte 0xff at position 0"


async def test_a_row_that_the_engine_refuses_ends_as_an_error_row_and_the_others_go_on(world: World) -> None:
    def answer(prompt: Prompt) -> str:
        if last_line(prompt) == "row 2":
            raise RowError("refused", "this one cannot be answered")
        return last_line(prompt)

    world.submit(6)
    view = await harvest(world, ScriptedEngine(answer=answer))
    row = world.results().to_pylist()[2]
    assert (row["status"], row["error_code"], row["error_message"]) == ("error", "refused", "this one cannot be answered")
    assert (view.state, view.rows_ok, view.rows_error) == (JobState.COMPLETED, 5, 1)


async def test_a_job_with_nothing_but_bad_rows_completes_and_says_so(world: World) -> None:
    world.submit(["", None, " ", ""])
    view = await harvest(world, ScriptedEngine())
    assert (view.state, view.rows_ok, view.rows_error) == (JobState.COMPLETED, 0, 4)


async def test_a_text_too_long_is_cut_at_a_sentence_and_marked(world: World) -> None:
    seen: list[Prompt] = []

    def answer(prompt: Prompt) -> str:
        seen.append(prompt)
        return "done"

    long = " ".join(f"This is sentence number {i}." for i in range(400))
    world.submit(["short", long])
    engine = ScriptedEngine(context_tokens=100, concurrency=1, answer=answer)
    view = await harvest(world, engine)
    results = world.results()
    assert results["truncated"].to_pylist() == [False, True]
    assert (view.rows_ok, view.rows_truncated) == (2, 1)
    text = last_line(seen[1])
    assert text.endswith(".")
    assert long.startswith(text)
    assert 60 < results["prompt_tokens"].to_pylist()[1] <= 100 - seen[1].max_tokens


async def test_each_row_is_asked_with_the_tasks_own_bounds(world: World) -> None:
    seen: list[Prompt] = []

    def answer(prompt: Prompt) -> str:
        seen.append(prompt)
        return "x" * 1000

    world.submit(4, temperature=0.5)
    names: set[str] = set()
    await harvest(world, ScriptedEngine(answer=answer, hear=lambda request: names.add(request.request_id)))
    assert {(prompt.max_tokens, prompt.temperature) for prompt in seen} == {(8, 0.5)}
    assert len(names) == len(seen) == 4
    assert set(world.results()["finish_reason"].to_pylist()) == {"length"}


# -- leases and heartbeats ----------------------------------------------------------------------------------------------------------


async def test_small_slices_are_leased_ahead_until_the_engine_is_full(world: World) -> None:
    world.submit(40)
    engine = ScriptedEngine(concurrency=16)
    engine.hold()
    async with at_work(world.runner(engine)):
        await until(lambda: engine.running == 16)
        rows_leased = 10 * len(world.slices("leased"))
        assert 16 < rows_leased < 40
        engine.go_on()
        await until(world.ended)


async def test_a_heartbeat_keeps_a_slow_slice_and_tells_how_far_it_is(world: World) -> None:
    beats = 0

    class Counting(DirectLedger):
        async def heartbeat(self, holder: str, progress: Sequence[LeaseProgress]) -> list[str]:
            nonlocal beats
            beats += 1
            return await super().heartbeat(holder, progress)

    world.submit(4)
    engine = ScriptedEngine(concurrency=1)
    engine.answer = lambda prompt: (engine.hold() if engine.calls == 3 else None) or last_line(prompt)
    async with at_work(world.runner(engine, client=Counting(world.ledger, world.clock))):
        await until(lambda: engine.calls == 3)
        for _ in range(4):
            world.clock.advance(LEASE_S * 0.9)
            seen = beats
            await until(partial(lambda seen: beats > seen, seen))
            assert world.ledger.lease("b", "scripted", world.clock()) is None
        assert world.show().rows_running == 2
        engine.go_on()
        await until(world.ended)
    assert world.show().rows_ok == 4


@pytest.mark.parametrize("verb", ["cancel", "pause"])
async def test_a_job_that_is_stopped_leaves_the_engine_at_the_next_heartbeat(world: World, verb: str) -> None:
    job_id = world.submit(40)
    engine = ScriptedEngine(concurrency=8)
    engine.hold()
    async with at_work(world.runner(engine)) as task:
        await until(lambda: engine.running == 8)
        getattr(world.ledger, verb)(job_id, world.clock())
        await until(lambda: engine.running == 0 and not world.slices("leased"))
        assert engine.aborted == 8
        assert not task.done()
        engine.go_on()
        await until(lambda: world.show().state in (JobState.CANCELLED, JobState.PAUSED))
        calls = engine.calls
        other = world.submit(4, "others")
        await until(lambda: world.ended(other))
        assert engine.calls == calls + 4
    assert world.show(job_id).rows_ok == 0


async def test_a_paused_job_goes_on_where_it_was(world: World) -> None:
    job_id = world.submit(8)
    engine = ScriptedEngine(concurrency=1)
    engine.answer = lambda prompt: (engine.hold() if engine.calls == 3 else None) or last_line(prompt)
    async with at_work(world.runner(engine)):
        await until(lambda: engine.calls == 3)
        await world.pause_and_resume(job_id, engine)
        engine.go_on()
        await until(world.ended)
    assert engine.calls == 9  # the third row twice
    assert (world.show().rows_ok, world.show().rows_recomputed) == (8, 1)


async def test_a_lease_that_was_lost_is_dropped(world: World) -> None:
    world.submit(4)
    engine = ScriptedEngine()
    engine.hold()
    async with at_work(world.runner(engine)):
        await until(lambda: engine.running == 4)
        world.clock.advance(LEASE_S)
        taken = world.ledger.lease("b", "scripted", world.clock())
        assert taken is not None
        await until(lambda: engine.running == 0)
        assert world.slices("leased") == [taken.slice.slice_id]
    assert not list(world.sink(world.folder, "docs-0001").names())


async def test_a_lease_that_is_taken_back_before_its_work_began_is_given_back(world: World) -> None:
    job_id = world.submit(8)
    gate = asyncio.Event()

    class Client(DirectLedger):
        granted = 0

        async def lease(self, holder: str, model: str) -> Lease | None:
            self.granted += 1
            if self.granted == 2:
                await gate.wait()  # woken before the heartbeat, in the same turn of the loop
            return await super().lease(holder, model)

        async def heartbeat(self, holder: str, progress: Sequence[LeaseProgress]) -> list[str]:
            await gate.wait()
            return [line["lease_id"] for line in self.ledger.table("leases").to_pylist() if line["lease_id"]]

    engine = ScriptedEngine(concurrency=16)
    engine.hold()
    async with at_work(world.runner(engine, client=Client(world.ledger, world.clock))):
        await until(lambda: engine.running)
        await asyncio.sleep(5 * HARVEST.heartbeat_s)  # until both wait at the gate
        gate.set()
        await until(lambda: len(world.slices("leased")) == 2)
        world.ledger.pause(job_id, world.clock())
        await until(lambda: not world.slices("leased"))
    assert sorted(world.slices("pending")) == [0, 1]
    assert (world.show().state, world.show().rows_running) == (JobState.PAUSED, 0)


async def test_a_replica_that_stops_gives_its_leases_back(world: World) -> None:
    world.submit(40)
    engine = ScriptedEngine(concurrency=8)
    engine.hold()
    async with at_work(world.runner(engine)):
        await until(lambda: engine.running == 8)
    assert (world.slices("leased"), engine.running) == ([], 0)
    view = await harvest(world, ScriptedEngine(), holder="b")
    assert (view.rows_ok, view.rows_recomputed) == (40, 8)


async def test_a_replica_that_leaves_ends_its_rows_and_gives_its_leases_back_with_them(world: World) -> None:
    world.submit(40)
    engine = ScriptedEngine(concurrency=8)
    engine.hold()
    runner = world.runner(engine)
    async with at_work(runner):
        await until(lambda: engine.running == 8)
        leaving = asyncio.create_task(runner.leave())
        await asyncio.sleep(0)
        engine.go_on()
        await leaving
        assert (world.slices("leased"), engine.calls, engine.running) == ([], 8, 0)
        view = await harvest(world, ScriptedEngine(), holder="b")
    assert (view.rows_ok, view.rows_recomputed, engine.calls) == (40, 0, 8)


async def test_an_idle_replica_leaves_at_once_and_leases_no_more(world: World) -> None:
    engine = ScriptedEngine()
    runner = world.runner(engine)
    async with at_work(runner):
        await runner.leave()
        world.submit(8)
        await harvest(world, ScriptedEngine(), holder="b")
    assert engine.calls == 0


async def test_two_jobs_both_move(world: World) -> None:
    asked: list[RowRequest] = []
    world.submit(64, "first")
    world.submit(64, "second")
    await harvest(world, ScriptedEngine(hear=asked.append, concurrency=4))
    early = [request.request_id.split("-")[0] for request in asked[:64]]
    assert early.count("first") >= 16
    assert early.count("second") >= 16


async def test_two_replicas_share_a_job_and_no_row_is_done_twice(world: World) -> None:
    world.submit(64)
    one, two = ScriptedEngine(concurrency=4), ScriptedEngine(concurrency=4)
    async with at_work(world.runner(one, "a")), at_work(world.runner(two, "b")):
        await until(world.ended)
    assert one.calls + two.calls == 64
    assert one.calls > 0
    assert two.calls > 0
    assert world.results()["row_id"].to_pylist() == list(range(64))


# -- death --------------------------------------------------------------------------------------------------------------------------


async def test_a_dead_engine_gives_the_leases_back_and_ends_the_loop(world: World) -> None:
    world.submit(40)
    engine = ScriptedEngine(concurrency=8)
    engine.hold()
    task = asyncio.create_task(world.runner(engine).run())
    await until(lambda: engine.running == 8)
    engine.die()
    with pytest.raises(EngineGone):
        await task
    assert world.slices("leased") == []
    assert world.show().state is JobState.RUNNING
    view = await harvest(world, ScriptedEngine(), holder="b")
    assert (view.rows_ok, view.rows_error) == (40, 0)


async def test_a_second_replica_takes_over_a_dead_ones_slice_without_its_finished_rows(world: World) -> None:
    world.submit(10)
    client = lost_ledger(world)
    dying = ScriptedEngine(concurrency=1)
    dying.answer = lambda prompt: (dying.hold() if dying.calls == 4 else None) or last_line(prompt)
    async with at_work(world.runner(dying, "dead", client)):
        await until(lambda: dying.calls == 4)
        client.lose()
    assert len(world.slices("leased")) >= 1
    world.clock.advance(LEASE_S)
    heir = ScriptedEngine()
    view = await harvest(world, heir, holder="heir")
    assert heir.calls == 7
    assert (view.rows_ok, view.rows_recomputed) == (10, 1)
    assert world.results()["output"].to_pylist() == [f"row {i}" for i in range(10)]
    assert world.results()["attempts"].to_pylist() == [1, 1, 1, 2, 1, 1, 1, 1, 1, 1]


async def test_a_part_that_was_published_but_not_committed_is_adopted(world: World) -> None:
    world.submit(4)
    client = lost_ledger(world)
    client.lose()
    dying = ScriptedEngine()
    async with at_work(world.runner(dying, "dead", client)):
        await until(lambda: list(world.sink(world.folder, "docs-0001").names()))
    assert world.show().rows_ok == 0
    world.clock.advance(LEASE_S)
    heir = ScriptedEngine()
    view = await harvest(world, heir, holder="heir")
    assert heir.calls == 0
    assert (view.state, view.rows_ok, view.output_tokens) == (JobState.COMPLETED, 4, 8)


def _dies_of_row_2(engine: ScriptedEngine, prompt: Prompt) -> str:
    if last_line(prompt) == "row 2":
        engine.die()
    return last_line(prompt)


async def test_a_row_that_kills_the_engine_every_time_ends_as_an_error_row(world: World) -> None:
    world.harvest = HARVEST.model_copy(update={"row_attempts": 2})
    world.submit(6)
    for life in range(2):
        engine = ScriptedEngine(concurrency=1)
        engine.answer = partial(_dies_of_row_2, engine)
        with pytest.raises(EngineGone):
            await harvest(world, engine, holder=f"life-{life}")
    view = await harvest(world, ScriptedEngine(), holder="last")
    row = world.results().to_pylist()[2]
    assert (row["error_code"], row["attempts"]) == ("engine_lost", 2)
    assert (view.state, view.rows_ok, view.rows_error) == (JobState.COMPLETED, 5, 1)


async def test_no_row_of_another_slice_begins_in_an_engine_that_is_gone(world: World) -> None:
    job_id, engine = world.submit(8), ScriptedEngine(concurrency=2)

    def answer(prompt: Prompt) -> str:
        if last_line(prompt) == "row 2":
            engine.hold()
        return last_line(prompt)

    engine.answer = answer
    second = world.folder.spool(job_id, 1, 0)

    async def lose_the_engine() -> None:
        async with at_work(world.runner(engine)) as task:
            await until(lambda: engine.running == 2 and second.exists())
            await asyncio.sleep(0.05)  # its rows wait for a slot by then
            engine.die()
            await task

    with pytest.raises(EngineGone):
        await lose_the_engine()
    spool = Spool(second)
    assert not spool.begins
    spool.close()


@pytest.mark.parametrize("dies", [False, True], ids=["cancelled", "in an engine that died"])
async def test_rows_count_as_unfinished_where_the_engine_was_lost_and_not_where_they_were_cancelled(world: World, dies: bool) -> None:
    def answer(prompt: Prompt) -> str:
        if dies and last_line(prompt) == "row 3":
            raise EngineGone("the fourth row killed it")
        return last_line(prompt)

    job_id, engine = world.submit(4), ScriptedEngine(answer=answer)
    engine.hold()
    with pytest.raises(EngineGone) if dies else nullcontext():
        async with at_work(world.runner(engine)) as task:
            await until(lambda: task.done() or engine.running == 4)
    spool = Spool(world.folder.spool(job_id, 0, 0))
    assert [(spool.begins[row_id], spool.unfinished(row_id)) for row_id in range(4)] == [(1, int(dies))] * 4
    spool.close()


async def test_a_row_that_is_paused_as_often_as_others_kill_an_engine_is_answered(world: World) -> None:
    world.harvest = HARVEST.model_copy(update={"row_attempts": 2})
    job_id, engine = world.submit(8), ScriptedEngine(concurrency=1)
    engine.hold()
    async with at_work(world.runner(engine)):
        for _ in range(3):
            await until(lambda: engine.running == 1)
            await world.pause_and_resume(job_id, engine)
        engine.go_on()
        await until(world.ended)
    assert (world.show().rows_ok, world.show().rows_error, world.show().rows_recomputed) == (8, 0, 1)
    assert world.results()["attempts"].to_pylist() == [4, 1, 1, 1, 1, 1, 1, 1]


async def test_a_row_in_work_at_every_stop_of_the_server_is_answered(world: World) -> None:
    world.harvest = HARVEST.model_copy(update={"row_attempts": 2})
    world.submit(8)
    engine = ScriptedEngine(concurrency=1)
    engine.hold()
    for life in range(3):
        async with at_work(world.runner(engine, f"life-{life}")):
            await until(lambda: engine.running == 1)
    engine.go_on()
    view = await harvest(world, engine, holder="last")
    assert (view.rows_ok, view.rows_error, view.rows_recomputed) == (8, 0, 1)


# -- disks and sources --------------------------------------------------------------------------------------------------------------


class FullDisk(MemorySink):
    full = True

    def write(self, name: str, table: pa.Table, metadata: Mapping[str, str]) -> None:
        if self.full:
            raise StorageError(f"cannot write {name}: no space left on device; free space")
        super().write(name, table, metadata)


@pytest.fixture
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "STORAGE_WAIT_S", 0.002)


@pytest.mark.usefixtures("_short_waits")
async def test_a_full_disk_makes_the_job_wait_and_say_so_and_nothing_is_computed_twice(world: World) -> None:
    job_id = world.submit(8)
    disk = world.sinks[job_id] = FullDisk()
    engine = ScriptedEngine()
    async with at_work(world.runner(engine)):
        await until(lambda: "no space left" in (world.show().message or ""))
        assert world.show().state is JobState.RUNNING
        disk.full = False
        await until(world.ended)
    view = world.show()
    assert (view.state, view.rows_ok, view.rows_recomputed, view.message) == (JobState.COMPLETED, 8, 0, None)
    assert engine.calls == 8


class FullLedger(DirectLedger):
    """A ledger on the same full disk: whatever it would have to write fails."""

    full = False
    refused = 0

    def _refuse(self) -> None:
        if self.full:
            self.refused += 1
            raise StorageError("the ledger cannot be written: no space left on device")

    async def lease(self, holder: str, model: str) -> Any:
        self._refuse()
        return await super().lease(holder, model)

    async def heartbeat(self, holder: str, progress: Sequence[LeaseProgress]) -> list[str]:
        self._refuse()
        return await super().heartbeat(holder, progress)

    async def commit(self, lease_id: str, job_id: str, slice_id: int, stats: PartStats) -> bool:
        self._refuse()
        return await super().commit(lease_id, job_id, slice_id, stats)

    async def release(self, lease_id: str) -> None:
        self._refuse()
        await super().release(lease_id)

    async def fail(self, job_id: str, message: str) -> None:
        self._refuse()
        await super().fail(job_id, message)

    async def say(self, job_id: str, message: str | None) -> None:
        self._refuse()
        await super().say(job_id, message)


@pytest.mark.usefixtures("_short_waits")
async def test_a_ledger_that_cannot_write_makes_the_loop_wait_and_not_end(world: World) -> None:
    world.submit(12)
    ledger = FullLedger(world.ledger, world.clock)
    engine = ScriptedEngine()
    engine.answer = lambda prompt: setattr(ledger, "full", True) or last_line(prompt)
    async with at_work(world.runner(engine, client=ledger)) as task:
        await until(lambda: ledger.refused > 10)
        assert not task.done()
        engine.answer = last_line
        ledger.full = False
        world.clock.advance(LEASE_S)  # what could not be given back expires
        await until(world.ended)
    assert (world.show().state, world.show().rows_ok) == (JobState.COMPLETED, 12)
    assert engine.calls == 12


async def test_a_source_that_changed_since_it_was_submitted_fails_the_job_and_says_so(world: World) -> None:
    job_id = world.submit(8)
    pq.write_table(pa.table({"text": ["other"] * 9, "number": range(9)}), world.inputs / "docs.parquet")
    engine = ScriptedEngine()
    view = await harvest(world, engine)
    assert view.state is JobState.FAILED
    assert "docs.parquet has changed since job docs-0001 was submitted" in (view.message or "")
    assert engine.calls == 0
    assert world.show(job_id).rows_ok == 0


async def test_a_job_over_a_database_goes_on_with_the_rows_it_was_submitted_with(world: World) -> None:
    path = world.inputs / "shop.duckdb"
    with duckdb.connect(str(path)) as database:
        database.execute("CREATE TABLE docs AS SELECT 'row ' || i AS text FROM range(8) t(i)")
    world.enter(SourceSpec(uri=str(path), table="docs"), "docs-0001")
    with duckdb.connect(str(path)) as database:
        database.execute("INSERT INTO docs SELECT 'added later' FROM range(1000)")
    view = await harvest(world, ScriptedEngine())
    assert (view.state, view.rows_ok) == (JobState.COMPLETED, 8)
    assert sorted(world.results()["output"].to_pylist()) == [f"row {i}" for i in range(8)]


async def test_a_source_that_is_gone_fails_its_job_alone(world: World) -> None:
    gone = world.submit(8, "gone")
    (world.inputs / "gone.parquet").unlink()
    there = world.submit(8, "there")
    await harvest(world, ScriptedEngine())
    assert "gone.parquet does not exist" in (world.show(gone).message or "")
    assert world.show(there).state is JobState.COMPLETED


async def test_a_source_that_one_replica_cannot_read_is_read_by_the_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.submit(64)
    one, two = ScriptedEngine(concurrency=4), ScriptedEngine(concurrency=4)
    without_mount = world.runner(one, "a")

    asked = list[str]()

    def take(job: JobSpec) -> object:
        asked.append(job.id)
        raise SourceError("docs.parquet does not exist")

    monkeypatch.setattr(without_mount._reading.sources, "take", take)
    async with at_work(world.runner(two, "b")):
        await until(lambda: two.calls)
        async with at_work(without_mount):
            await until(world.ended)
    assert world.show().state is JobState.COMPLETED
    assert (one.calls, two.calls) == (0, 64)
    assert set(asked) == {"docs-0001"}


async def test_a_failed_job_is_resumed_when_its_source_is_back(world: World) -> None:
    job_id = world.submit(8)
    path = world.inputs / "docs.parquet"
    path.rename(world.inputs / "away")
    assert (await harvest(world, ScriptedEngine())).state is JobState.FAILED
    (world.inputs / "away").rename(path)
    world.ledger.resume(job_id, world.clock())
    assert (await harvest(world, ScriptedEngine(), holder="b")).rows_ok == 8


async def test_an_error_of_ours_is_its_row_s_with_its_name_and_the_loop_goes_on(world: World) -> None:
    def hear(request: RowRequest) -> None:
        if request.request_id.startswith("bad"):
            raise ZeroDivisionError("a bug")

    bad, good = world.submit(8, "bad"), world.submit(8, "good")
    await harvest(world, ScriptedEngine(hear=hear))
    assert (world.show(bad).rows_error, world.show(bad).message) == (
        8,
        "all 8 rows ended as errors; the last: unexpected: ZeroDivisionError: a bug",
    )
    assert world.show(good).state is JobState.COMPLETED


async def test_an_error_of_ours_outside_of_rows_fails_the_job_with_its_name(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: Any) -> Any:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("jobs.run.slice.open_slice", broken)
    world.submit(8)
    job = await harvest(world, ScriptedEngine())
    assert (job.state, job.message) == (JobState.FAILED, "internal error: ZeroDivisionError: a bug")


# -- retry --------------------------------------------------------------------------------------------------------------------------


async def test_a_job_whose_schema_an_earlier_version_accepted_fails_before_it_asks(world: World) -> None:
    job_id = world.submit(20)
    task = spec_of(world.ledger, job_id).task
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": r"^(?!\s*$).+"}}}
    old = task.model_copy(update={"answer": AnswerKind.JSON, "json_schema": schema})
    world.ledger._book.rewrite(world.ledger._book.record(job_id), {"task": old})
    engine = ScriptedEngine(answer=lambda _: '{"a": "b"}')
    view = await harvest(world, engine)
    assert (view.state, engine.calls) == (JobState.FAILED, 0)
    assert view.message is not None
    assert view.message.startswith("the job's schema: pattern")
    assert "write it without lookaround" in view.message


async def test_retry_computes_only_the_failed_rows_and_keeps_the_good_ones_as_they_were(world: World) -> None:
    def refuse(prompt: Prompt) -> str:
        if last_line(prompt) in ("row 1", "row 6", "row 7"):
            raise RowError("refused", "not now")
        return last_line(prompt)

    job_id = world.submit(12)
    world.sinks[job_id] = PartsSink(world.folder.results(job_id))
    await harvest(world, ScriptedEngine(answer=refuse))
    before = world.results()
    untouched = (world.folder.results(job_id) / "part-000002.parquet").stat().st_mtime_ns
    world.clock.advance(5.0)
    world.ledger.retry(job_id, world.clock())
    again = ScriptedEngine(answer=lambda prompt: "at last" if last_line(prompt) != "row 7" else refuse(prompt))
    view = await harvest(world, again, holder="b")
    after = world.results()
    assert again.calls == 3
    assert (view.state, view.rows_ok, view.rows_error) == (JobState.COMPLETED, 11, 1)
    assert after["row_id"].to_pylist() == list(range(12))
    assert [row["output"] for row in after.to_pylist() if row["row_id"] in (1, 6)] == ["at last"] * 2
    good = pa.array([row["status"] == "ok" for row in before.to_pylist()])
    assert after.filter(good).equals(before.filter(good))
    assert (world.folder.results(job_id) / "part-000002.parquet").stat().st_mtime_ns == untouched


async def test_a_retry_that_is_interrupted_is_taken_over_with_its_rows(world: World) -> None:
    def refuse(prompt: Prompt) -> str:
        raise RowError("refused", "not now")

    job_id = world.submit(4)
    await harvest(world, ScriptedEngine(answer=refuse))
    world.ledger.retry(job_id, world.clock())
    client = lost_ledger(world)
    dying = ScriptedEngine(concurrency=1)
    dying.answer = lambda prompt: (dying.hold() if dying.calls == 3 else None) or last_line(prompt)
    async with at_work(world.runner(dying, "dead", client)):
        await until(lambda: dying.calls == 3)
        client.lose()
    world.clock.advance(LEASE_S)
    heir = ScriptedEngine()
    view = await harvest(world, heir, holder="heir")
    assert (heir.calls, view.rows_ok, view.rows_error) == (2, 4, 0)


class FrozenLedger(LostLedger):
    """Nor does the replica get another lease."""

    async def lease(self, holder: str, model: str) -> Lease | None:
        return None if self.lost else await super().lease(holder, model)


async def test_a_frozen_replica_that_wakes_up_after_a_retry_leaves_the_newer_part_alone(world: World) -> None:
    def refuse(prompt: Prompt) -> str:
        raise RowError("refused", "not now")

    job_id = world.submit(4)
    client = FrozenLedger(world.ledger, world.clock)
    frozen = ScriptedEngine(answer=lambda prompt: "from long ago")
    frozen.hold()
    async with at_work(world.runner(frozen, "frozen", client)):
        await until(lambda: frozen.calls == 4)
        client.lose()
        world.clock.advance(LEASE_S)
        await harvest(world, ScriptedEngine(answer=refuse), holder="b")
        world.ledger.retry(job_id, world.clock())
        await harvest(world, ScriptedEngine(answer=lambda prompt: "now"), holder="c")
        frozen.go_on()
        await until(lambda: client.unheard)
    assert world.results()["output"].to_pylist() == ["now"] * 4


@pytest.mark.parametrize(
    ("slow_jobs", "slow_rows", "slow_weight", "other_rows"),
    [(1, 64, 1.0, 16), (1, 64, 1.0, 64), (1, 400, 1.0, 16), (1, 400, 10.0, 200), (2, 64, 1.0, 64)],
    ids=["small", "more-of-the-other", "slices-above-half-of-the-engine", "heavy", "two"],
)
async def test_a_source_that_trickles_holds_up_no_other_job(
    world: World, monkeypatch: pytest.MonkeyPatch, slow_jobs: int, slow_rows: int, slow_weight: float, other_rows: int
) -> None:
    begun, let_go = threading.Event(), threading.Event()

    def trickling(lease: Lease, *given: Any) -> Any:
        if lease.job.id in slow:
            begun.set()
            assert let_go.wait(PATIENCE_S)
        return open_slice(lease, *given)

    monkeypatch.setattr("jobs.run.slice.open_slice", trickling)
    monkeypatch.setattr("jobs.run.slice.LATE_S", 0.01)
    slow = [world.submit(slow_rows, f"slow-{number}", weight=slow_weight) for number in range(slow_jobs)]
    other = world.submit(other_rows, "other")
    async with at_work(world.runner(ScriptedEngine(concurrency=64))):
        try:
            await until(begun.is_set)
            await until(lambda: world.ended(other))
            assert not any(map(world.ended, slow))
        finally:
            let_go.set()
        await until(lambda: all(map(world.ended, slow)))
    assert [world.results(job_id).num_rows for job_id in slow] == [slow_rows] * slow_jobs


async def test_slow_sources_hold_no_more_slices_than_can_be_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = threading.Event()

    def trickling(*given: Any) -> Any:
        assert let_go.wait(PATIENCE_S)
        return open_slice(*given)

    monkeypatch.setattr("jobs.run.slice.open_slice", trickling)
    monkeypatch.setattr("jobs.run.slice.LATE_S", 0.01)
    slow = [world.submit(400, f"slow-{number}") for number in range(READERS + 2)]
    runner = world.runner(ScriptedEngine(concurrency=64))
    async with at_work(runner):
        try:
            await until(lambda: len(runner._active.late_jobs) > READERS)
            assert len(world.slices("leased")) == READERS + 1
        finally:
            let_go.set()
        await until(lambda: all(map(world.ended, slow)))


async def test_a_source_that_is_away_for_a_moment_fails_no_job(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "STORAGE_WAIT_S", 0.0)
    world.submit(8)
    tries = 0

    def away(*given: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise SourceAwayError("cannot read bucket/docs.parquet: AWS Error SLOW_DOWN")
        return open_slice(*given)

    monkeypatch.setattr("jobs.run.slice.open_slice", away)
    job = await harvest(world, ScriptedEngine())
    assert (job.state, job.rows_ok, job.message) == (JobState.COMPLETED, 8, None)


async def test_a_column_without_text_that_was_named_is_written_out(world: World) -> None:
    path = world.inputs / "numbers.parquet"
    pq.write_table(pa.table({"number": pa.array([7, None, 9])}), path)
    asked = JobRequest(
        source=SourceSpec(uri=str(path)), task="echo", task_inline={"prompt": "Say.\n{text}", "max_tokens": 8}, column="number"
    )
    with open_source(str(path), snapshot_dir=world.folder.snapshot("numbers-0001")) as source:
        plan = plan_job(asked, source, model="scripted", harvest=world.harvest, now_s=world.clock(), token="0001")
    world.ledger.submit(plan, new=True)
    await harvest(world, ScriptedEngine())
    found = world.results("numbers-0001").to_pylist()
    assert [(row["output"], row["error_code"]) for row in found] == [("7", None), (None, "null_text"), ("9", None)]
