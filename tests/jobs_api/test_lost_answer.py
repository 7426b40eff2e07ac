"""A job that entered the ledger though the answer was lost belongs to its batch, however often the call is repeated."""

from __future__ import annotations

from pathlib import Path

from jobs.config import BatchConfig
from jobs.spec import JobPlan, JobView
from jobs.testing import DirectLedger, last_content
from tests.fakes.bureau import Bureau, going, line


class LostAnswer(DirectLedger):
    """As `LedgerActor._reach`: the actor is killed when it has entered the job and before it answers; the call is made again."""

    async def submit(self, plan: JobPlan, *, new: bool) -> tuple[JobView, bool]:
        await super().submit(plan, new=new)
        return await super().submit(plan, new=new)


async def test_a_batch_whose_job_was_entered_without_an_answer_gets_its_files(tmp_path: Path) -> None:
    office = Bureau(tmp_path, BatchConfig(), last_content)
    office.client = LostAnswer(office.ledger, office.clock)
    office.controller._ledger = office.client
    async with going(office.controller.run(), office.runner().run()):
        batch = await office.ended([line(number) for number in range(8)])
        assert batch.status == "completed", (batch.status, batch.errors, office.ledger.show("latest").state)
        assert set(await office.lines(batch.output_file_id)) == {f"request-{number}" for number in range(8)}
    await office.http.aclose()
    office.ledger.close()
