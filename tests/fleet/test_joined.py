"""A Ray cluster of three machines that `harvester serve --address` joins: where things are, and who gets the chats.

What a change of replicas and a drained machine cost, and what is left when the server's own process is killed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.harness.fleet.machines import Fleet, Machine
from bench.harness.load.stream import Stream
from bench.harness.servers.server import FAILS_ONCE
from harvester.errors import EngineError
from tests.fleet.server import FleetServer
from tests.real_server import ids
from tests.scripted_server import wait_until, whole

pytestmark = [pytest.mark.serve, pytest.mark.long, pytest.mark.timeout(1800)]
CHATS, LEAST = 300, 60  # chats sent, and the least that each of three machines gets
LONG, SHORT = 150, 3  # tokens, ten a second
ROWS, DELAY_S = 240, 0.3
HARVEST: dict[str, Any] = {"max_slice_rows": 16, "min_slice_rows": 16, "concurrency": 4, "lease_s": 15.0}


@pytest.fixture(scope="module")
def server(fleet: Fleet, disk: Path) -> Iterator[FleetServer]:
    running = FleetServer(fleet, disk / "state", delay_s=DELAY_S, replicas=3, harvest=HARVEST)
    with running:
        yield running


def submitted(server: FleetServer, disk: Path, rows: int = ROWS) -> str:
    table = disk / f"rows-{rows}.parquet"
    pq.write_table(pa.table({"text": [f"row {row}" for row in range(rows)]}), table)
    return str(server.submit(source={"uri": str(table)}, task="summarize", column="text")["id"])


def _running(server: FleetServer) -> set[int]:
    """Processes that outlive the one that serves."""
    found = [process for role in ("replica", "ledger", "jobs app") for process in server.find(role)]
    return {process.pid for process in (*found, *server.head.find("jobs.sql.forkserver"))}


def _ingress(machine: Machine) -> set[str]:
    """The folder of HAProxy's files, by its own command line."""
    lines = [process.cmdline() for process in machine.find("/haproxy.cfg")]
    return {str(Path(line[line.index("-f") + 1]).parents[1]) for line in lines}


def test_the_ledger_and_the_applications_are_on_the_head(server: FleetServer) -> None:
    assert {role: server.where(role) for role in ("ledger", "jobs app", "batches app")} == {
        "ledger": ["n0"],
        "jobs app": ["n0"],
        "batches app": ["n0"],
    }
    assert sorted(server.where("replica")) == ["n0", "n1", "n2"]


def test_every_machine_with_a_replica_has_the_port_and_a_private_folder(server: FleetServer, fleet: Fleet) -> None:
    # "Ready" waits for it a minute at most.
    wait_until(lambda: sorted(fleet.where("HAProxyManager")) == ["n0", "n1", "n2"], "HAProxy on every machine")
    for machine in fleet.machines:
        url = f"http://{machine.address}:{server.port}"
        wait_until(lambda url=url: whole([Stream(url, SHORT)]) == [True], "its port")
        found = subprocess.run(machine.command("stat", "-c", "%a", *_ingress(machine)), capture_output=True, text=True, check=True)
        assert found.stdout == "700\n"


def test_every_replica_gets_its_share_of_chats(server: FleetServer) -> None:
    seen: Counter[str] = Counter()
    with httpx.Client() as client:
        for _ in range(CHATS):
            answer = client.post(f"{server.url}/v1/chat/completions", json={"max_tokens": 0}, timeout=60)
            seen[answer.headers["x-replica"]] += 1
    assert len(seen) == 3
    assert min(seen.values()) >= LEAST, seen


def test_a_server_that_was_killed_takes_the_running_applications_over(server: FleetServer) -> None:
    wait_until(lambda: len(server.where("replica")) == 3, "three replicas")
    before = _running(server)
    stream = Stream(server.url, LONG)
    stream.begun()
    server.kill_main()
    server.start()
    assert whole([stream, Stream(server.url, SHORT)]) == [True, True]
    assert _running(server) == before
    answer = httpx.post(f"{server.url}/api/sql", json={"query": "select 1 as one"}, timeout=60)
    assert answer.json()["rows"] == [[1]]


def test_a_server_takes_over_while_a_machine_is_away(server: FleetServer, fleet: Fleet) -> None:
    away = fleet.machines[2]
    away.kill()
    shown = f"{server.url}/api/metrics"
    wait_until(lambda: len(set(re.findall(r'replica="(\d+)"', httpx.get(shown, timeout=60).text))) == 2, "a replica to be missed")
    stream = Stream(server.url, LONG)
    stream.begun()
    server.kill_main()
    server.start()
    assert "chat answers with 2 replicas until" in str(server.events())
    assert whole([stream, Stream(server.url, SHORT)]) == [True, True]
    fleet.join(away)
    wait_until(lambda: len(server.where("replica")) == 3, "three replicas again")


def test_a_number_of_replicas_that_was_asked_for_ends_with_the_next_server(server: FleetServer) -> None:
    done = server.harvester("scale", "2")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: len(server.where("replica")) == 2, "two replicas")
    server.kill_main()
    server.start()
    wait_until(lambda: len(server.where("replica")) == 3, "the configured three")
    assert server.get("/api/server")["replicas"] == 3


def test_a_host_of_one_machine_is_refused_where_serve_listens_to_the_network(server: FleetServer) -> None:
    server.kill_main()
    server.configure(replicas=3, harvest=HARVEST, host="127.0.0.1")
    with pytest.raises(EngineError, match=r"Ray Serve listens on 0\.0\.0\.0 in the cluster at .*, not on 127\.0\.0\.1 alone"):
        server.start()
    server.configure(replicas=3, harvest=HARVEST)
    server.start()
    assert whole([Stream(server.url, SHORT)]) == [True]


@pytest.mark.parametrize("is_same_port", [True, False], ids=["the same port", "another port"])
def test_a_server_of_another_state_folder_is_refused_and_ends_nothing(
    fleet: Fleet, disk: Path, server: FleetServer, is_same_port: bool
) -> None:
    wait_until(lambda: len(server.where("replica")) == 3, "three replicas")
    before = {process.pid for role in ("replica", "ledger", "jobs app") for process in server.find(role)}
    other = FleetServer(fleet, disk / f"other-{is_same_port}", replicas=1)
    if is_same_port:
        other.listen_on(server.port)
    why = "runs .* for another state folder than .*; give that one with --state" if is_same_port else f"listens on port {server.port}"
    with pytest.raises(EngineError, match=why):
        other.start()
    assert whole([Stream(server.url, SHORT)]) == [True]
    assert {process.pid for role in ("replica", "ledger", "jobs app") for process in server.find(role)} == before


def test_fewer_replicas_cut_no_stream_and_compute_no_row_twice(server: FleetServer, disk: Path) -> None:
    job = submitted(server, disk)
    server.wait_rows(job, 10)
    streams = [Stream(server.url, LONG) for _ in range(6)]
    for stream in streams:
        stream.begun()
    server.redeploy({"replicas": 1, "harvest": HARVEST}, DELAY_S)
    server.redeploy({"replicas": 3, "harvest": HARVEST}, DELAY_S)
    assert all(whole(streams)), [(stream.got, stream.error) for stream in streams]
    view = server.wait_rows(job, ROWS + 1)
    assert (view["state"], view["rows_ok"], view["rows_recomputed"]) == ("completed", ROWS, 0)
    assert ids(server.state, job) == list(range(ROWS))


def test_a_server_with_another_configuration_changes_replicas_under_load(server: FleetServer, disk: Path) -> None:
    """As an operator does it: stop the process that serves, not the cluster, and start it with the new configuration."""
    wait_until(lambda: len(server.where("replica")) == 3, "three replicas")
    before = {process.pid for process in server.find("replica")}
    job = submitted(server, disk, 2 * ROWS)
    server.wait_rows(job, 10)
    streams = [Stream(server.url, LONG) for _ in range(6)]
    for stream in streams:
        stream.begun()
    server.kill_main()
    server.configure(replicas=3, harvest={**HARVEST, "concurrency": 6})
    server.start()
    assert all(whole(streams)), [(stream.got, stream.error) for stream in streams]
    wait_until(lambda: not before & {process.pid for process in server.find("replica")}, "new replicas")
    view = server.wait_rows(job, 2 * ROWS + 1)
    assert (view["state"], view["rows_ok"], view["rows_recomputed"]) == ("completed", 2 * ROWS, 0)
    assert whole([Stream(server.url, SHORT)]) == [True]


def test_a_start_that_fails_once_does_not_end_a_rolling_update(server: FleetServer, disk: Path) -> None:
    before, marker = {process.pid for process in server.find("replica")}, disk / "fails-once"
    marker.touch()
    server.kill_main()
    server.configure(replicas=3, harvest=HARVEST, env={FAILS_ONCE: str(marker)})
    server.start()
    assert not marker.exists()
    wait_until(lambda: not before & {process.pid for process in server.find("replica")}, "the earlier replicas to go")
    assert len(server.find("replica")) == 3


def test_stop_ends_what_a_killed_server_has_left_in_the_cluster(server: FleetServer) -> None:
    server.kill_main()
    done = server.harvester("stop")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: not server.find("replica") and not server.find("ledger"), "the applications to go")
    server.start()
    assert whole([Stream(server.url, SHORT)]) == [True]


def test_a_stop_that_does_not_wait_for_a_chat_cuts_none_and_the_next_one_ends_serve(server: FleetServer) -> None:
    stream = Stream(server.url, LONG)
    stream.begun()
    before = server.log.read_text().count('"stopping"')
    psutil.Process(server.pid).terminate()
    wait_until(lambda: server.log.read_text().count('"stopping"') > before, "the server to stop")
    server.stop()  # the second signal
    assert (server.state / "cluster").exists()
    assert whole([stream]) == [True]
    assert server.find("ledger"), "the stream's usage has gone there"
    done = server.harvester("stop")
    wait_until(lambda: not server.find("ledger"), "the ledger to go")
    assert (done.returncode, "stopped the applications" in done.stdout) == (0, True), done.stderr
    assert (_ingress(server.head), (server.state / "cluster").exists()) == (set(), False)
    server.start()
    assert whole([Stream(server.url, SHORT)]) == [True]


def test_a_port_that_one_machine_has_taken_is_named_with_that_machine(fleet: Fleet, disk: Path, server: FleetServer) -> None:
    server.stop()
    other = FleetServer(fleet, disk / "third", replicas=3)
    listen = f"import socket, time; s = socket.create_server(('', {other.port})); time.sleep(600)"
    with (
        fleet.machines[1].start(sys.executable, "-c", listen),
        pytest.raises(EngineError, match=f"on n1: port {other.port} on 0.0.0.0 is in use"),
    ):
        other.start()


def test_a_model_that_is_in_the_configuration_no_more_goes_with_the_next_server(fleet: Fleet, disk: Path, server: FleetServer) -> None:
    server.stop()
    first = FleetServer(fleet, disk / "models", replicas=1, models={"small": {}})
    first.start()
    assert fleet.where("ServeReplica:model-small")
    first.kill_main()
    second = FleetServer(fleet, disk / "models", replicas=1)
    second.listen_on(first.port)
    with second:
        wait_until(lambda: not fleet.where("ServeReplica:model-small"), "the model to go")
        assert whole([Stream(second.url, SHORT)]) == [True]


def test_a_chat_at_a_machine_with_a_replica_of_another_model_wakes_one_that_sleeps(fleet: Fleet, disk: Path, server: FleetServer) -> None:
    server.stop()
    models = {"small": {"replicas": {"min": 0, "max": 1, "up_s": 1, "down_s": 1}}}
    with FleetServer(fleet, disk / "asleep", replicas=2, models=models) as own:
        wait_until(lambda: not fleet.where("ServeReplica:model-small"), "the model to sleep")
        machine = next(one for one in fleet.machines[1:] if one.name in own.where("replica"))
        url = f"http://{machine.address}:{own.port}/models/small"
        wait_until(lambda: httpx.get(f"{url}/health", timeout=60).json() == {"status": "asleep"}, "it to sleep there")
        woken = httpx.post(f"{url}/v1/chat/completions", json={}, timeout=60)
        assert (woken.status_code, woken.json()["error"]["code"]) == (503, "no_replica")
        assert "it is being loaded now" in woken.json()["error"]["message"]
        wait_until(lambda: whole([Stream(url, SHORT)]) == [True], "it to be loaded")


def test_a_cluster_keeps_the_ingress_that_serve_has_there(fleet: Fleet, disk: Path, server: FleetServer) -> None:
    server.stop()
    first = FleetServer(fleet, disk / "proxies", replicas=1, ingress="proxy")
    first.start()
    first.kill_main()
    other = FleetServer(fleet, disk / "proxies", replicas=1, ingress="haproxy")
    other.listen_on(first.port)
    with pytest.raises(EngineError, match="runs with ingress: proxy, not haproxy"):
        other.start()
    second = FleetServer(fleet, disk / "proxies", replicas=1)
    second.listen_on(first.port)
    with second:
        assert not fleet.where("HAProxyManager")
        assert whole([Stream(second.url, SHORT)]) == [True]


def test_a_machine_that_is_drained_cuts_no_stream_and_costs_no_row(fleet: Fleet, disk: Path, server: FleetServer) -> None:
    server.stop()
    with FleetServer(fleet, disk / "drained", delay_s=DELAY_S, replicas=2, harvest=HARVEST) as two:
        wait_until(lambda: len(two.where("replica")) == 2, "two replicas")
        job = submitted(two, disk, 2 * ROWS)
        two.wait_rows(job, 10)
        streams = [Stream(two.url, LONG) for _ in range(6)]
        for stream in streams:
            stream.begun()
        leaving = next(machine for machine in fleet.machines[1:] if machine.name in two.where("replica"))
        fleet.drain(leaving)
        wait_until(lambda: leaving.name not in two.where("replica"), "the replica to leave")
        assert all(whole(streams)), [(stream.got, stream.error) for stream in streams]
        wait_until(lambda: len(two.where("replica")) == 2, "another in its place")
        view = two.wait_rows(job, 2 * ROWS + 1)
        assert (view["state"], view["rows_ok"], view["rows_recomputed"]) == ("completed", 2 * ROWS, 0)
        assert whole([Stream(two.url, SHORT)]) == [True]
