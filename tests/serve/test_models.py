"""A real server with two models, both scripted: chats, jobs and batches of each, side by side, and one that dies alone."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.harness.servers.server import READY_S
from tests.real_server import ids, line_of
from tests.scripted_server import ScriptedServer, wait_until

pytestmark = [pytest.mark.serve, pytest.mark.timeout(900)]
HARVEST = {"max_slice_rows": 16, "min_slice_rows": 16, "concurrency": 8, "lease_s": 30.0}
ROWS = 64


class TwoModels(ScriptedServer):
    def of(self, model: str) -> list[psutil.Process]:
        """Its replicas."""
        return [process for process in self.processes() if f"ServeReplica:{model}" in line_of(process)]

    def chat(self, model: str) -> httpx.Response:
        body = {"model": model, "max_tokens": 3}
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=READY_S)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoModels]:
    folder = tmp_path_factory.mktemp("models")
    with TwoModels(folder / "state", served_model_name="big", models={"small": {"num_cpus": 0.5}}, harvest=HARVEST) as running:
        yield running


def test_a_chat_is_answered_by_the_model_that_it_names(server: TwoModels) -> None:
    (big,), (small,) = server.of("chat"), server.of("model-small")
    for model, pid in (("big", big.pid), ("small", small.pid), ("whatever", big.pid)):
        answer = server.chat(model)
        assert (answer.status_code, answer.headers["x-replica"]) == (200, str(pid))
        assert answer.text.count("data: {") == 3
    assert httpx.post(f"{server.url}/models/small/v1/chat/completions", json={"max_tokens": 1}).headers["x-replica"] == str(small.pid)


def test_each_job_runs_on_its_model(server: TwoModels, tmp_path: Path) -> None:
    table = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": [f"row {row}" for row in range(ROWS)]}), table)
    for model in (None, "big", "small"):
        view = server.submit(source={"uri": str(table)}, task="summarize", column="text", model=model, new=True)
        view = server.wait_rows(view["id"], ROWS + 1)
        assert (view["state"], view["rows_ok"], view["model"]) == ("completed", ROWS, model or "big")
        assert ids(server.state, view["id"]) == list(range(ROWS))
    refused = httpx.post(f"{server.url}/api/jobs", json={"source": {"uri": str(table)}, "model": "other"}, timeout=READY_S)
    assert refused.status_code == 400
    assert "this server runs big, small, not other" in refused.json()["error"]["message"]


def test_the_replicas_of_one_model_are_scaled(server: TwoModels) -> None:
    def scaled(number: int, model: str) -> httpx.Response:
        return httpx.post(f"{server.url}/api/scale", json={"replicas": number, "model": model}, timeout=READY_S)

    assert "there is no further model other" in scaled(2, "other").json()["error"]["message"]
    assert "do not fit this machine" in scaled(1000, "small").json()["error"]["message"]
    assert scaled(2, "small").json() == {"replicas": 2, "was": 1}
    wait_until(lambda: len(server.of("model-small")) == 2, "a second replica of small")
    assert 'harvester_replicas_wanted{model="small"} 2.0' in httpx.get(f"{server.url}/api/metrics", timeout=READY_S).text
    assert scaled(1, "small").json() == {"replicas": 1, "was": 2}
    wait_until(lambda: len(server.of("model-small")) == 1, "one replica of small")
    assert server.get("/api/server")["replicas"] == 1


def test_a_batch_runs_on_the_model_that_its_requests_name(server: TwoModels) -> None:
    body = {"model": "small", "messages": [{"role": "user", "content": "say hello"}]}
    line = json.dumps({"custom_id": "one", "method": "POST", "url": "/v1/chat/completions", "body": body})
    files = {"file": ("in.jsonl", line.encode())}
    file = httpx.post(f"{server.url}/v1/files", files=files, data={"purpose": "batch"}, timeout=READY_S).json()["id"]
    wish = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch = httpx.post(f"{server.url}/v1/batches", json=wish, timeout=READY_S).json()["id"]
    end_s = time.monotonic() + READY_S
    while (state := server.get(f"/v1/batches/{batch}"))["status"] not in ("completed", "failed") and time.monotonic() < end_s:
        time.sleep(0.2)
    assert (state["status"], state["request_counts"]["completed"]) == ("completed", 1), state
    assert server.get(f"/api/jobs/{batch}")["model"] == "small"


def test_metrics_tell_the_models_apart(server: TwoModels) -> None:
    text = httpx.get(f"{server.url}/api/metrics", timeout=READY_S).text
    for name in ("big", "small"):
        assert f'harvester_replicas{{model="{name}"}} 1.0' in text
        assert f'harvester_replicas_wanted{{model="{name}"}} 1.0' in text
    assert {f'model="{name}"' in text for name in ("big", "small")} == {True}


def test_one_model_s_death_is_nothing_to_the_other(server: TwoModels) -> None:
    (small,) = server.of("model-small")
    small.kill()
    assert server.chat("big").status_code == 200
    wait_until(lambda: [one.pid for one in server.of("model-small")] not in ([], [small.pid]), "another replica of small")
    wait_until(lambda: server.chat("small").status_code == 200, "small to answer")
