"""Uploads in pieces and results as Arrow, over HTTP."""

from __future__ import annotations

import hashlib
import io

import pyarrow as pa
import pyarrow.parquet as pq
from test_jobs_api import Office, office  # noqa: F401

ID = "ab" * 32


async def test_an_upload_goes_on_where_it_ended_and_becomes_a_job(office: Office) -> None:  # noqa: F811
    data = office.docs.read_bytes()
    for offset, piece in ((0, data[:100]), (0, data[:100]), (100, data[100:])):
        digest = hashlib.sha256(piece).hexdigest()
        asked = {"offset": offset, "last": offset > 0}
        answer = await office.http.put(f"/uploads/{ID}/docs.parquet", content=piece, params=asked, headers={"x-content-sha256": digest})
        assert answer.status_code == 200, answer.text
    assert answer.json() == {"bytes": len(data), "is_whole": True, "uri": f"upload:{ID}/docs.parquet"}
    made = await office.post("/jobs", {"source": {"uri": answer.json()["uri"]}})
    assert made.status_code == 201, made.text
    assert made.json()["job"]["rows_total"] == 4


async def test_a_damaged_piece_and_a_gap_are_refused(office: Office) -> None:  # noqa: F811
    damaged = await office.http.put(f"/uploads/{ID}/a.csv", content=b"abc", headers={"x-content-sha256": "0" * 64})
    gap = await office.http.put(f"/uploads/{ID}/a.csv", content=b"abc", params={"offset": 9})
    assert (damaged.status_code, gap.status_code) == (400, 400)
    assert (await office.http.get(f"/uploads/{ID}/a.csv")).json()["bytes"] == 0


async def test_results_are_an_arrow_stream_that_is_taken_up_behind_a_part(office: Office) -> None:  # noqa: F811
    job = await office.submitted()
    folder = office.folder.results(job.id)
    folder.mkdir(parents=True, exist_ok=True)
    for number in (0, 1):
        pq.write_table(pa.table({"row_id": [number], "output": ["x"]}), folder / f"part-{number:06d}.parquet")
    whole = await office.http.get(f"/jobs/{job.id}/results")
    rest = await office.http.get(f"/jobs/{job.id}/results", params={"after": "part-000000"})
    assert pa.ipc.open_stream(io.BytesIO(whole.content)).read_all()["row_id"].to_pylist() == [0, 1]
    assert pa.ipc.open_stream(io.BytesIO(rest.content)).read_all()["row_id"].to_pylist() == [1]
