"""Connections that break: what was sent is not sent again, what was read is not read twice, and no job is made twice.

And a proxy that compresses what it passes on.
"""

from __future__ import annotations

import gzip
import hashlib
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import harvester
from bench.harness.servers.jobs_server import JobsServer
from harvester.api import flow, stream
from harvester.api.client import Harvester
from harvester.api.errors import RefusedError, UnreachableError
from harvester.api.uploads import PIECE_BYTES
from harvester.api.wire import Address, AsyncWire, Wire
from tests.fakes.cutting_proxy import Proxy, cutting

ROWS, ROW_BYTES = 40, 600_000


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "RETRY_S", 0.0)
    monkeypatch.setattr(stream, "RETRY_S", 0.0)


@pytest.fixture(scope="module")
def docs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 MB that no compression makes smaller, in row groups of one row."""
    draw = random.Random(7)
    table = pa.table({"text": [f"row {i}" for i in range(ROWS)], "blob": [draw.randbytes(ROW_BYTES) for _ in range(ROWS)]})
    path = tmp_path_factory.mktemp("docs") / "docs.parquet"
    pq.write_table(table, path, row_group_size=4)
    return path


@pytest.fixture
def proxied(server: JobsServer, request: pytest.FixtureRequest) -> Iterator[tuple[Proxy, Harvester]]:
    """A client that reaches the server through a proxy."""
    with cutting(urlsplit(server.url).port or 0) as proxy, harvester.connect(proxy.url) as client:
        yield proxy, client


def test_an_upload_goes_on_behind_the_last_whole_piece(proxied: tuple[Proxy, Harvester], server: JobsServer, docs: Path) -> None:
    proxy, client = proxied
    proxy.cut(("up", PIECE_BYTES * 3 // 2))
    uri = client.upload(docs)
    size = docs.stat().st_size
    assert size > 2.5 * PIECE_BYTES
    assert size < proxy.up_bytes < size + PIECE_BYTES  # half a piece was lost, and sent again
    (kept,) = server.folder.uploads.glob(f"*/{uri.removeprefix('upload:')}")
    assert hashlib.sha256(kept.read_bytes()).digest() == hashlib.sha256(docs.read_bytes()).digest()


def test_what_is_there_is_not_sent_again(proxied: tuple[Proxy, Harvester], docs: Path) -> None:
    proxy, client = proxied
    client.upload(docs)
    proxy.cut()
    client.upload(docs)
    assert proxy.up_bytes < 10_000


def test_results_are_read_on_where_the_connection_broke(proxied: tuple[Proxy, Harvester], docs: Path) -> None:
    proxy, client = proxied
    job = client.submit(docs, prompt="{text}").watch()
    proxy.cut(("down", 9_000_000), ("down", 4_000_000))
    table = job.results().arrow()
    assert proxy.connections == 3
    assert table["row_id"].to_pylist() == list(range(ROWS))
    assert table["blob"].combine_chunks().equals(pq.read_table(docs)["blob"].combine_chunks())


def test_the_answer_of_a_query_is_read_on_where_the_connection_broke(proxied: tuple[Proxy, Harvester]) -> None:
    proxy, client = proxied
    rows = client.sql("select range as i, repeat('x', 1000) as x from range(20000)")
    proxy.cut(("down", 7_000_000), ("down", 5_000_001))
    assert rows.arrow()["i"].to_pylist() == list(range(20_000))
    assert proxy.connections == 3


def test_a_server_that_breaks_off_each_time_is_given_up(proxied: tuple[Proxy, Harvester]) -> None:
    proxy, client = proxied
    rows = client.sql("select range as i from range(2000)")
    proxy.cut(*[("down", 0)] * 20)
    with pytest.raises(UnreachableError, match="lost the connection"):
        rows.arrow()


@pytest.mark.parametrize("new", [False, True], ids=["same", "new"])
def test_a_submit_whose_answer_is_lost_makes_one_job(proxied: tuple[Proxy, Harvester], new: bool) -> None:
    proxy, client = proxied
    uri = client.upload(pa.table({"text": [f"lost {new}"]}))
    known = {job.id for job in client.jobs()}
    proxy.cut(("down", 0), ("down", 0))
    job = client.submit(uri, prompt="{text}", new=new)
    assert proxy.connections == 3
    assert {one.id for one in client.jobs()} - known == {job.id}


def test_rows_that_were_computed_again_meanwhile_are_not_mixed(client: Harvester, server: JobsServer, docs: Path) -> None:
    job = client.submit(docs, prompt="{text}").watch()
    cursor = stream.Cursor()
    cursor.part, cursor.edition, cursor.rows = "part-000000", "1-2-3", 2
    path = f"/api/jobs/{job.id}/results"
    with pytest.raises(RefusedError, match="computed again while they were read"), client._wire.stream(path, cursor.params()):
        pass


@contextmanager
def compressing(body: bytes, is_asked: bool) -> Iterator[str]:
    """A server whose every answer is ``body``, compressed with gzip where the client takes that, or where it was not ``is_asked``."""
    with answering(lambda takes_gzip: (gzip.compress(body), True) if takes_gzip or not is_asked else (body, False)) as url:
        yield url


@contextmanager
def answering(answer: Callable[[bool], tuple[bytes, bool]]) -> Iterator[str]:
    """A server. ``answer``: from whether the client takes gzip, the bytes of each answer and whether they are said to be gzip."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sent, is_gzip = answer("gzip" in self.headers.get("accept-encoding", ""))
            self.send_response(200)
            if is_gzip:
                self.send_header("content-encoding", "gzip")
            self.send_header("content-length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, format: str, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}"
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


@pytest.mark.parametrize("is_asked", [True, False], ids=["where it may", "always"])
def test_rows_are_read_behind_a_proxy_that_compresses(is_asked: bool) -> None:
    table = pa.table({"i": range(5000)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)
    with compressing(sink.getvalue().to_pybytes(), is_asked) as url:
        wire = Wire(Address(url, None))
        schema, found = stream.answer_of(wire, "a")
        assert pa.Table.from_batches(list(found), schema).equals(table)
        with wire.stream("/any", {}) as pieces:
            assert b"".join(pieces) == sink.getvalue().to_pybytes()
        wire.close()


async def test_an_answer_that_came_damaged_is_told_in_one_line() -> None:
    """It is said to be gzip, and is not."""
    with answering(lambda takes_gzip: (b"[]", True)) as url:
        wire = AsyncWire(Address(url, None))
        told = f"the answer from {url} came damaged"
        with pytest.raises(UnreachableError, match=told), wire.blocking.stream("/any", {}) as pieces:
            next(pieces)
        with pytest.raises(UnreachableError, match=told):
            wire.blocking.run(flow.ask("GET", "/any"))
        with pytest.raises(UnreachableError, match=told):
            await wire.run(flow.ask("GET", "/any"))
        await wire.close()
