"""Jobs removed for good: `DELETE /jobs/JOB`, and those that are older than the configuration keeps them."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from harvester.serve.http.jobs.removal import DAY_S, remove_old
from jobs.ledger.ledger import Ledger
from jobs.spec import JobView
from jobs.testing import DirectLedger, ManualClock
from tests.fakes.office import MODEL, Office, refused


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[Office]:
    """An office with a ledger on the disk."""
    office = Office(tmp_path)
    office.ledger.close()
    office.ledger = Ledger(office.folder.ledger, office.folder.jobs, lease_s=10.0, now_s=office.clock(), new_server=True)
    from harvester.serve.http.jobs.jobs_api import jobs_api

    app = jobs_api(DirectLedger(office.ledger, office.clock), office.planner, office._info)
    office.http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://jobs")
    async with office.http:
        yield office
    office.ledger.close()


async def test_an_ended_job_goes_with_all_that_was_its_own(kept: Office) -> None:
    gone, stays = await kept.submitted(), await kept.submitted(new=True)
    kept.finish()
    (kept.folder.results(gone.id)).mkdir()
    answer = await kept.http.delete(f"/jobs/{gone.id}")
    assert (answer.status_code, answer.json()["id"]) == (200, gone.id)
    assert kept.left_over([stays]) == []
    assert [view.id for view in kept.ledger.jobs()] == [stays.id]
    assert set(kept.ledger.table("leases")["job_id"].to_pylist()) == {stays.id}
    refused(await kept.http.get(f"/jobs/{gone.id}"), 404)
    assert kept.docs.exists(), "a source that is the user's own stays"
    kept.ledger.check()


async def test_the_ledger_does_not_bring_a_removed_job_back(kept: Office) -> None:
    job = await kept.submitted()
    kept.finish()
    await kept.http.delete(f"/jobs/{job.id}")
    kept.ledger.close()
    kept.ledger = Ledger(kept.folder.ledger, kept.folder.jobs, lease_s=10.0, now_s=kept.clock(), new_server=True)
    assert kept.ledger.jobs() == []
    assert kept.left_over() == []


async def test_a_job_that_goes_on_is_not_removed(office: Office) -> None:
    job = await office.submitted()
    assert "cancel it first" in refused(await office.http.delete(f"/jobs/{job.id}"), 409)
    assert office.ledger.show(job.id).state == "queued"


async def test_a_job_whose_rows_are_in_flight_is_not_removed(office: Office) -> None:
    job = await office.submitted()
    lease = office.ledger.lease("a", MODEL, office.clock())
    assert lease is not None
    office.ledger.fail(job.id, "the source changed", office.clock())
    assert "in flight" in refused(await office.http.delete(f"/jobs/{job.id}"), 409)
    office.ledger.release(lease.lease_id, office.clock())
    assert (await office.http.delete(f"/jobs/{job.id}")).status_code == 200


async def uploaded(office: Office, name: str) -> dict[str, str]:
    """An uploaded file, as the source of a job."""
    data = office.docs.read_bytes()
    given = {"x-content-sha256": hashlib.sha256(data).hexdigest()}
    answer = await office.http.put(f"/uploads/{name}/docs.parquet", content=data, params={"last": True}, headers=given)
    return {"uri": answer.json()["uri"]}


async def test_an_uploaded_file_goes_with_the_last_job_that_reads_it(office: Office) -> None:
    source = await uploaded(office, "ab" * 16)
    one, other = [(await office.post("/jobs", {"source": source, "new": True})).json()["job"]["id"] for _ in range(2)]
    office.finish()
    uploads = office.folder.root / "uploads"
    await office.http.delete(f"/jobs/{one}")
    assert len(list(uploads.rglob("*.parquet"))) == 1
    await office.http.delete(f"/jobs/{other}")
    assert list(uploads.rglob("*.parquet")) == []


class CountedLedger(DirectLedger):
    """Counts how often all jobs are listed: a view of each costs the ledger a lot."""

    listed = 0

    async def jobs(self) -> list[JobView]:
        self.listed += 1
        return await super().jobs()


async def test_old_jobs_of_uploaded_files_go_without_a_list_of_all_jobs_for_each(office: Office) -> None:
    clock: ManualClock = office.clock
    gone, read = await uploaded(office, "ab" * 16), await uploaded(office, "cd" * 16)
    for source in (gone, gone, gone, read, read):
        assert (await office.post("/jobs", {"source": source, "new": True})).status_code == 201
    office.finish()
    clock.advance(2 * DAY_S)
    young = await office.submitted(source=read, new=True)
    ledger = CountedLedger(office.ledger, clock)
    assert len(await remove_old(ledger, office.folder, 1.0, clock())) == 5
    assert ledger.listed == 1
    assert [view.id for view in office.ledger.jobs()] == [young.id]
    assert [path.name for path in (office.folder.root / "uploads").glob("*/*")] == ["cd" * 16]


async def test_jobs_that_ended_long_ago_are_removed_and_others_stay(office: Office) -> None:
    clock: ManualClock = office.clock
    await office.submitted()
    office.finish()
    clock.advance(2 * DAY_S)
    young, going = await office.submitted(new=True), await office.submitted(new=True, weight=0.5)
    await office.post(f"/jobs/{young.id}/cancel")
    ledger = CountedLedger(office.ledger, clock)
    assert len(await remove_old(ledger, office.folder, 1.0, clock())) == 1
    assert ledger.listed == 1
    assert {view.id for view in office.ledger.jobs()} == {young.id, going.id}
