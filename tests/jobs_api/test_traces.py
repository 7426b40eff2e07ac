"""Spans as a collector gets them: of requests, over a client's own, and of slices."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes.collector import Collector, collecting

CHILD = """
import asyncio, json, os, sys
import httpx
from fastapi import FastAPI, Request
from harvester.serve.access.gate import Gate
from harvester.serve.access.routes import ANY, RouteTable
from harvester.serve.access.wall import guard
from harvester.serve.deployments.slice_spans import spans_of
from harvester.traces import TraceConfig, flush, tracer_of
from jobs.spec import Lease, PartStats
from jobs.testing import scripted_plan

endpoint, sample, headers = sys.argv[1], float(sys.argv[2]), json.loads(sys.argv[3])
tracer = tracer_of(TraceConfig(endpoint=endpoint, sample=sample, headers={"x-key": "k1"}), "replica")
app, heard = FastAPI(), []

@app.get("/any")
async def any_route(request: Request) -> dict:
    heard.append(request.headers.get("traceparent"))
    return {}

guard(app, RouteTable({"GET /any": ANY}), Gate(tracer=tracer))

async def main() -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8000") as http:
        assert (await http.get("/any", headers=headers)).status_code == 200
        assert (await http.get("/nowhere", headers=headers)).status_code == 404
        await http.options("/any")  # HAProxy's health check

asyncio.run(main())
plan = scripted_plan("docs", 6, 6)
lease = Lease(lease_id="l1", job=plan.spec, slice=plan.slices[0], generation=0, attempt=1, expires_at_s=9.0)
with spans_of(tracer).slice(lease) as note:
    note(PartStats(rows_ok=5, rows_error=1, output_tokens=40))
print(json.dumps(heard[0]), flush=True)
flush()
os._exit(0)  # as Ray ends a process
"""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


def run(endpoint: str, sample: float = 1.0, **headers: str) -> str | None:
    """The `traceparent` that the application saw."""
    command = [sys.executable, "-c", CHILD, endpoint, str(sample), json.dumps(headers)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    told: str | None = json.loads(done.stdout.splitlines()[-1])
    return told


def told(span: Any) -> dict[str, Any]:
    return {one.key: one.value.int_value or one.value.string_value for one in span.attributes}


def test_requests_and_slices_are_spans_with_what_they_were(collector: Collector) -> None:
    seen = run(collector.url)
    spans = {span.name: span for span in collector.spans}
    assert set(spans) == {"GET /any", "GET /nowhere", "slice"}
    assert told(spans["GET /any"]) == {"http.request.method": "GET", "url.path": "/any", "http.response.status_code": 200}
    assert told(spans["GET /nowhere"])["http.response.status_code"] == 404
    assert told(spans["slice"])["harvester.rows_error"] == 1
    any_span = spans["GET /any"]
    assert seen is not None
    assert seen.startswith(f"00-{any_span.trace_id.hex()}-{any_span.span_id.hex()}-"), "what the application does stands beneath it"
    assert collector.keys == {"k1"}


@pytest.mark.parametrize(("flag", "names"), [("01", {"GET /any", "GET /nowhere"}), ("00", set())], ids=["traced", "not traced"])
def test_a_clients_trace_goes_on_as_it_decided(collector: Collector, flag: str, names: set[str]) -> None:
    trace, parent = "ab" * 16, "cd" * 8
    seen = run(collector.url, 0.0, traceparent=f"00-{trace}-{parent}-{flag}")
    assert {span.name for span in collector.spans} == names, "none of its own: the share is 0"
    assert {(span.trace_id.hex(), span.parent_span_id.hex()) for span in collector.spans} == ({(trace, parent)} if names else set())
    assert seen is not None
    assert seen.startswith(f"00-{trace}-")
    assert not seen.startswith(f"00-{trace}-{parent}")


def test_a_collector_that_is_not_there_changes_nothing() -> None:
    assert run("http://127.0.0.1:9/v1/traces") is not None


def test_without_a_collector_nothing_of_it_is_imported() -> None:
    code = "import sys; from harvester.traces import *; assert tracer_of(TraceConfig(), 'x') is None; print('opentelemetry' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr
