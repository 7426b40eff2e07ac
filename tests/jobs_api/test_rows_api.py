"""Uploads in pieces and results as Arrow, over HTTP."""

from __future__ import annotations

import asyncio
import csv
import hashlib
import io
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harvester.errors import ParameterError, TooLargeError
from harvester.serve.access.identity import Identity
from harvester.serve.http.jobs.uploads_api import KEPT_S, Uploads
from jobs.access.limits import Limits
from tests.fakes.office import INFO, MODEL, Office, refused

ID = "ab" * 32
PATIENCE_S = 20.0


async def test_an_upload_goes_on_where_it_ended_and_becomes_a_job(office: Office) -> None:
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


async def test_a_damaged_piece_and_a_gap_are_refused(office: Office) -> None:
    damaged = await office.http.put(f"/uploads/{ID}/a.csv", content=b"abc", headers={"x-content-sha256": "0" * 64})
    gap = await office.http.put(f"/uploads/{ID}/a.csv", content=b"abc", params={"offset": 9})
    assert (damaged.status_code, gap.status_code) == (400, 400)
    assert (await office.http.get(f"/uploads/{ID}/a.csv")).json()["bytes"] == 0


async def test_results_are_an_arrow_stream_that_is_taken_up_behind_a_row(office: Office) -> None:
    job = await office.submitted()
    folder = office.folder.results(job.id)
    folder.mkdir(parents=True, exist_ok=True)
    for number in (0, 1):
        pq.write_table(pa.table({"row_id": [number], "output": ["x"]}), folder / f"part-{number:06d}.parquet")
    whole = await office.http.get(f"/jobs/{job.id}/results")
    rest = await office.http.get(f"/jobs/{job.id}/results", params={"part": "part-000000", "offset": 1})
    assert pa.ipc.open_stream(io.BytesIO(whole.content)).read_all()["row_id"].to_pylist() == [0, 1]
    assert pa.ipc.open_stream(io.BytesIO(rest.content)).read_all()["row_id"].to_pylist() == [1]


async def test_an_offset_before_the_beginning_is_refused(office: Office) -> None:
    job = await office.submitted()
    folder = office.folder.results(job.id)
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"row_id": [0], "output": ["x"]}), folder / "part-000000.parquet")
    upload = await office.http.put(f"/uploads/{ID}/a.csv", content=b"abc", params={"offset": -1})
    rows = await office.http.get(f"/jobs/{job.id}/results", params={"part": "part-000000", "offset": -1})
    for answer in (upload, rows):
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["message"].startswith("query.offset: Input should be greater than or equal to 0")


async def test_a_whole_that_is_not_what_its_digest_says_is_dropped(office: Office) -> None:
    asked: dict[str, bool | str] = {"last": True, "digest": hashlib.sha256(b"other").hexdigest()}
    damaged = await office.http.put(f"/uploads/{ID}/a.csv", content=b"abc", params=asked)
    assert damaged.status_code == 400
    assert "arrived damaged" in damaged.json()["error"]["message"]
    assert (await office.http.get(f"/uploads/{ID}/a.csv")).json() == {"bytes": 0, "is_whole": False, "uri": f"upload:{ID}/a.csv"}


@pytest.mark.parametrize("name", ["../a.csv", ".a.csv", "b/../../a.csv", "a*.csv", "b/.a", "a:b", "a/" * 9 + "a"])
async def test_a_name_that_leads_elsewhere_is_refused(office: Office, name: str) -> None:
    answer = await office.http.put(f"/uploads/{ID}/{quote(name, safe='')}", content=b"abc", params={"last": True})
    assert answer.status_code in (400, 404)
    assert not list(office.folder.root.rglob("*a.csv*"))


async def test_an_upload_that_is_not_whole_is_no_source(office: Office) -> None:
    await office.http.put(f"/uploads/{ID}/a.csv", content=b"abc")
    for uri in (f"upload:{ID}/a.csv", f"upload:{ID}", "upload:x", f"upload:{ID}/../../../state/server.json"):
        answer = await office.post("/jobs", {"source": {"uri": uri}})
        assert answer.status_code in (400, 404), answer.text


async def test_a_file_of_the_users_is_not_taken_for_one_that_is_not_whole(office: Office) -> None:
    rows = office.docs.read_bytes()
    for name, data, is_last in (("docs.parquet", rows[:100], False), ("docs.parquet.part", b"notes", True)):
        await office.http.put(f"/uploads/{ID}/{name}", content=data, params={"last": is_last})
    assert (await office.http.get(f"/uploads/{ID}/docs.parquet")).json()["bytes"] == 100
    assert (await office.post("/jobs", {"source": {"uri": f"upload:{ID}"}})).status_code == 404
    await office.http.put(f"/uploads/{ID}/docs.parquet", content=rows[100:], params={"offset": 100, "last": True})
    files = {path.name: path.read_bytes() for path in office.folder.uploads.glob("*/*/*")}
    assert files == {"docs.parquet": rows, "docs.parquet.part": b"notes"}
    made = await office.post("/jobs", {"source": {"uri": f"upload:{ID}"}})
    assert made.status_code == 201, made.text


async def test_an_upload_that_no_job_names_goes_after_a_day(office: Office) -> None:
    for upload_id in (ID, "cd" * 32):
        await office.http.put(f"/uploads/{upload_id}/docs.parquet", content=office.docs.read_bytes(), params={"last": True})
    made = await office.post("/jobs", {"source": {"uri": f"upload:{ID}/docs.parquet"}})
    sources = [made.json()["job"]["source"]]
    uploads = Uploads(office.folder)
    uploads.sweep(sources, time.time())
    assert len(list(office.folder.uploads.glob("*/*"))) == 2
    uploads.sweep(sources, time.time() + 2 * KEPT_S)
    assert [path.name for path in office.folder.uploads.glob("*/*")] == [ID]


async def test_a_part_that_is_damaged_is_an_error_and_no_short_answer(office: Office) -> None:
    job = await office.submitted()
    folder = office.folder.results(job.id)
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"row_id": [0], "output": ["x"]}), folder / "part-000000.parquet")
    (folder / "part-000000.parquet").write_bytes(b"PAR1 and nothing else PAR1")
    answer = await office.http.get(f"/jobs/{job.id}/results")
    assert answer.status_code == 500
    assert "is damaged" in answer.json()["error"]["message"]


async def test_a_server_says_of_a_file_only_what_it_may_and_not_of_another_of_the_same_path(office: Office) -> None:
    about = office.docs.stat()
    file = {"path": str(office.docs), "bytes": about.st_size, "modified_ns": about.st_mtime_ns, "inode": about.st_ino}
    hidden = Path("/etc/hostname").stat()
    secret = {"path": "/etc/hostname", "bytes": hidden.st_size, "modified_ns": hidden.st_mtime_ns, "inode": hidden.st_ino}
    asked = ([file], [file | {"inode": 7}], [file | {"modified_ns": 7}], [secret], [file, secret])
    seen = [(await office.post("/sources/seen", {"files": files})).json() for files in asked]
    assert seen == [{"is_user": False, "is_seen": is_seen} for is_seen in (True, False, False, False, False)]


@pytest.mark.parametrize(
    ("limits", "told"),
    [(Limits(max_upload_bytes=5), "bytes that this API key may upload"), (Limits(max_stored_bytes=8), "would hold 11 bytes")],
    ids=["one", "all"],
)
async def test_a_key_uploads_no_more_than_it_may(office: Office, limits: Limits, told: str) -> None:
    uploads = Uploads(office.folder)
    who = Identity("small", frozenset(), limits)

    async def body(data: bytes) -> AsyncIterator[bytes]:
        yield data

    first, second = uploads.path(ID, "a.csv", who), uploads.path("cd" * 32, "a.csv", who)
    await uploads.append(first, 0, body(b"12345"), None, is_last=True, who=who)
    with pytest.raises(TooLargeError, match=told):
        await uploads.append(second, 0, body(b"123456"), None, is_last=True, who=who)


async def test_a_keys_uploads_at_once_hold_together_no_more_than_it_may(office: Office) -> None:
    uploads, all_begun = Uploads(office.folder), asyncio.Barrier(4)
    who = Identity("small", frozenset(), Limits(max_stored_bytes=20))

    async def body() -> AsyncIterator[bytes]:
        yield b"1234"
        await all_begun.wait()
        yield b"5678"

    paths = [uploads.path(f"{number:064x}", "a.csv", who) for number in range(4)]
    sent = [uploads.append(path, 0, body(), None, is_last=True, who=who) for path in paths]
    async with asyncio.timeout(PATIENCE_S):
        done = await asyncio.gather(*sent, return_exceptions=True)
    assert sum(isinstance(one, TooLargeError) for one in done) == 3, done
    assert sum(path.stat().st_size for path in office.folder.uploads.rglob("*.part")) == 20


async def test_a_piece_that_leaves_a_gap_leaves_nothing(office: Office) -> None:
    """It counts as a further piece of an upload, and so as no request: a key could fill the disk with folders."""
    uploads, who = Uploads(office.folder), Identity("small", frozenset())

    async def body() -> AsyncIterator[bytes]:
        yield b"1234"

    with pytest.raises(ParameterError, match="the upload has 0 bytes; go on there, not at 1"):
        await uploads.append(uploads.path(ID, "a/b/c.csv", who), 1, body(), None, is_last=False, who=who)
    assert list(office.folder.uploads.rglob("*")) == []


async def test_a_piece_that_is_sent_again_counts_once(office: Office) -> None:
    uploads = Uploads(office.folder)
    who = Identity("small", frozenset(), Limits(max_stored_bytes=8))

    async def body() -> AsyncIterator[bytes]:
        yield b"1234"

    path = uploads.path(ID, "a.csv", who)
    for offset in (0, 0, 4, 4):
        told = await uploads.append(path, offset, body(), None, is_last=False, who=who)
    assert told["bytes"] == 8


async def test_results_are_downloaded_as_one_file_in_each_format(office: Office) -> None:
    job = await office.submitted()
    folder = office.folder.results(job.id)
    folder.mkdir(parents=True, exist_ok=True)
    for number in (0, 1):
        pq.write_table(pa.table({"row_id": [number], "output": [f'say "{number}"']}), folder / f"part-{number:06d}.parquet")
    got = {form: await office.http.get(f"/jobs/{job.id}/results", params={"format": form}) for form in ("parquet", "csv", "jsonl")}
    assert pq.read_table(io.BytesIO(got["parquet"].content)).to_pydict() == {"row_id": [0, 1], "output": ['say "0"', 'say "1"']}
    assert list(csv.reader(got["csv"].text.splitlines())) == [["row_id", "output"], ["0", 'say "0"'], ["1", 'say "1"']]
    assert [json.loads(line)["row_id"] for line in got["jsonl"].text.splitlines()] == [0, 1]
    assert got["csv"].headers["content-disposition"] == f'attachment; filename="{job.id}.csv"'
    assert (await office.http.get(f"/jobs/{job.id}/results", params={"format": "doc"})).status_code == 400


async def test_a_parquet_download_has_few_row_groups(office: Office) -> None:
    """Parts have 256 rows, and a writer keeps the footer of each row group in memory."""
    job = await office.submitted()
    folder = office.folder.results(job.id)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(40):
        table = pa.table({"row_id": range(256 * number, 256 * (number + 1)), "output": ["text"] * 256})
        pq.write_table(table, folder / f"part-{number:06d}.parquet")
    got = await office.http.get(f"/jobs/{job.id}/results", params={"format": "parquet"})
    found = pq.ParquetFile(io.BytesIO(got.content))
    assert (found.num_row_groups, found.read()["row_id"].to_pylist()) == (1, list(range(40 * 256)))


async def test_a_dry_run_tells_what_a_job_would_be_and_keeps_nothing(office: Office) -> None:
    answer = await office.post("/plan", {"source": {"uri": str(office.docs)}, "task": "summarize"})
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert (told["rows"], told["column"], told["estimated_s"]) == (4, "text", None)
    assert office.ledger.jobs() == []
    assert office.left_over() == []


async def test_a_dry_run_reads_only_what_a_job_may(office: Office) -> None:
    answer = await office.post("/plan", {"source": {"uri": "/etc/passwd"}, "task": "summarize"})
    assert answer.status_code in (400, 403), answer.text


@pytest.mark.parametrize("path", ["/jobs", "/plan"])
async def test_a_task_that_the_model_cannot_do_is_refused_with_what_to_do(
    office: Office,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
) -> None:
    wish: dict[str, Any] = {"source": {"uri": str(office.docs)}}
    monkeypatch.setitem(INFO, "gives", ["embedding"])
    message = refused(await office.post(path, {**wish, "task": "summarize"}), 400)
    assert message.startswith(f"{MODEL} writes no text, so task summarize cannot run on it; use --task embed")
    assert office.ledger.jobs() == []
    assert (await office.post(path, {**wish, "task": "embed"})).status_code in (200, 201)
    monkeypatch.setitem(INFO, "gives", ["text"])
    assert "makes no embeddings" in refused(await office.post(path, {**wish, "task": "embed", "new": True}), 400)


@pytest.mark.parametrize("path", ["/jobs", "/plan"])
async def test_an_adapter_that_the_server_does_not_have_is_refused_at_submit(
    office: Office,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
) -> None:
    wish: dict[str, Any] = {"source": {"uri": str(office.docs)}, "task": "summarize", "adapter": "polit"}
    monkeypatch.setitem(INFO, "adapters", [])
    assert refused(await office.post(path, wish), 400).startswith(
        f"{MODEL} is served without adapters, so task summarize cannot run on polit"
    )
    monkeypatch.setitem(INFO, "adapters", ["polite", "terse"])
    assert refused(await office.post(path, wish), 400) == f"{MODEL} has no adapter 'polit'; did you mean polite?"
    assert office.ledger.jobs() == []
    assert (await office.post(path, {**wish, "adapter": "polite"})).status_code in (200, 201)


@pytest.mark.parametrize("path", ["/jobs", "/plan"])
async def test_images_for_a_model_that_takes_none_are_refused_at_submit(
    office: Office,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
) -> None:
    wish: dict[str, Any] = {"source": {"uri": str(office.docs)}, "images": ["text"], "task": "ask", "options": {"prompt": "What is it?"}}
    monkeypatch.setitem(INFO, "max_images", 0)
    message = refused(await office.post(path, wish), 400)
    assert message.startswith(f"{MODEL} takes no images, so task ask cannot show it column text; serve a vision-language model")
    assert office.ledger.jobs() == []
    monkeypatch.setitem(INFO, "max_images", 1)
    assert (await office.post(path, wish)).status_code in (200, 201)
    assert "name each column once" in refused(await office.post(path, {**wish, "images": ["text", "text"]}), 400)
