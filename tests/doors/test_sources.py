"""What a client of the API can make the server read: what its owner listed, and nothing else of the machine or its network."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
import time
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.errors import SourceError
from connectors.open import open_source
from connectors.paths.rules import SourceRules
from harvester.config import parse_config
from harvester.errors import ConfigError
from harvester.serve.http.jobs.jobs_api import jobs_api
from jobs.access.handle import HEADER, make_key, read_key, signed
from jobs.config import HarvestConfig, SourcesConfig
from jobs.ledger.ledger import Ledger
from jobs.plan.planner import JobPlanner
from jobs.run.slice import SourceCache, open_parts
from jobs.spec import JobPlan
from jobs.storage.folder import StateFolder
from jobs.testing import DirectLedger, ManualClock

REFUSALS = ("is nothing that this server reads", "goes up with ..", "is a relative path, which a server cannot read for its clients")


class Door:
    """The jobs application as a stranger and as the server's own user meet it, with one folder listed under ``sources.roots``."""

    def __init__(self, root: Path, **sources: Any) -> None:
        self.state, self.allowed, self.other = root / "state", root / "allowed", root / "other"
        for folder in (self.allowed, self.other):
            folder.mkdir()
            pq.write_table(pa.table({"text": ["one", "two"]}), folder / "docs.parquet")
            (folder / "notes.txt").write_text("secret words")
        clock, self.folder = ManualClock(), StateFolder(self.state)
        self.folder.prepare()
        self.key = make_key(self.folder)
        self.ledger = Ledger(Path(":memory:"), self.folder.jobs, lease_s=10.0, now_s=clock(), new_server=True)
        self.plans: list[JobPlan] = []
        planner = JobPlanner(self.folder, HarvestConfig(), "tiny", SourcesConfig(**{"roots": (str(self.allowed),)} | sources))
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(jobs_api(DirectLedger(self.ledger, clock), planner, self._info)), base_url="http://jobs"
        )

    async def _info(self) -> dict[str, Any]:
        return {"context_tokens": 512}

    async def submit(self, uri: str, key: str | None = None, **fields: Any) -> httpx.Response:
        body = json.dumps({"source": {"uri": uri, **fields.pop("source", {})}, **fields}).encode()
        headers = {"content-type": "application/json"}
        if key is not None:
            headers[HEADER] = signed(key, "POST", "/api/jobs", body, time.time())
        return await self.http.post("/jobs", content=body, headers=headers)

    async def refused(self, uri: str, **fields: Any) -> str:
        answer = await self.submit(uri, **fields)
        assert answer.status_code == 400, answer.text
        return str(answer.json()["error"]["message"])


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    made = Door(tmp_path)
    async with made.http:
        yield made
    made.ledger.close()


async def test_a_file_in_a_root_is_read(door: Door) -> None:
    for uri in (f"{door.allowed}/docs.parquet", f"{door.allowed}/*.parquet", f"{door.allowed}", f"file://{door.allowed}/docs.parquet"):
        assert (await door.submit(uri, new=True)).status_code == 201


@pytest.mark.parametrize(
    "uri",
    [
        "{other}/docs.parquet",
        "{other}/missing.parquet",
        "{other}/*.parquet",
        "{other}",
        "file://{other}/docs.parquet",
        "file://localhost{other}/docs.parquet",
        "{allowed}/../other/docs.parquet",
        "{allowed}/*/../../other/docs.parquet",
        "{allowed}/link.parquet",
        "{allowed}/folder/docs.parquet",
        "{allowed}/folder",
        "{allowed}/l*.parquet",
        "{allowed}/environ.txt",
        "{allowed}/state.db",
        "{allowed}/.hidden/docs.parquet",
        "{allowed}/.hidden.parquet",
        "duckdb:{other}/x.duckdb",
        "sqlite:{other}/x.db",
        "/proc/self/environ",
        "/dev/zero",
        "/sys/kernel/notes",
        "~/docs.parquet",
        "/",
        "docs.parquet",
    ],
)
async def test_whatever_leads_out_of_the_roots_is_refused_and_not_told_of(door: Door, uri: str) -> None:
    (door.allowed / "link.parquet").symlink_to(door.other / "docs.parquet")
    (door.allowed / "folder").symlink_to(door.other)
    (door.allowed / "environ.txt").symlink_to("/proc/self/environ")
    (door.allowed / ".hidden").mkdir()
    for hidden in (".hidden.parquet", ".hidden/docs.parquet"):
        (door.allowed / hidden).write_bytes((door.allowed / "docs.parquet").read_bytes())
    (door.allowed / "state.db").symlink_to(door.folder.ledger)
    message = await door.refused(uri.format(allowed=door.allowed, other=door.other), source={"table": "x"} if ".d" in uri else {})
    assert any(why in message for why in REFUSALS), message
    assert "does not exist" not in message
    assert str(Path.cwd()) not in message, "where the server runs is not the client's to know"


async def test_a_pipe_is_no_source(door: Door) -> None:
    os.mkfifo(door.allowed / "pipe.txt")
    os.mkfifo(door.allowed / "pipe.duckdb")
    assert "pipe.txt is no regular file" in await door.refused(f"{door.allowed}/pipe.txt")
    assert "pipe.duckdb is no regular file" in await door.refused(f"{door.allowed}/pipe.duckdb", source={"table": "docs"})


async def test_the_state_folder_is_no_source_even_within_a_root(tmp_path: Path) -> None:
    door = Door(tmp_path, roots=("/",))
    async with door.http:
        assert "is nothing that this server reads" in await door.refused(str(door.folder.user_key))
        assert "is nothing that this server reads" in await door.refused("/proc/self/environ")
        assert (await door.submit(f"{door.other}/docs.parquet")).status_code == 201
    door.ledger.close()


def test_roots_that_are_not_listed_are_one_folder_or_none_and_never_the_whole_disk(tmp_path: Path) -> None:
    assert SourcesConfig().with_roots(tmp_path).roots == (str(tmp_path),)
    assert SourcesConfig().with_roots(None).roots == ()
    assert SourcesConfig().with_roots(Path("/")).roots == ()
    assert SourcesConfig(roots=("/data",)).with_roots(tmp_path).roots == ("/data",)
    with pytest.raises(ConfigError, match="roots: data is not an absolute path"):
        parse_config({"sources": {"roots": ["data"]}}, "test")


@pytest.mark.parametrize(
    "uri",
    [
        "s3://bucket/docs.parquet",
        "s3://bucket/docs.parquet?endpoint_override=127.0.0.1:9000&scheme=http",
        "gs://bucket/docs.parquet",
        "hdfs://127.0.0.1:9000/docs.parquet",
        "ftp://127.0.0.1/docs.parquet",
        "local:///etc/passwd",
        "memory://docs.parquet",
        "zip://docs.parquet::http://127.0.0.1/x.zip",
        "postgres:host=127.0.0.1",
        "postgresql://127.0.0.1/shop",
        "mysql://127.0.0.1/shop",
        "odbc:dsn=x",
        "duckdb://x/y",
    ],
)
async def test_other_kinds_of_address_are_refused(door: Door, uri: str) -> None:
    assert (await door.refused(uri)).startswith(f"{uri} is nothing that this server reads for its clients")


async def test_chained_addresses_are_refused(door: Door) -> None:
    assert "chains two addresses" in await door.refused("http://127.0.0.1/x.parquet::file:///etc/passwd")
    assert "is a relative path" in await door.refused("simplecache::file:///etc/passwd")


async def test_a_long_address_is_refused_at_once(door: Door) -> None:
    assert "at most 4096 characters" in await door.refused("/" + "a*/" * 2000)


async def test_a_task_is_never_a_path(door: Door, tmp_path: Path) -> None:
    (tmp_path / "task.yaml").write_text("prompt: secret words {text}\nhidden: secret words\n")
    for task in (str(tmp_path / "task.yaml"), "/dev/zero", "/etc/passwd", "../builtin/ask.yaml", "./ask.yaml"):
        message = await door.refused(f"{door.allowed}/docs.parquet", task=task)
        assert "unknown task" in message
        assert "secret" not in message
    inline = {"prompt": "Summarize {text}"}
    assert (await door.submit(f"{door.allowed}/docs.parquet", task="mine", task_inline=inline)).status_code == 201


async def test_a_schema_refers_to_no_other_document(door: Door) -> None:
    for word in ("$ref", "$dynamicRef"):
        schema = {"type": "object", "properties": {"a": {word: "http://127.0.0.1:9/x"}}}
        message = await door.refused(f"{door.allowed}/docs.parquet", task="extract", options={"schema": schema})
        assert "leads nowhere" in message


async def test_the_servers_own_user_reads_what_the_user_may(door: Door) -> None:
    assert (await door.submit(f"{door.other}/docs.parquet", door.key)).status_code == 201
    assert (await door.submit(f"{door.other}/docs.parquet", "0" * 64)).status_code == 400


async def test_a_signature_holds_for_one_request_and_some_minutes(door: Door) -> None:
    body = json.dumps({"source": {"uri": f"{door.other}/docs.parquet"}}).encode()
    now_s = time.time()
    for value in (
        signed(door.key, "POST", "/api/jobs", body + b" ", now_s),
        signed(door.key, "POST", "/api/files", body, now_s),
        signed(door.key, "POST", "/api/jobs", body, now_s - 3600),
        signed(door.key, "POST", "/api/jobs", body, now_s + 3600),
        f"{int(now_s)}:",
        ":",
        "é" * 9,
    ):
        headers = {b"content-type": b"application/json", HEADER.encode(): value.encode()}
        assert (await door.http.post("/jobs", content=body, headers=headers)).status_code == 400, value


def test_the_key_is_its_users_alone(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    key = make_key(folder)
    assert stat.S_IMODE(folder.user_key.stat().st_mode) == 0o600
    assert make_key(folder) == key
    folder.user_key.chmod(0o644)  # somebody may have read it
    assert read_key(folder) is None
    assert make_key(folder) != key


async def test_a_job_is_read_later_by_the_rules_it_was_made_by(door: Door) -> None:
    view = (await door.submit(f"{door.allowed}/docs.parquet")).json()["job"]
    lease = door.ledger.lease("a", "tiny", 0.0)
    assert lease is not None
    assert lease.job.id == view["id"]
    source, _ = SourceCache(door.folder, open_parts).take(lease.job)
    source.close()
    moved = door.other / "moved.parquet"
    (door.allowed / "docs.parquet").rename(moved)
    (door.allowed / "docs.parquet").symlink_to(moved)
    with pytest.raises(SourceError, match="is nothing that this server reads"):
        SourceCache(door.folder, open_parts).take(lease.job)


class Site:
    """A web server at an address of loopback: ``/docs.jsonl``, and ``/away`` that redirects to ``away``."""

    def __init__(self, address: str) -> None:
        site = self
        self.away, self.asked = "", list[str]()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append(self.path)
                body = b'{"text": "one"}\n'
                self.send_response(302 if self.path.startswith("/away") else 200)
                if self.path.startswith("/away"):
                    self.send_header("location", site.away)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            def do_HEAD(self) -> None:
                self.do_GET()

            def log_message(self, *_: object) -> None:
                return

        self.http = ThreadingHTTPServer((address, 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://{address}:{self.http.server_address[1]}"
        self._thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self.http.shutdown()
        self._thread.join()
        self.http.server_close()


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site("127.0.0.1")
    yield made
    made.close()


@pytest.fixture
def inner() -> Iterator[Site]:
    """A service that nobody listed."""
    made = Site("127.0.0.2")
    yield made
    made.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "[::1]", "[::ffff:127.0.0.1]", "2130706433", "127.1"])
async def test_loopback_is_not_asked_by_any_of_its_names(door: Door, site: Site, host: str) -> None:
    said = await door.refused(f"{site.url.replace('127.0.0.1', host)}/docs.jsonl")
    assert "which this server does not read" in said, "and not that nobody answers there"
    assert site.asked == []


@pytest.mark.parametrize("host", ["169.254.169.254", "10.0.0.1", "192.168.1.1", "[fe80::1]", "224.0.0.1"])
async def test_link_local_and_private_addresses_are_not_asked(door: Door, host: str) -> None:
    assert "which this server does not read" in await door.refused(f"http://{host}/docs.jsonl")


def test_an_address_that_is_listed_is_read_and_one_that_it_redirects_to_is_not(site: Site, inner: Site) -> None:
    rules = SourceRules(hosts=("127.0.0.1",))
    with open_source(f"{site.url}/docs.jsonl", rules=rules) as source:
        assert source.row_count == 1
    site.away = f"{site.url}/docs.jsonl"
    with open_source(f"{site.url}/away.jsonl", rules=rules) as source:
        assert source.row_count == 1
    site.away = f"{inner.url}/docs.jsonl"
    with pytest.raises(SourceError):
        open_source(f"{site.url}/away.jsonl", rules=rules)
    assert inner.asked == []


def test_a_name_is_checked_where_it_leads_when_it_is_asked(site: Site, inner: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is listed, and leads to an address of loopback: only where that is listed too is it asked."""
    found = socket.getaddrinfo

    def resolved(host: Any, *rest: Any, **more: Any) -> Any:
        return found("127.0.0.2" if host == "inner.example" else host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    site.away = inner.url.replace("127.0.0.2", "inner.example") + "/docs.jsonl"
    with pytest.raises(SourceError):
        open_source(f"{site.url}/away.jsonl", rules=SourceRules(hosts=("127.0.0.1", "inner.example")))
    assert inner.asked == []
    with open_source(f"{site.url}/away.jsonl", rules=SourceRules(hosts=("127.0.0.1", "inner.example", "127.0.0.2"))) as source:
        assert source.row_count == 1
    assert "/docs.jsonl" in inner.asked


def test_a_signed_address_is_read(site: Site) -> None:
    with open_source(f"{site.url}/docs.jsonl?X-Amz-Signature=abc", rules=SourceRules(hosts=("127.0.0.1",))) as source:
        assert (source.name, source.row_count) == ("docs", 1)
    assert site.asked[0] == "/docs.jsonl?X-Amz-Signature=abc"
