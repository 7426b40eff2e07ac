"""A credential in a source's address is in no answer, table, log or file that others read, and the source is still read."""

from __future__ import annotations

import json
import logging
import stat
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest

from connectors.errors import SourceError
from harvester.serve.http.jobs.jobs_api import jobs_api
from jobs.config import HarvestConfig, SecretConfig, SourcesConfig
from jobs.ledger.ledger import Ledger
from jobs.plan.planner import JobPlanner
from jobs.run.slice import SourceCache, open_parts
from jobs.storage.folder import StateFolder
from jobs.testing import DirectLedger, ManualClock

SECRET = "hunter2-and-more"


@pytest.fixture
def asked() -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """The address of a site, and each path and Authorization that it was asked with."""
    seen: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append((self.path, self.headers.get("authorization")))
            body = b'{"text": "one"}\n'
            self.send_response(200 if SECRET in self.path or self.headers.get("authorization") else 401)
            self.send_header("content-length", str(len(body)))
            self.send_header("etag", '"1"')  # by which a copy that is lost may be made again
            self.end_headers()
            self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.send_error(405)

        def log_message(self, *_: object) -> None:
            return

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    thread = Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"127.0.0.1:{http.server_address[1]}", seen
    http.shutdown()
    thread.join()
    http.server_close()


class Office:
    def __init__(self, root: Path, secrets: dict[str, SecretConfig] | None = None) -> None:
        clock, self.folder = ManualClock(), StateFolder(root / "state")
        self.folder.prepare()
        self.ledger = Ledger(self.folder.ledger, self.folder.jobs, lease_s=10.0, now_s=clock(), new_server=True)
        planner = JobPlanner(self.folder, HarvestConfig(), "tiny", SourcesConfig(hosts=("127.0.0.1",)), secrets)
        app = jobs_api(DirectLedger(self.ledger, clock), planner, self._info)
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://jobs")

    async def _info(self) -> dict[str, Any]:
        return {"context_tokens": 512}

    async def submit(self, uri: str) -> httpx.Response:
        return await self.http.post("/jobs", json={"source": {"uri": uri}})

    def kept(self) -> Iterator[Path]:
        return (path for path in self.folder.root.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes())


@pytest.mark.parametrize("form", ["http://bob:{secret}@{host}/docs.jsonl", "http://{host}/docs.jsonl?token={secret}&a=1"])
async def test_it_is_kept_in_a_file_of_the_jobs_own(tmp_path: Path, asked: Any, form: str, caplog: pytest.LogCaptureFixture) -> None:
    host, seen = asked
    office = Office(tmp_path)
    with caplog.at_level(logging.DEBUG, logger="harvester"):
        answer = await office.submit(form.format(secret=SECRET, host=host))
    assert answer.status_code == 201, answer.text
    assert any(SECRET in path or login for path, login in seen)
    job = answer.json()["job"]["id"]
    told = [answer.text, caplog.text, (await office.http.get("/jobs")).text, (await office.http.get(f"/jobs/{job}")).text]
    for query in ("from jobs", "from ledger.jobs", "select spec from ledger.jobs", "from query('from ledger.jobs')"):
        told.append((await office.http.post("/sql", json={"query": query})).text)
    told.append((await office.http.get("/ledger/jobs")).content.decode("latin-1"))
    assert all(SECRET not in text for text in told)
    assert "${" in json.loads(told[2])["jobs"][0]["source"]
    office.ledger.close()
    (only,) = office.kept()
    assert (only, stat.S_IMODE(only.stat().st_mode)) == (office.folder.jobs / job / "secrets.json", 0o600)
    await office.http.aclose()


async def test_a_source_that_is_refused_leaves_and_tells_none(tmp_path: Path, asked: Any) -> None:
    host, _ = asked
    office = Office(tmp_path)
    for uri in (f"http://bob:{SECRET}@{host}/docs.none", f"http://bob:{SECRET}@127.0.0.9:1/docs.jsonl", f"postgres://bob:{SECRET}@h/x"):
        answer = await office.submit(uri)
        assert (answer.status_code, SECRET in answer.text) == (400, False)
    assert list(office.folder.jobs.iterdir()) == []
    assert list(office.kept()) == []
    office.ledger.close()
    await office.http.aclose()


async def test_a_replica_puts_it_back(tmp_path: Path, asked: Any) -> None:
    host, seen = asked
    office = Office(tmp_path)
    job = (await office.submit(f"http://{host}/docs.jsonl?token={SECRET}")).json()["job"]["id"]
    for copy in office.folder.snapshot(job).iterdir():
        copy.unlink()
    seen.clear()
    lease = office.ledger.lease("a", "tiny", 0.0)
    assert lease is not None
    source, _ = SourceCache(office.folder, open_parts).take(lease.job)
    source.close()
    assert seen[0][0] == f"/docs.jsonl?token={SECRET}"
    (office.folder.jobs / job / "secrets.json").unlink()
    with pytest.raises(SourceError, match=r"credentials of .* cannot be read from"):
        SourceCache(office.folder, open_parts).take(lease.job)
    office.ledger.close()
    await office.http.aclose()


@pytest.mark.parametrize("where", ["env", "file"])
async def test_a_named_secret_is_looked_up_when_the_source_is_opened(
    tmp_path: Path, asked: Any, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    host, seen = asked
    (tmp_path / "shop").write_text(SECRET + "\n")
    monkeypatch.setenv("SHOP_TOKEN", SECRET)
    given = {"env": "SHOP_TOKEN"} if where == "env" else {"file": str(tmp_path / "shop")}
    office = Office(tmp_path, {"shop": SecretConfig.model_validate({**given, "prefix": f"http://{host}/"})})
    answer = await office.submit(f"http://{host}/docs.jsonl?token=${{shop}}")
    assert answer.status_code == 201, answer.text
    assert seen[0][0] == f"/docs.jsonl?token={SECRET}"
    assert answer.json()["job"]["source"].endswith("token=${shop}")
    assert list(office.kept()) == []
    office.ledger.close()
    await office.http.aclose()


async def test_a_named_secret_is_sent_nowhere_else(tmp_path: Path, asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    host, seen = asked
    monkeypatch.setenv("SHOP_TOKEN", SECRET)
    office = Office(
        tmp_path, {"shop": SecretConfig(env="SHOP_TOKEN", prefix="http://127.0.0.1:1"), "gone": SecretConfig(env="X9", prefix="http:")}
    )
    for name, says in (("shop", "is not for"), ("other", "does not name under secrets"), ("gone", "X9 is not set")):
        answer = await office.submit(f"http://{host}/docs.jsonl?token=${{{name}}}")
        assert answer.status_code == 400
        assert says in answer.json()["error"]["message"]
    assert seen == []
    office.ledger.close()
    await office.http.aclose()
