"""A real server whose replicas follow their chats, and one that is told how many to have: no stream is cut, and jobs ask for none."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.harness.load.stream import Stream
from tests.real_server import ids
from tests.scripted_server import ScriptedServer, wait_until, whole

pytestmark = [pytest.mark.serve, pytest.mark.timeout(900)]
LONG = 400  # tokens, ten a second
HARVEST = {"max_slice_rows": 16, "min_slice_rows": 16, "concurrency": 8, "lease_s": 30.0}
ROWS, DELAY_S = 1200, 0.2  # 30 s of one replica: longer than Serve looks back
LATE_S, LATE_ROWS = 600.0, 60_000  # 25 minutes of one replica
FOLLOWS = {"min": 1, "max": 2, "target": 2, "up_s": 1, "down_s": 1}


def streams_on(server: ScriptedServer, count: int) -> list[Stream]:
    streams = [Stream(server.url, LONG) for _ in range(count)]
    for stream in streams:
        stream.begun()
    return streams


def replicas(server: ScriptedServer, count: int) -> None:
    wait_until(lambda: len(server.find("replica")) == count, f"{count} replicas")


def submit(server: ScriptedServer, table: Path, rows: int = ROWS, **more: Any) -> str:
    pq.write_table(pa.table({"text": [f"row {row}" for row in range(rows)]}), table)
    return str(server.submit(source={"uri": str(table)}, task="summarize", column="text", **more)["id"])


@pytest.mark.long
def test_replicas_follow_their_chats_and_a_job_asks_for_none(tmp_path: Path) -> None:
    with ScriptedServer(tmp_path / "state", delay_s=DELAY_S, replicas=FOLLOWS, harvest=HARVEST) as server:
        job, most = submit(server, tmp_path / "rows.parquet"), 0
        while server.get(f"/api/jobs/{job}")["state"] in ("queued", "running"):
            most = max(most, len(server.find("replica")))
            time.sleep(0.5)
        assert most == 1
        assert ids(server.state, job) == list(range(ROWS))
        streams = streams_on(server, 8)
        replicas(server, 2)
        assert all(whole(streams)), [(stream.got, stream.error) for stream in streams]
        replicas(server, 1)
        told = server.get("/api/server")
        assert (told["replicas"], told["max_replicas"]) == (1, 2)
        refused = asked(server, 2)
        assert refused.status_code == 400
        assert "1 to 2 replicas, as their chats need" in refused.json()["error"]["message"]


@pytest.mark.long
def test_as_many_replicas_run_as_somebody_asks_for(tmp_path: Path) -> None:
    with ScriptedServer(tmp_path / "state", delay_s=DELAY_S, replicas=1, harvest=HARVEST) as server:
        job = submit(server, tmp_path / "rows.parquet")
        assert asked(server, 2).json() == {"replicas": 2, "was": 1}
        replicas(server, 2)
        streams = streams_on(server, 6)
        assert asked(server, 1).json() == {"replicas": 1, "was": 2}
        replicas(server, 1)
        assert all(whole(streams)), [(stream.got, stream.error) for stream in streams]
        view = server.wait_rows(job, ROWS + 1)
        assert (view["state"], view["rows_ok"], view["rows_recomputed"]) == ("completed", ROWS, 0)
        assert ids(server.state, job) == list(range(ROWS))
        assert "do not fit this machine, which has room for" in asked(server, 1000).json()["error"]["message"]


@pytest.mark.long
def test_a_deadline_at_risk_asks_for_replicas_that_go_with_the_job(tmp_path: Path) -> None:
    with ScriptedServer(tmp_path / "state", delay_s=DELAY_S, replicas=FOLLOWS | {"at_risk": 2}, harvest=HARVEST) as server:
        job = submit(server, tmp_path / "calm.parquet")
        assert server.wait_rows(job, ROWS + 1)["state"] == "completed"
        assert len(server.find("replica")) == 1, "a job without a deadline asks for none"
        late = submit(server, tmp_path / "late.parquet", LATE_ROWS, deadline_at_s=time.time() + LATE_S)
        replicas(server, 2)
        view = server.get(f"/api/jobs/{late}")
        assert "after its deadline" in view["standing"]
        assert any("at least 2 replicas, 1 above the fewest" in note for note in view["notes"])
        assert httpx.post(f"{server.url}/api/jobs/{late}/cancel", timeout=60).status_code == 200
        replicas(server, 1)


@pytest.mark.long
def test_a_job_may_ask_for_replicas_while_it_has_rows(tmp_path: Path) -> None:
    with ScriptedServer(tmp_path / "state", delay_s=DELAY_S, replicas=FOLLOWS | {"jobs": 2}, harvest=HARVEST) as server:
        job = submit(server, tmp_path / "rows.parquet")
        replicas(server, 2)
        assert server.wait_rows(job, ROWS + 1)["rows_recomputed"] == 0
        replicas(server, 1)


@pytest.mark.long
def test_a_model_sleeps_while_nobody_uses_it_and_a_chat_or_a_job_wakes_it(tmp_path: Path) -> None:
    with ScriptedServer(tmp_path / "state", delay_s=DELAY_S, replicas=FOLLOWS | {"min": 0}, harvest=HARVEST) as server:
        assert server.get("/api/server")["context_tokens"], "asked while it is there, or it would be loaded for this"
        replicas(server, 0)
        for path in ("/", "/health", "/api/server", "/api/metrics"):
            assert httpx.get(f"{server.url}{path}", timeout=60).status_code == 200, path
        assert httpx.get(f"{server.url}/v1/models", timeout=60).status_code == 503
        assert not server.find("replica"), "who only looks wakes nobody"
        refused = chat(server)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 5
        wait_until(lambda: chat(server).status_code == 200, "the model to be loaded for the chat")
        replicas(server, 0)
        job = submit(server, tmp_path / "rows.parquet")
        view = server.wait_rows(job, ROWS + 1)
        assert (view["state"], view["rows_ok"], view["rows_recomputed"]) == ("completed", ROWS, 0), "it stays while there are rows"
        assert ids(server.state, job) == list(range(ROWS))
        replicas(server, 0)


def chat(server: ScriptedServer) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/chat/completions", json={"model": "any", "max_tokens": 4, "messages": []}, timeout=60)


def asked(server: ScriptedServer, number: int) -> httpx.Response:
    return httpx.post(f"{server.url}/api/scale", json={"replicas": number}, timeout=60)


@pytest.mark.parametrize(
    "given",
    [
        {"min": 2, "max": 1},
        {"min": 0, "max": 0},
        {"min": -1, "max": 1},
        0,
        "many",
        {"min": 1, "max": 2, "most": 3},
        {"min": 1, "max": 2, "at_risk": 3},
        {"min": 2, "max": 3, "jobs": 1},
    ],
)
def test_a_range_that_is_none_is_refused_in_one_line(given: Any) -> None:
    from harvester.config import parse_config
    from harvester.errors import ConfigError

    with pytest.raises(ConfigError, match=r"^test: .*replicas") as refused:
        parse_config({"replicas": given}, "test")
    assert "\n" not in refused.value.message
