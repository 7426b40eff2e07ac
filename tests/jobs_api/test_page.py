"""The page's documents, its live events, and the wall against other sites; with replicas and a ledger of the test's own making."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from harvester.core import Role
from harvester.engine.frontend.metrics import TimeWindow
from harvester.errors import BusyError
from harvester.serve.access.gate import Gate
from harvester.serve.access.identity import Identity
from harvester.serve.access.origin import OriginCheck, known_hosts
from harvester.serve.access.routes import BATCH, OPEN, RouteTable
from harvester.serve.access.wall import guard
from harvester.serve.http.jobs.jobs_api import jobs_api
from harvester.serve.http.live.broadcast import Broadcaster, Frame
from harvester.serve.http.live.events import MAX_ACTIVE, FrameSource, OwnJobs, add_events
from harvester.serve.http.live.rates import RateWindow
from harvester.serve.http.page import POLICY, STATIC, add_page
from harvester.serve.openai.api import openai_api
from jobs.batches.files import FileStore
from jobs.ledger.counts import JobsNow
from jobs.plan.planner import JobPlanner
from jobs.testing import DirectLedger, ManualClock, scripted_plan
from tests.fakes.office import INFO, Office, refused
from tests.fakes.replica_report import replica


def planner(office: Office) -> JobPlanner:
    return office.planner


# -- the documents ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
async def root() -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    add_page(app)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://chat") as http:
        yield http


async def test_the_page_is_at_the_root_and_may_load_nothing_from_elsewhere(root: httpx.AsyncClient) -> None:
    answer = await root.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY
    assert not re.search(r"<script(?![^>]* src=)|\son\w+=|\sstyle=", answer.text), "nothing inline, which the policy forbids"


async def test_the_page_is_not_sent_again_while_it_is_the_same(root: httpx.AsyncClient) -> None:
    tag = (await root.get("/")).headers["etag"]
    again = await root.get("/", headers={"if-none-match": tag})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("page.css", "text/css"), ("page.js", "text/javascript"), ("uPlot.iife.min.js", "text/javascript"), ("uPlot.min.css", "text/css")],
)
async def test_what_the_page_loads_is_below_the_api(office: Office, name: str, kind: str) -> None:
    answer = await office.http.get(f"/page/{name}")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == f"{kind}; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert f'"/api/page/{name}"' in (STATIC / "index.html").read_text()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("index.html", "unknown file index.html"),
        ("page.js.map", "unknown file page.js.map"),
        ("..%2fpage.py", "unknown route GET /page/.."),
    ],
)
async def test_other_files_are_not_served(office: Office, name: str, why: str) -> None:
    assert refused(await office.http.get(f"/page/{name}"), 404).startswith(why)


@pytest.mark.parametrize("path", sorted(STATIC.glob("*.js")), ids=lambda path: path.name)
def test_no_script_sets_markup_or_names_another_host(path: Path) -> None:
    script = path.read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|https?://", script)


async def test_every_part_that_a_script_imports_is_served(office: Office) -> None:
    scripts = [path.read_text() for path in STATIC.glob("*.js")]
    parts = {name for script in scripts for name in re.findall(r'from "\./([\w.]+)"', script)}
    assert len(parts) > 5
    assert {(await office.http.get(f"/page/{name}")).status_code for name in parts} == {200}


def test_the_chart_library_lies_beside_its_licence() -> None:
    assert "Permission is hereby granted" in (STATIC / "uplot" / "LICENSE").read_text()


async def test_tasks_come_with_their_options(office: Office) -> None:
    tasks = {task["name"]: task for task in (await office.http.get("/tasks")).json()["tasks"]}
    assert {"summarize", "classify", "extract", "translate", "ask"} <= set(tasks)
    assert tasks["classify"]["options"]["labels"]["required"] is True


# -- other sites --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({}, True),
        ({"sec-fetch-site": "same-origin", "origin": "https://jobs.example"}, True),
        ({"sec-fetch-site": "none"}, True),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"origin": "http://jobs"}, True),
        ({"origin": "http://jobs:81"}, False),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "null"}, False),
        ({"origin": "http://["}, False),
    ],
    ids=[
        "a program",
        "the page",
        "the address bar",
        "a sibling site",
        "another site",
        "own origin",
        "another port",
        "foreign",
        "opaque",
        "no address",
    ],
)
async def test_only_the_servers_own_page_and_programs_change_jobs(office: Office, headers: dict[str, str], passes: bool) -> None:
    job = await office.submitted()
    answer = await office.http.post(f"/jobs/{job.id}/pause", headers=headers)
    if passes:
        assert answer.json()["state"] == "paused"
    else:
        assert "another site" in refused(answer, 403) or headers["origin"] in refused(answer, 403)
        assert (await office.http.get(f"/jobs/{job.id}")).json()["state"] == "queued"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", None])
async def test_a_form_of_another_site_that_poses_as_json_is_refused(office: Office, kind: str | None) -> None:
    body = json.dumps({"source": {"uri": str(office.docs)}}).encode()
    answer = await office.http.post("/jobs", content=body, headers={} if kind is None else {"content-type": kind})
    refused(answer, 400)
    assert (await office.http.get("/jobs")).json()["jobs"] == []


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200),
        ("[::1]:8000", 200),
        ("localhost:8000", 200),
        ("harvester.example", 200),
        ("evil.example:8000", 403),
        ("", 403),
    ],
)
async def test_a_server_on_loopback_is_not_read_under_a_foreign_name(office: Office, host: str, status: int) -> None:
    async def info() -> dict[str, Any]:
        return INFO

    app = jobs_api(
        DirectLedger(office.ledger, office.clock),
        planner(office),
        info,
        gate=Gate(origin=OriginCheck(known_hosts("127.0.0.1", ["Harvester.example"]))),
    )
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as http:
        answer = await http.get("/server", headers={"host": host})
    assert answer.status_code == status, answer.text


async def test_files_are_behind_the_same_wall_and_refused_as_openai_does(tmp_path: Path) -> None:
    app = openai_api(FileStore(tmp_path, ManualClock()), None, gate=Gate(origin=OriginCheck(())))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http:
        form = {"files": {"file": b"{}"}, "data": {"purpose": "batch"}}
        foreign = await http.post("/", headers={"origin": "http://evil.example"}, **form)  # type: ignore[arg-type]
        renamed = await http.get("/", headers={"host": "evil.example"})
    for answer in (foreign, renamed):
        assert answer.status_code == 403
        assert (answer.json()["error"]["type"], answer.json()["error"]["code"]) == ("invalid_request_error", "cross_site")


def test_a_server_on_the_network_is_called_by_names_it_does_not_know() -> None:
    assert known_hosts("0.0.0.0", ()) is None


# -- what happens now ---------------------------------------------------------------------------------------------------------------


def test_rates_and_shares_are_of_the_last_seconds() -> None:
    pulse = RateWindow()
    work = {"running": 1, "waiting": 2}
    pulse.take([replica(100.0, busy_s=50.0, harvested_s=40.0, online={**work, "tokens": 0}, offline={**work, "tokens": 1000})])
    later = replica(104.0, busy_s=53.0, harvested_s=42.0, online={**work, "tokens": 100}, offline={**work, "tokens": 1300})
    (now,) = pulse.take([later])
    assert (now["busy_time"], now["harvested_time"], now["harvested_tokens"]) == (0.75, 0.5, 0.75)
    assert now["offline"] == {"running": 1, "waiting": 2, "tokens_per_s": 75.0}


def test_at_the_first_look_there_is_no_rate() -> None:
    (now,) = RateWindow().take([replica()])
    assert (now["busy_time"], now["harvested_tokens"], now["online"]["tokens_per_s"]) == (None, None, None)


def test_what_was_long_ago_counts_no_more() -> None:
    pulse = RateWindow()
    for second in range(60):
        (now,) = pulse.take([replica(float(second), busy_s=min(second, 30.0))])
    assert now["busy_time"] == 0.0


def test_the_time_in_which_nobody_watched_counts_in_no_rate() -> None:
    rates = RateWindow()
    for second in range(12):
        rates.take([replica(float(second), busy_s=0.5 * second)])
    counters: dict[str, Any] = {"busy_s": 3500.0, "harvested_s": 3500.0}
    (back,) = rates.take([replica(3600.0, **counters)])
    (next_look,) = rates.take([replica(3601.0, **counters)])
    assert (back["busy_time"], back["harvested_time"]) == (None, None)
    assert (next_look["busy_time"], next_look["harvested_time"]) == (0.0, 0.0)


def test_a_replica_that_began_anew_is_not_compared_with_the_one_before() -> None:
    pulse = RateWindow()
    pulse.take([replica(10.0, busy_s=9.0)])
    (now,) = pulse.take([replica(11.0, busy_s=0.5)])
    assert now["busy_time"] is None


def test_latencies_are_told_in_milliseconds_beside_what_is_promised() -> None:
    (now,) = RateWindow().take([replica(ttft={"count": 3, "p50": 0.0123456, "p99": 0.7})])
    assert now["ttft"] == {"count": 3, "p50": 12.35, "p99": 700.0, "slo": 500.0, "slowdown": None}
    assert now["tpot"] == {"count": 0, "p50": None, "p99": None, "slo": 100.0, "slowdown": None}


def test_chat_that_is_promised_no_number_is_told_beside_what_it_would_have_had() -> None:
    rates = RateWindow()
    rates.take([replica(1.0, ttft_slo_s=None, ttft_s=(10.0, 10.0), tpot_s=(1.0, 1.0))])
    (now,) = rates.take([replica(2.0, ttft_slo_s=None, ttft_s=(12.4, 12.0), tpot_s=(1.0, 1.0))])
    assert (now["ttft"]["slo"], now["ttft"]["slowdown"], now["tpot"]["slowdown"]) == (None, 1.2, None)


def test_a_replica_without_a_board_is_left_out() -> None:
    assert RateWindow().take([{"id": "a"}, replica(name="b")])[0]["id"] == "b"


async def test_a_look_tells_of_replicas_and_jobs(office: Office) -> None:
    job = await office.submitted()

    async def replicas() -> list[dict[str, Any]]:
        return [replica()]

    frame = await FrameSource(replicas, Ledger(office), INFO, now_s=lambda: 1234.5678)()
    assert json.loads(frame["server"]) == INFO
    assert [one["id"] for one in json.loads(frame["replicas"])] == ["a"]
    assert frame["look"] == "1234.568"
    (shown,) = json.loads(frame["jobs"])["jobs"]
    assert (shown["id"], shown["state"], shown["rows_total"], shown["eta_s"]) == (job.id, "queued", 4, None)
    assert frame["trouble"] == "null"


async def test_old_jobs_that_have_ended_are_only_counted(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harvester.serve.http.live.events.MAX_ENDED", 2)
    going, *ended = [(await office.submitted(new=True)).id for _ in range(5)]
    for job in ended:
        await office.post(f"/jobs/{job}/cancel")
    frame = await FrameSource(no_replicas, Ledger(office), INFO)()
    listed = json.loads(frame["jobs"])
    assert ({job["id"] for job in listed["jobs"]}, listed["older"]) == ({going, *ended[-2:]}, 2)


class Names:
    """Authenticates each caller by its name, which is its key: `boss` as the administrator."""

    def asks_for_key(self) -> bool:
        return True

    def identify(self, bearer: str) -> Identity:
        return Identity(bearer, frozenset({Role.ADMIN if bearer == "boss" else Role.BATCH}))


async def test_a_key_sees_its_own_ended_jobs_whatever_others_made_since(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harvester.serve.http.live.events.MAX_ENDED", 3)
    monkeypatch.setattr("jobs.ledger.counts.OWN_SHOWN", 2)
    for number, owner in enumerate(["anna"] * 5 + ["ben"] * 4):
        plan = scripted_plan(f"{owner}-{number}", created_at_s=float(number))
        job, _ = office.ledger.submit(plan.model_copy(update={"spec": plan.spec.model_copy(update={"owner": owner})}), new=True)
        office.ledger.cancel(job.id, 10.0)
    app = FastAPI()
    add_events(app, Broadcaster(FrameSource(no_replicas, Ledger(office), INFO)))
    guard(app, RouteTable({"GET /events": BATCH}), Gate(Names()))

    async def shown(key: str) -> tuple[list[str], int]:
        told = json.loads((await stream(app, "event: trouble", key)).partition("event: jobs\ndata: ")[2].splitlines()[0])
        return [job["id"] for job in told["jobs"]], told["older"]

    assert await shown("anna") == (["anna-4", "anna-3"], 3)
    assert await shown("ben") == (["ben-8", "ben-7", "ben-6"], 1)
    assert await shown("carl") == ([], 0)
    assert await shown("boss") == (["ben-8", "ben-7", "ben-6", "anna-4", "anna-3"], 4)


def test_the_ended_jobs_of_many_owners_are_bounded(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.ledger.counts.OWNERS_SHOWN", 3)
    for number in range(9):
        plan = scripted_plan(f"job-{number}", created_at_s=float(number))
        job, _ = office.ledger.submit(plan.model_copy(update={"spec": plan.spec.model_copy(update={"owner": f"owner-{number}"})}), new=True)
        office.ledger.cancel(job.id, 10.0)
    assert [view.id for view in office.ledger.now(1).views] == ["job-8", "job-7", "job-6"]


async def test_a_frame_is_bounded_whatever_the_number_of_jobs(office: Office) -> None:
    waiting = MAX_ACTIVE + 1000
    for number in range(waiting):
        office.ledger.submit(scripted_plan(f"job-{number}", created_at_s=float(number)), new=True)
    frame = await FrameSource(no_replicas, Ledger(office), INFO)()
    told = json.loads(frame["jobs"])
    assert [job["id"] for job in told["jobs"]] == [f"job-{number}" for number in range(waiting - 1, waiting - 1 - MAX_ACTIVE, -1)]
    assert told["older"] == 1000
    assert len(frame["jobs"]) < 1000 * MAX_ACTIVE


def test_what_runs_is_listed_before_what_waits(office: Office) -> None:
    for number in range(5):
        office.ledger.submit(scripted_plan(f"job-{number}", created_at_s=float(number)), new=True)
    lease = office.ledger.lease("a", "scripted", 10.0)
    assert lease is not None
    office.ledger.pause("job-4", 10.0)
    now = office.ledger.now(0, 2)
    assert [view.id for view in now.views] == ["job-4", lease.job.id]
    assert now.older == 3
    assert len(office.ledger.now(0).views) == 5


async def test_a_key_sees_its_own_waiting_jobs_behind_those_of_others(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harvester.serve.http.live.events.MAX_ACTIVE", 2)
    for number, owner in enumerate(["anna"] * 3 + ["ben"] * 4):
        plan = scripted_plan(f"{owner}-{number}", created_at_s=float(number))
        office.ledger.submit(plan.model_copy(update={"spec": plan.spec.model_copy(update={"owner": owner})}), new=True)
    frame = await FrameSource(no_replicas, Ledger(office), INFO)()
    own_jobs, anna = OwnJobs(), Identity("anna", frozenset({Role.BATCH}))
    text = own_jobs.of(frame["jobs"], anna)
    told = json.loads(text)
    assert ([job["id"] for job in told["jobs"]], told["older"]) == (["anna-2", "anna-1"], 1)
    assert own_jobs.of(frame["jobs"], anna) is text, "made once for all viewers"
    assert json.loads(own_jobs.of(json.dumps({"jobs": [], "owned": {}}), anna)) == {"jobs": [], "older": 0}


class Ledger:
    def __init__(self, office: Office) -> None:
        self._office = office

    async def now(self, ended: int, active: int | None = None) -> JobsNow:
        return self._office.ledger.now(ended, active)


async def no_replicas() -> list[dict[str, Any]]:
    return []


async def test_replicas_that_do_not_answer_are_said_to_and_the_jobs_are_shown(office: Office) -> None:
    async def replicas() -> list[dict[str, Any]]:
        raise RuntimeError("the actor died")

    frame = await FrameSource(replicas, Ledger(office), INFO)()
    assert "replicas" not in frame
    assert "jobs" in frame
    assert "No replica answers" in json.loads(frame["trouble"])


@pytest.mark.parametrize(("share", "expected"), [("p50", 50.0), ("p99", 99.0)])
def test_quantiles_are_values_that_were_seen(share: str, expected: float) -> None:
    recent = TimeWindow()
    for value in range(100, 0, -1):
        recent.note(float(value), now_s=10.0)
    told = recent.quantiles(now_s=10.0)
    assert told is not None
    assert (told["count"], told[share]) == (100, expected)


def test_values_older_than_a_minute_are_forgotten() -> None:
    recent = TimeWindow()
    recent.note(1.0, now_s=0.0)
    recent.note(2.0, now_s=50.0)
    assert recent.quantiles(now_s=61.0) == {"count": 1, "p50": 2.0, "p99": 2.0}
    assert recent.quantiles(now_s=200.0) is None


# -- watching -----------------------------------------------------------------------------------------------------------------------


class Source:
    """FrameSource that are told one at a time."""

    def __init__(self) -> None:
        self.looks: asyncio.Queue[Frame] = asyncio.Queue()
        self.asked = 0

    async def __call__(self) -> Frame:
        self.asked += 1
        return await self.looks.get()


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def broadcaster(source: Source) -> Broadcaster:
    return Broadcaster(source, every_s=0.0, max_viewers=2)


async def test_nobody_looks_while_nobody_watches(source: Source, broadcaster: Broadcaster) -> None:
    with broadcaster.seat():
        await asyncio.sleep(0)
        assert (broadcaster.is_polling, source.asked) == (True, 1)
    assert not broadcaster.is_polling


async def test_viewers_share_one_look(source: Source, broadcaster: Broadcaster) -> None:
    with broadcaster.seat(), broadcaster.seat():
        first, second = broadcaster.frames(), broadcaster.frames()
        waiting = asyncio.gather(anext(first), anext(second))
        await source.looks.put({"jobs": "1"})
        assert list(await waiting) == [{"jobs": "1"}, {"jobs": "1"}]
        assert source.asked == 2, "the look that both saw, and the next"


async def test_a_viewer_is_told_what_is_new_to_it(source: Source, broadcaster: Broadcaster) -> None:
    with broadcaster.seat():
        frames = broadcaster.frames()
        told = []
        for frame in ({"jobs": "1", "look": "1"}, {"jobs": "1", "look": "2"}, {"jobs": "2", "look": "3"}):
            waiting = asyncio.ensure_future(anext(frames))
            await source.looks.put(frame)
            told.append(await waiting)
        late = broadcaster.frames()
        assert told == [{"jobs": "1", "look": "1"}, {"look": "2"}, {"jobs": "2", "look": "3"}]
        assert await anext(late) == {"jobs": "2", "look": "3"}, "who comes later sees at once how it stands"


async def test_more_viewers_than_seats_are_refused_and_a_seat_comes_free(broadcaster: Broadcaster) -> None:
    with broadcaster.seat():
        with broadcaster.seat(), pytest.raises(BusyError, match="2 pages are open"), broadcaster.seat():
            pass
        with broadcaster.seat():
            assert broadcaster.is_polling


# -- the stream ---------------------------------------------------------------------------------------------------------------------


async def stream(app: FastAPI, until: str, key: str | None = None) -> str:
    """GET /events as a browser does, hanging up once ``until`` was sent. httpx would wait for the end of the body."""
    sent = ""
    gone = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal sent
        if message["type"] == "http.response.start":
            sent += f"{message['status']}\n"
        sent += message.get("body", b"").decode()
        if until in sent:
            gone.set()

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/events",
        "raw_path": b"/events",
        "query_string": b"",
        "headers": [] if key is None else [(b"authorization", f"Bearer {key}".encode())],
        "root_path": "",
    }
    scope |= {"http_version": "1.1", "scheme": "http", "server": ("x", 80), "client": ("x", 1)}
    await asyncio.wait_for(app(scope, receive, send), 10)
    return sent


async def test_the_stream_is_of_named_events_and_ends_with_its_reader(source: Source, broadcaster: Broadcaster) -> None:
    app = FastAPI()
    add_events(app, broadcaster)
    guard(app, RouteTable({"GET /events": OPEN}), Gate())
    await source.looks.put({"look": "1", "trouble": "null"})
    sent = await stream(app, "data: null\n\n")
    assert sent.startswith("200\n")
    assert "retry: 2000\n" in sent
    assert "\n\nevent: look\ndata: 1\n\nevent: trouble\ndata: null\n\n" in sent
    assert not broadcaster.is_polling, "the seat is given back"


async def test_a_page_too_many_is_told_so(office: Office, source: Source) -> None:
    async def info() -> dict[str, Any]:
        return INFO

    app = jobs_api(DirectLedger(office.ledger, office.clock), planner(office), info, broadcaster=Broadcaster(source, max_viewers=0))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as http:
        assert "close one" in refused(await http.get("/events"), 503)
