"""Machines that share no disk: a bucket has the files of their jobs, a database the ledger. Any of them may be lost, the head too."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from bench.harness.fleet.machines import Fleet, lasting, why_not
from bench.harness.load.stream import Stream
from tests.fleet.server import FleetServer
from tests.s3_server import s3_server
from tests.scripted_server import NAMES, wait_until, whole
from tools.postgres import Postgres
from tools.s3 import CREDENTIALS

pytestmark = [pytest.mark.serve, pytest.mark.long, pytest.mark.timeout(1800)]
MACHINES = 3
ROWS, DELAY_S = 1200, 0.2
SHORT, LONG = 3, 100  # tokens, ten a second
CHATS, LOST_CHATS = 40, 1  # one after the other: the first to a machine without power is lost, the next ones know
NOTICED_S = 60.0  # Ray's
AFTER_S = 30.0  # in which the streams end that went through a machine without power
HARVEST: dict[str, Any] = {"max_slice_rows": 16, "min_slice_rows": 16, "concurrency": 4, "lease_s": 15.0, "spool_send_s": 1.0}


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The head's own; on the other machines there are folders of their own at the same path."""
    return tmp_path_factory.mktemp("own")


@pytest.fixture(scope="module")
def fleet(database: Postgres, disk: Path) -> Iterator[Fleet]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    (disk / "gcs").mkdir()
    variables = CREDENTIALS | lasting(disk / "gcs")
    with Fleet(MACHINES, [database.folder], variables=variables, of_head=[disk]) as running, running.head.inside():
        yield running


@pytest.fixture(scope="module")
def server(fleet: Fleet, database: Postgres, disk: Path) -> Iterator[FleetServer]:
    with s3_server(fleet.head.address) as s3:
        storage = f"{s3.bucket('jobs')}/harvester{s3.options}"
        with FleetServer(
            fleet, disk / "state", delay_s=DELAY_S, replicas=MACHINES, harvest=HARVEST, storage=storage, ledger=database.new()
        ) as running:
            yield running


def uploaded(server: FleetServer, first: int = 0) -> str:
    """A job made of rows that come over HTTP, so that no file of it is anywhere but in the storage."""
    data = "".join(json.dumps({"text": f"row {number}"}) + "\n" for number in range(first, first + ROWS)).encode()
    path = f"{server.url}/api/uploads/{hashlib.sha256(data).hexdigest()}/docs.jsonl"
    answer = httpx.put(path, content=data, params={"last": True}, timeout=120)
    assert answer.status_code == 200, answer.text
    request = {"source": {"uri": answer.json()["uri"]}, "task": "summarize", "column": "text"}
    made = httpx.post(f"{server.url}/api/jobs", json=request, timeout=120)
    assert made.status_code == 201, made.text
    return str(made.json()["job"]["id"])


def chatted(server: FleetServer) -> int | None:
    """The status of a short chat; None where no answer comes while Ray has not noticed."""
    try:
        return httpx.post(f"{server.url}/v1/chat/completions", json={"max_tokens": 0}, timeout=NOTICED_S / 10).status_code
    except httpx.ReadTimeout:
        return None


def results(server: FleetServer, job: str) -> list[dict[str, Any]]:
    answer = httpx.get(f"{server.url}/api/jobs/{job}/results", timeout=120)
    assert answer.status_code == 200, answer.text
    rows: list[dict[str, Any]] = pa.ipc.open_stream(io.BytesIO(answer.content)).read_all().sort_by("row_id").to_pylist()
    return rows


def test_a_lost_machine_and_its_disk_cost_no_row_and_no_stream_of_others(server: FleetServer, fleet: Fleet) -> None:
    wait_until(lambda: sorted(server.where("replica")) == ["n0", "n1", "n2"], "a replica on each machine")
    job = uploaded(server)
    server.wait_rows(job, ROWS // 10)
    assert server.where("ledger") == ["n0"]
    lost = fleet.machines[2]
    lost.unplug()
    lost.kill()
    lost.run("rm", "-rf", str(server.state))
    assert httpx.get(f"{server.url}/api/jobs/{job}", timeout=20).status_code == 200  # Ray has not noticed yet
    statuses = [status for _ in range(CHATS) if (status := chatted(server)) is not None]
    assert statuses == [200] * len(statuses)
    assert len(statuses) >= CHATS - LOST_CHATS
    shown = httpx.get(f"{server.url}/api/metrics", timeout=20).text
    assert "harvester_job_rows_total" in shown
    assert len(set(re.findall(r'replica="(\d+)"', shown))) == MACHINES - 1
    lost.plug_in()
    fleet.join(lost)
    view = server.wait_rows(job, ROWS + 1)
    assert (view["state"], view["rows_ok"]) == ("completed", ROWS)
    rows = results(server, job)
    assert [row["row_id"] for row in rows] == list(range(ROWS))
    assert [row["output"] for row in rows] == [str(number) for number in range(ROWS)]
    wait_until(lambda: len(server.where("replica")) == MACHINES, "a replica in its place")
    assert whole([Stream(server.url, SHORT)]) == [True]


def test_a_machine_without_power_stops_no_replica_that_answered_through_it(server: FleetServer, fleet: Fleet) -> None:
    wait_until(lambda: len(server.where("replica")) == MACHINES, "a replica on each machine")
    lost = fleet.machines[2]
    url = f"http://{lost.address}:{server.port}"
    wait_until(lambda: whole([Stream(url, SHORT)]) == [True], "its port")
    through = [Stream(url, LONG) for _ in range(2 * MACHINES)]
    for stream in through:
        stream.begun()
    lost.unplug()
    lost.kill()
    end_s = time.monotonic() + AFTER_S
    statuses = []
    while time.monotonic() < end_s:
        statuses.append(chatted(server))
    assert set(statuses) <= {200, None}
    assert statuses.count(None) <= LOST_CHATS, statuses
    lost.plug_in()
    fleet.join(lost)
    wait_until(lambda: len(server.where("replica")) == MACHINES, "a replica in its place")


def test_a_machine_that_was_without_network_for_a_while_writes_nothing_twice(server: FleetServer, fleet: Fleet) -> None:
    """Its replica lives on meanwhile, with rows whose leases others get."""
    job = uploaded(server, first=ROWS)
    server.wait_rows(job, ROWS // 10)
    away = fleet.machines[1]
    away.unplug()
    view = server.wait_rows(job, ROWS + 1)
    away.plug_in()
    assert (view["state"], view["rows_ok"]) == ("completed", ROWS)
    again = uploaded(server, first=2 * ROWS)
    server.wait_rows(again, ROWS + 1)
    for number, done in enumerate((job, again), 1):
        assert [row["output"] for row in results(server, done)] == [str(row) for row in range(number * ROWS, (number + 1) * ROWS)]


def test_a_lost_head_costs_no_row_and_no_chat_of_other_machines(server: FleetServer, fleet: Fleet) -> None:
    job = uploaded(server, first=3 * ROWS)
    server.wait_rows(job, ROWS // 10)
    other = fleet.machines[2]  # not the one whose network was cut: on a slow machine that lasts so long that Ray ends what ran there
    beside, own = f"http://{other.address}:{server.port}", {process.pid for process in other.find(NAMES["replica"])}
    streams = [Stream(beside, LONG) for _ in range(4 * MACHINES)]
    for stream in streams:
        stream.begun()
    kept = [stream for stream in streams if stream.replica in own]
    assert kept
    fleet.head.kill()
    assert whole([Stream(beside, SHORT), *kept]) == [True] * (1 + len(kept))
    fleet.head.forget_cluster()
    fleet.head.start_node(1, variables=CREDENTIALS | lasting(server.state.parent / "gcs"))
    server.start_again()
    assert server.where("ledger") == ["n0"]
    view = server.wait_rows(job, ROWS + 1)
    assert (view["state"], view["rows_ok"]) == ("completed", ROWS)
    assert [row["output"] for row in results(server, job)] == [str(number) for number in range(3 * ROWS, 4 * ROWS)]


def test_results_are_read_where_their_copies_are_not(server: FleetServer) -> None:
    job = server.get("/api/jobs")["jobs"][0]["id"]
    shutil.rmtree(server.state / "jobs")
    assert len(results(server, job)) == ROWS
    answer = httpx.post(f"{server.url}/api/sql", json={"query": f"select count(*) from results('{job}')"}, timeout=120)
    assert answer.json()["rows"] == [[ROWS]], answer.text
    shutil.rmtree(server.state / "jobs")
    told = server.harvester("sql", f"select count(distinct row_id) as rows from results('{job}')", "--json")
    assert json.loads(told.stdout) == [{"rows": ROWS}], told.stderr


def test_a_key_that_is_made_on_the_head_closes_every_machine(server: FleetServer, fleet: Fleet) -> None:
    made = server.harvester("key", "add", "ann", "--role", "chat", "--json")
    assert made.returncode == 0, made.stderr
    key = json.loads(made.stdout)["key"]

    def statuses(headers: dict[str, str]) -> set[int]:
        body = {"max_tokens": 0}
        return {
            httpx.post(f"http://{machine.address}:{server.port}/v1/chat/completions", json=body, headers=headers, timeout=60).status_code
            for machine in fleet.machines
            for _ in range(4)
        }

    wait_until(lambda: statuses({}) == {401}, "every machine to ask for keys")
    assert statuses({"authorization": f"Bearer {key}"}) == {200}
