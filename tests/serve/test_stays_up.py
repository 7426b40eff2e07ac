"""A real server under kills and changes: open streams stay whole, what dies comes back, and clients are told when to try again."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.harness.load.stream import Stream
from tests.real_server import ids
from tests.scripted_server import ScriptedServer, wait_until, whole

pytestmark = [pytest.mark.serve, pytest.mark.timeout(900)]
LONG, SHORT = 200, 5  # tokens, ten a second
HARVEST = {"max_slice_rows": 16, "min_slice_rows": 16, "concurrency": 8, "lease_s": 30.0}
ROWS, DELAY_S = 320, 0.2


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedServer]:
    with ScriptedServer(tmp_path_factory.mktemp("stays") / "state", delay_s=DELAY_S, replicas=2, harvest=HARVEST) as running:
        yield running


def chats_again(server: ScriptedServer) -> list[Stream]:
    """Ask chats one after the other until one is answered. Returns those before it."""
    refused: list[Stream] = []
    while not whole([chat := Stream(server.url, SHORT)])[0]:
        refused.append(chat)
        assert len(refused) < 10_000
    return refused


def streams_on(server: ScriptedServer, count: int) -> list[Stream]:
    streams = [Stream(server.url, LONG) for _ in range(count)]
    for stream in streams:
        stream.begun()
    return streams


def test_streams_of_the_living_replica_stay_whole_when_the_other_dies_and_comes_back(server: ScriptedServer) -> None:
    streams = streams_on(server, 8)
    killed = server.find("replica")[0]
    killed.kill()
    wait_until(lambda: len(server.find("replica")) == 2, "the replica to come back")
    later = streams_on(server, 2)
    living = [stream for stream in streams if stream.replica != killed.pid]
    assert living
    assert all(whole(living)), [(stream.got, stream.error) for stream in living]
    assert all(whole(later))


@pytest.mark.parametrize("role", ["ledger", *(pytest.param(role, marks=pytest.mark.long) for role in ("gcs_server", "controller"))])
def test_chat_does_not_notice_the_death_of(server: ScriptedServer, role: str) -> None:
    streams = streams_on(server, 4)
    (before,) = server.find(role)
    before.kill()
    wait_until(lambda: server.find(role) and server.find(role)[0].pid != before.pid, f"another {role}")
    assert all(whole([*streams, Stream(server.url, SHORT)]))
    assert server.get("/api/jobs") is not None


@pytest.mark.parametrize("role", ["haproxy", "ingress manager", "jobs app"])
def test_the_server_answers_again_after_the_death_of(server: ScriptedServer, role: str) -> None:
    for process in server.find(role):
        process.kill()
    chats_again(server)
    assert server.get("/api/server")["pid"] == server.pid


def test_a_replica_that_is_replaced_loses_no_stream_and_computes_no_row_twice(server: ScriptedServer, tmp_path: Path) -> None:
    table = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": [f"row {row}" for row in range(ROWS)]}), table)
    job = server.submit(source={"uri": str(table)}, task="summarize", column="text")["id"]
    server.wait_rows(job, 10)
    streams, before = streams_on(server, 6), {process.pid for process in server.find("replica")}
    server.redeploy({"replicas": 1, "harvest": HARVEST}, DELAY_S)
    wait_until(lambda: not before & {process.pid for process in server.find("replica")}, "the old replicas to go")
    assert all(whole(streams)), [(stream.got, stream.error) for stream in streams]
    view = server.wait_rows(job, ROWS + 1)
    assert (view["state"], view["rows_ok"], view["rows_recomputed"]) == ("completed", ROWS, 0)
    assert ids(server.state, job) == list(range(ROWS))


def test_nothing_listens_on_other_addresses_than_the_servers(server: ScriptedServer) -> None:
    listening = [
        (process.name(), found.laddr.ip)
        for process in server.processes()
        for found in process.net_connections("tcp")
        if found.status == "LISTEN"
    ]
    assert listening
    assert {ip.removeprefix("::ffff:") for _, ip in listening} == {"127.0.0.1"}, listening


def test_a_cluster_that_dies_is_replaced_and_clients_are_told_when_to_try_again(server: ScriptedServer) -> None:
    (raylet,) = server.find("raylet")
    raylet.kill()
    wait_until(lambda: httpx_status(server) == 503, "the port to say that nobody is there")
    answer = httpx.post(f"{server.url}/v1/chat/completions", json={"max_tokens": 1})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "3")
    assert answer.json()["error"]["type"] == "server_error"
    chats_again(server)
    assert server.get("/api/server")["pid"] == server.pid
    wait_until(lambda: [event["event"] for event in server.events()].count("ready") == 2, "the server to say so")


@pytest.mark.parametrize(
    ("role", "warning"),
    [
        ("haproxy", "HAProxy has died; starting another"),
        pytest.param("raylet", "Ray's raylet has died, and all that it ran with it; starting again in", marks=pytest.mark.long),
    ],
)
def test_what_dies_while_the_cluster_starts_comes_back(server: ScriptedServer, role: str, warning: str) -> None:
    """Serve's manager of HAProxies does not notice: nobody listened for five minutes, until the start was given up."""
    before = len(server.events())
    (raylet,) = server.find("raylet")
    raylet.kill()
    told = "the model to load, and the applications to answer"
    wait_until(lambda: told in [event.get("message") for event in server.events()[before:]], "the applications to be deployed")
    for process in server.find(role):
        process.kill()
    wait_until(lambda: "ready" in [event["event"] for event in server.events()[before:]], "the server to answer again")
    warnings = [event["message"] for event in server.events()[before:] if event["event"] == "warning"]
    assert warnings[0].startswith("Ray's raylet has died")
    assert warnings[1:]
    assert all(found.startswith(warning) for found in warnings[1:])
    assert all(whole([Stream(server.url, SHORT)]))


def test_a_server_whose_main_process_was_killed_leaves_nothing_in_the_way_of_the_next(server: ScriptedServer) -> None:
    server.find("haproxy")[0].kill()
    server.kill_main()
    before = scratch_folders(server)
    server.start()
    assert all(whole([Stream(server.url, SHORT)]))
    assert before
    assert not scratch_folders(server) & before, "what its queries had put there"


def scratch_folders(server: ScriptedServer) -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob(f"harvester-sql-{server.mark}-*"))


def httpx_status(server: ScriptedServer) -> int | None:
    try:
        return httpx.get(f"{server.url}/health", timeout=30).status_code
    except httpx.HTTPError:
        return None


def test_a_server_that_is_asked_to_stop_lets_open_streams_end(server: ScriptedServer) -> None:
    streams = streams_on(server, 2)
    server.stop()
    assert all(whole(streams)), [(stream.got, stream.error) for stream in streams]
    assert server.events()[-1] == {"event": "stopped"}
    assert not scratch_folders(server)
