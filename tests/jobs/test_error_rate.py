"""A job whose rows mostly fail stops early, keeps what it has, and can go on."""

from __future__ import annotations

import asyncio

import pytest

from jobs.engine import Prompt, RowError
from jobs.ledger.book import over_rate
from jobs.states import JobState
from jobs.testing import ScriptedEngine, last_line
from tests.fakes.harvest_world import World, harvest, until
from tests.fakes.lost_ledger import at_work


@pytest.mark.parametrize(
    ("rows", "errors", "max_share", "stops"),
    [
        (99, 99, 0.5, False),
        (100, 50, 0.5, False),
        (100, 51, 0.5, True),
        (1000, 1000, 1.0, False),
        (100, 1, 0.0, True),
        (100, 0, 0.0, False),
    ],
    ids=["too few rows", "as many as allowed", "one more", "a share of one", "none allowed", "none failed"],
)
def test_a_job_stops_when_more_than_the_share_of_a_hundred_rows_failed(rows: int, errors: int, max_share: float, stops: bool) -> None:
    assert over_rate(rows, errors, max_share) is stops


def refuse(prompt: Prompt) -> str:
    raise RowError("refused", "this one cannot be answered")


async def test_a_job_whose_rows_all_fail_stops_early_and_says_so_first(world: World) -> None:
    job_id = world.submit(2000)
    engine = ScriptedEngine(answer=refuse, concurrency=8, delay_s=0.001)
    view = await harvest(world, engine)
    assert view.state is JobState.FAILED
    assert view.message is not None
    assert view.message.startswith("stopped early: all ")
    assert "refused: this one cannot be answered" in view.message
    assert f"harvester resume {job_id}" in view.message
    assert 100 <= engine.calls < 1000


async def test_the_rows_of_a_stopped_job_are_in_its_results_and_resume_does_the_others(world: World) -> None:
    job_id = world.submit(600)
    broken = True

    def answer(prompt: Prompt) -> str:
        return refuse(prompt) if broken else last_line(prompt)

    engine = ScriptedEngine(answer=answer, concurrency=8, delay_s=0.001)
    async with at_work(world.runner(engine)):
        await until(lambda: world.ended() and not world.slices("leased"))
        stopped = world.show()
        assert stopped.rows_error == len(world.results()) >= 100
        assert stopped.rows_error + stopped.rows_ok < 600
        broken = False
        world.ledger.resume(job_id, world.clock())
        await until(world.ended)
    view = world.show()
    assert (view.state, view.rows_ok + view.rows_error) == (JobState.COMPLETED, 600)
    assert view.rows_error <= stopped.rows_error + 2 * engine.concurrency, "what failed before is not computed again"
    assert world.results()["row_id"].to_pylist() == list(range(600))
    assert view.rows_recomputed == 0


async def test_a_resumed_job_that_still_fails_stops_again_after_a_hundred_rows_more(world: World) -> None:
    job_id = world.submit(2000)
    engine = ScriptedEngine(answer=refuse, concurrency=8, delay_s=0.001)
    async with at_work(world.runner(engine)):
        await until(lambda: world.ended() and not world.slices("leased"))
        first = world.show().rows_error
        world.ledger.resume(job_id, world.clock())
        await until(lambda: world.ended() and not world.slices("leased"))
    assert world.show().state is JobState.FAILED
    assert first + 100 <= world.show().rows_error < 2000, world.show().message


async def test_a_job_that_may_fail_wholly_runs_to_its_end_and_says_that_it_failed(world: World) -> None:
    world.submit(300, max_error_rate=1.0)
    view = await harvest(world, ScriptedEngine(answer=refuse))
    assert (view.state, view.rows_error) == (JobState.COMPLETED, 300)
    assert view.message == "all 300 rows ended as errors; the last: refused: this one cannot be answered"


@pytest.mark.parametrize("verb", ["pause", "cancel"])
async def test_the_rows_done_of_a_job_that_stops_are_published_at_once(world: World, verb: str) -> None:
    job_id = world.submit(40)
    release = asyncio.Event()

    class Engine(ScriptedEngine):
        async def complete(self, request):
            if self.calls > 6:
                await release.wait()
            return await super().complete(request)

    engine = Engine(concurrency=4)
    async with at_work(world.runner(engine)):
        await until(lambda: world.show().rows_running + world.show().rows_ok >= 6)
        getattr(world.ledger, verb)(job_id, world.clock())
        await until(lambda: not world.slices("leased"))
        assert world.show().rows_ok == len(world.results()) >= 6
        release.set()
        world.ledger.resume(job_id, world.clock())
        await until(world.ended)
    assert world.results()["row_id"].to_pylist() == list(range(40))
    assert world.show().rows_ok == 40
