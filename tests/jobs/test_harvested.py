"""GPU-hours by job, key and day: what the engine spent is given to the slices that it was spent on, all of it and once."""

from __future__ import annotations

import pickle
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.config import PriceConfig
from jobs.engine import Prompt, RowError
from jobs.errors import StateError
from jobs.ledger.ledger import Ledger
from jobs.run.devicetime import DeviceTime
from jobs.run.runner import Runner
from jobs.spec import PartStats
from jobs.states import JobState
from jobs.testing import ScriptedEngine, last_line, scripted_plan
from tests.fakes.harvest_world import LEASE_S, World, until
from tests.fakes.lost_ledger import LostLedger, at_work

PRICE = PriceConfig(prompt_per_million=1.0, output_per_million=3.0, per_gpu_hour=4.0, currency="EUR")
BY_TOKEN = PRICE.model_copy(update={"per_gpu_hour": None})
DAY_S = 24 * 3600.0


class Spending(ScriptedEngine):
    """An engine whose device time a test sets."""

    spent_s = 0.0

    @property
    def harvested_s(self) -> float:
        return self.spent_s


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 1000), st.integers(0, 1000)), min_size=1, max_size=20))
def test_slices_are_given_what_was_spent_and_no_more(steps: list[tuple[float, int, int]]) -> None:
    engine = Spending()
    clock, given_s = DeviceTime(engine, None), 0.0
    for spent_s, own, others in steps:
        engine.spent_s += spent_s
        given_s += clock.charged(PartStats(), own, others).device_s
        assert given_s <= engine.spent_s + 1e-6
    given_s += clock.charged(PartStats(), 1, 0).device_s  # the last slice takes what is left
    assert given_s == pytest.approx(engine.spent_s)


def test_slices_in_work_at_once_share_by_their_tokens() -> None:
    engine = Spending()
    clock = DeviceTime(engine, None)
    engine.spent_s = 10.0
    assert clock.charged(PartStats(), 300, 100).device_s == 7.5
    assert clock.charged(PartStats(), 100, 0).device_s == 2.5


def test_device_time_costs_by_the_hour_and_else_by_the_token() -> None:
    engine = Spending()
    clock = DeviceTime(engine, PRICE)
    engine.spent_s = 1800.0
    charged = clock.charged(PartStats(prompt_tokens=10), 10, 0)
    assert (charged.cost, charged.currency) == (2.0, "EUR")
    by_token = DeviceTime(engine, BY_TOKEN).charged(PartStats(prompt_tokens=10), 10, 0)
    assert (by_token.cost, by_token.token_prices, by_token.currency) == (None, (1.0, 3.0), "EUR")
    assert "token_prices" not in by_token.model_dump_json(), "earlier versions refuse a part with a count that they do not know"
    assert pickle.loads(pickle.dumps(by_token)) == by_token
    unpriced = DeviceTime(engine, None).charged(PartStats(), 10, 0)
    assert (unpriced.cost, unpriced.token_prices, unpriced.currency) == (None, None, None)


async def test_a_job_is_charged_all_that_its_engine_spent(world: World) -> None:
    engine = ScriptedEngine(concurrency=4, delay_s=0.01)
    world.submit(20)
    runner = Runner("a", world.client, engine, world.folder, world.harvest, world.sink, world.clock, PRICE)
    async with at_work(runner):
        await until(world.ended)
    rows = world.ledger.table("harvested").to_pylist()
    assert [row["rows"] for row in rows] == [20]
    assert rows[0]["gpu_hours"] * 3600 == pytest.approx(20 * 0.01)
    assert rows[0]["cost"] == pytest.approx(20 * 0.01 / 3600 * 4.0)


async def harvested(world: World, engine: ScriptedEngine) -> None:
    """Run a replica whose tokens have prices until the newest job has ended."""
    async with at_work(Runner("a", world.client, engine, world.folder, world.harvest, world.sink, world.clock, BY_TOKEN)):
        await until(world.ended)


def cost_of_tokens(line: Mapping[str, int]) -> float:
    """Of a line of `harvested`, at the prices of `BY_TOKEN`."""
    return (line["prompt_tokens"] * BY_TOKEN.prompt_per_million + line["output_tokens"] * BY_TOKEN.output_per_million) / 1e6


async def test_a_retry_costs_the_tokens_of_the_rows_that_it_computed(world: World) -> None:
    def refuse(prompt: Prompt) -> str:
        if last_line(prompt) == "row 1":
            raise RowError("refused", "not now")
        return last_line(prompt)

    job_id = world.submit(12)
    await harvested(world, ScriptedEngine(answer=refuse))
    world.ledger.retry(job_id, world.clock())
    await harvested(world, ScriptedEngine())
    (line,) = world.ledger.table("harvested").to_pylist()
    assert (line["rows"], line["prompt_tokens"]) == (12, world.show().prompt_tokens)
    assert line["cost"] == pytest.approx(cost_of_tokens(line))


async def test_a_retry_is_accounted_beside_the_failed_rows_that_it_replaces(world: World) -> None:
    job_id = world.submit(4, inline={"answer": "choice", "labels": [f"row {number}" for number in range(4)]})
    await harvested(world, ScriptedEngine(answer=lambda prompt: "no label"))
    world.ledger.retry(job_id, world.clock())
    failed = world.show()
    assert failed.rows_error == 4
    assert failed.prompt_tokens > 0
    await harvested(world, ScriptedEngine())
    (line,) = world.ledger.table("harvested").to_pylist()
    assert (line["rows"], line["prompt_tokens"]) == (4, failed.prompt_tokens + world.show().prompt_tokens)
    assert line["cost"] == pytest.approx(cost_of_tokens(line))


async def test_a_retry_of_a_job_that_was_stopped_computes_the_failed_rows_of_the_slices_that_it_left(world: World) -> None:
    """One slice was begun when the job ended: one row had failed, one was done, two were not begun."""
    job_id = world.submit(4, inline={"answer": "choice", "labels": [f"row {number}" for number in range(4)]})
    engine = ScriptedEngine(concurrency=1)

    def one_label(prompt: Prompt) -> str:
        if last_line(prompt) == "row 2":
            engine.hold()
        return "no label" if last_line(prompt) == "row 0" else last_line(prompt)

    engine.answer = one_label
    async with at_work(Runner("a", world.client, engine, world.folder, world.harvest, world.sink, world.clock, BY_TOKEN)):
        await until(lambda: world.show().rows_running == 2)
        world.ledger.fail(job_id, "too many rows failed", world.clock())
        with pytest.raises(StateError, match="job docs-0001 has rows in flight; try again in a moment"):
            world.ledger.retry(job_id, world.clock())
        await until(lambda: not world.ledger.slices_leased(job_id))
    stopped = world.show()
    assert (stopped.rows_ok, stopped.rows_error) == (1, 1)
    assert world.ledger.retry(job_id, world.clock()).rows_to_retry == 1
    again = ScriptedEngine()
    await harvested(world, again)
    view = world.show()
    assert (view.state, view.rows_ok, view.rows_error, again.calls) == (JobState.COMPLETED, 4, 0, 3)
    (line,) = world.ledger.table("harvested").to_pylist()
    failed_tokens = stopped.prompt_tokens - view.prompt_tokens // 4  # all rows are equally long
    assert (line["rows"], line["prompt_tokens"]) == (4, view.prompt_tokens + failed_tokens)
    assert not list(world.folder.jobs.glob("*/spool/*"))


async def test_a_second_retry_keeps_what_the_first_one_had_computed_when_it_was_stopped(world: World) -> None:
    def refuse(prompt: Prompt) -> str:
        raise RowError("refused", "not now")

    job_id = world.submit(4)
    await harvested(world, ScriptedEngine(answer=refuse))
    world.ledger.retry(job_id, world.clock())
    engine = ScriptedEngine(concurrency=1)

    def two_answers(prompt: Prompt) -> str:
        if last_line(prompt) == "row 2":
            engine.hold()
        return refuse(prompt) if last_line(prompt) == "row 0" else last_line(prompt)

    engine.answer = two_answers
    async with at_work(Runner("a", world.client, engine, world.folder, world.harvest, world.sink, world.clock, BY_TOKEN)):
        await until(lambda: world.show().rows_running == 2)
        world.ledger.fail(job_id, "too many rows failed", world.clock())
        await until(lambda: not world.ledger.slices_leased(job_id))
    assert world.ledger.retry(job_id, world.clock()).rows_to_retry == 4
    again = ScriptedEngine()
    await harvested(world, again)
    assert (world.show().rows_ok, world.show().rows_error, again.calls) == (4, 0, 3)


async def test_a_retry_that_was_published_but_not_committed_is_accounted_by_who_adopts_its_part(world: World) -> None:
    job_id = world.submit(4, inline={"answer": "choice", "labels": [f"row {number}" for number in range(4)]})
    await harvested(world, ScriptedEngine(answer=lambda prompt: "no label"))
    failed = world.show()
    world.ledger.retry(job_id, world.clock())
    client = LostLedger(world.ledger, world.clock)
    client.lose()
    async with at_work(Runner("dead", client, ScriptedEngine(), world.folder, world.harvest, world.sink, world.clock)):
        await until(lambda: client.unheard)
    world.clock.advance(LEASE_S)
    heir = ScriptedEngine()
    await harvested(world, heir)
    (line,) = world.ledger.table("harvested").to_pylist()
    assert heir.calls == 0
    assert (line["rows"], line["prompt_tokens"]) == (4, failed.prompt_tokens + world.show().prompt_tokens)


async def test_a_paused_job_costs_its_tokens_once(world: World) -> None:
    job_id, engine = world.submit(8), ScriptedEngine(concurrency=1)
    engine.answer = lambda prompt: (engine.hold() if engine.calls == 3 else None) or last_line(prompt)
    runner = Runner("a", world.client, engine, world.folder, world.harvest, world.sink, world.clock, BY_TOKEN)
    async with at_work(runner):
        await until(lambda: engine.calls == 3)
        await world.pause_and_resume(job_id, engine)
        engine.go_on()
        await until(world.ended)
    (line,) = world.ledger.table("harvested").to_pylist()
    assert line["cost"] == pytest.approx(cost_of_tokens(line))


def test_each_day_job_and_currency_has_a_row_and_the_rows_add_up(world: World) -> None:
    ledger = world.ledger
    ledger.submit(scripted_plan("docs", 8, 2), new=True)
    paid: dict[str, object] = {"device_s": 3600.0, "cost": 4.0, "currency": "EUR"}
    steps: list[tuple[float, dict[str, object]]] = [(0.0, paid), (1.0, paid), (DAY_S, paid), (DAY_S + 1, {"device_s": 3600.0})]
    for now_s, more in steps:
        _commit(ledger, now_s, more)
    rows = sorted(
        (row["day"], row["currency"] or "", row["rows"], row["gpu_hours"], row["cost"]) for row in ledger.table("harvested").to_pylist()
    )
    assert rows == [("1970-01-01", "EUR", 4, 2.0, 8.0), ("1970-01-02", "", 2, 1.0, None), ("1970-01-02", "EUR", 2, 1.0, 4.0)]


def _commit(ledger: Ledger, now_s: float, more: dict[str, object]) -> None:
    lease = ledger.lease("r", "scripted", now_s)
    assert lease is not None
    ledger.commit(
        lease.lease_id, "docs", lease.slice.slice_id, PartStats.model_validate({"rows_ok": 2, "prompt_tokens": 10, **more}), now_s
    )
