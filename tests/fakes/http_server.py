"""A fake jobs server: prepared answers over real HTTP, and a record of what was asked."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

import pyarrow as pa

from jobs.spec import JobView

CHAT = [
    {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
    {"choices": [{"delta": {"content": "Hel"}}]},
    {"choices": [{"delta": {"content": "lo"}, "finish_reason": "stop"}]},
    {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
]


def job_view(**fields: Any) -> JobView:
    counts = dict.fromkeys(
        ("rows_truncated", "rows_recomputed", "rows_running", "prompt_tokens", "cached_tokens", "output_tokens", "preemptions"), 0
    )
    known = {"id": "docs-7f3a", "state": "completed", "task": "summarize", "source": "/docs.parquet", "model": "tiny", "rows_total": 4}
    ended = {"rows_ok": 4, "rows_error": 0, "offline_tokens_per_s": 50.0, "eta_s": 0.0, "created_at_s": 1.0, "started_at_s": 2.0}
    return JobView.model_validate({**counts, **known, **ended, "ended_at_s": 3.0, "message": None, "results": "/r"} | fields)


@dataclass
class FakeServer:
    """``views``: sent for a job, one after the other, the last one for ever; ``answers`` override a path."""

    state: str
    url: str = ""
    views: list[JobView] = field(default_factory=lambda: [job_view()])
    created: bool = True
    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)  # of every answer
    tables: dict[str, pa.Table] = field(default_factory=dict)  # of the ledger, beside jobs and leases
    asked: list[tuple[str, str, Any]] = field(default_factory=list)
    chat: list[str] = field(default_factory=lambda: [*(f"data: {json.dumps(event)}\n\n" for event in CHAT), "data: [DONE]\n\n"])

    def info(self) -> dict[str, Any]:
        return {"version": "0.1.0", "model": "tiny", "model_note": None, "context_tokens": 512, "state": self.state, "url": self.url}

    def answer(self, method: str, path: str) -> tuple[int, Any]:
        if path in self.answers:
            return self.answers[path]
        if path == "/api/server":
            return 200, self.info()
        if path.partition("?")[0] == "/api/jobs":
            view = self.views[0].model_dump(mode="json")
            return (201 if self.created else 200, {"job": view, "created": self.created}) if method == "POST" else (200, {"jobs": [view]})
        if path.startswith("/api/ledger/"):
            columns: dict[str, dict[str, list[Any]]] = {"jobs": {"id": ["live-1"], "created_at_s": [1.0]}, "leases": {"job_id": ["live-1"]}}
            return 200, _arrow(self.tables.get(path.rsplit("/", 1)[1]) or pa.table(columns.get(path.rsplit("/", 1)[1], {"model": []})))
        if path.startswith("/api/jobs/"):
            looked_at = self.views.pop(0) if len(self.views) > 1 else self.views[0]
            return 200, looked_at.model_dump(mode="json")
        if path == "/v1/chat/completions":
            return 200, "".join(self.chat).encode()
        return 404, {"error": {"code": "not_found", "message": f"no such page {path}"}}


def _arrow(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def handler_of(fake: FakeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer("GET", None)

        def do_DELETE(self) -> None:
            self._answer("DELETE", None)

        def do_PATCH(self) -> None:
            raw = self.rfile.read(int(self.headers.get("content-length") or 0))
            self._answer("PATCH", json.loads(raw))

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("content-length") or 0))
            self._answer("POST", json.loads(raw) if raw else None)

        def _answer(self, method: str, body: Any) -> None:
            fake.asked.append((method, self.path, body))
            status, answer = fake.answer(method, self.path)
            data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            for name, value in {**fake.headers, "content-length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            return

    return Handler
