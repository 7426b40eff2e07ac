"""The jobs of a soak: submitted until an answer comes, and their rows counted against what was submitted."""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pyarrow as pa

import harvester
from bench.harness.load.table import tail_of, write_synthetic
from bench.harness.servers.server import READY_S, ServerProcess
from harvester.api.errors import HarvesterError
from jobs.access.handle import HEADER, read_key, signed
from jobs.storage.folder import StateFolder

ROWS = 4000  # of a job where not said otherwise; another is submitted when one has ended
ASK_S = 60.0
TASK: dict[str, Any] = {"task": "echo", "task_inline": {"prompt": "{text}", "max_tokens": 8}, "keep": []}


@dataclass
class Asked:
    """A job that was asked for. ``job``: its id, once the server has told it; it is asked again by the same key until then."""

    table: Path
    is_upload: bool
    key: str = field(default_factory=lambda: secrets.token_hex(16))
    job: str | None = None


class Work:
    """``is_far``: the server reads no file of this machine, and its results come over HTTP."""

    def __init__(self, server: ServerProcess, folder: Path, rows: int = ROWS, *, is_far: bool = False) -> None:
        self._server, self._folder, self._rows, self._is_far = server, folder, rows, is_far
        self.asked: list[Asked] = []

    def more(self) -> None:
        """One more job; every second one sends its table to the server."""
        path = self._folder / f"docs-{len(self.asked)}.parquet"
        write_synthetic(path, self._rows, len(self.asked))
        self.asked.append(Asked(path, is_upload=self._is_far or len(self.asked) % 2 == 1))
        self.settle()

    def settle(self) -> bool:
        """Ask again for what got no answer. Whether every job is known by its id."""
        for one in self.asked:
            if one.job is None:
                try:
                    one.job = self._submitted(one)
                except (httpx.HTTPError, HarvesterError):
                    return False
        return True

    def _submitted(self, one: Asked) -> str:
        if one.is_upload:
            with harvester.connect(self._server.url) as client:
                return str(client.submit(one.table, new=False, **TASK).id)  # found again by its table and task
        body = json.dumps({"source": {"uri": str(one.table)}, **TASK}).encode()
        key = read_key(StateFolder(self._server.state))
        assert key is not None
        headers = {"content-type": "application/json", HEADER: signed(key, "POST", "/api/jobs", body, time.time())}
        url = f"{self._server.url}/api/jobs"
        answer = httpx.post(url, content=body, headers=headers | {"idempotency-key": one.key}, timeout=ASK_S)
        answer.raise_for_status()
        return str(answer.json()["job"]["id"])

    def states(self) -> dict[str, str] | None:
        """State of each known job; None if the server does not answer now."""
        try:
            answer = httpx.get(f"{self._server.url}/api/jobs", timeout=5.0).raise_for_status()
        except httpx.HTTPError:
            return None
        known = {one.job for one in self.asked}
        return {job["id"]: job["state"] for job in answer.json()["jobs"] if job["id"] in known}

    def is_over(self) -> bool | None:
        """Whether every job has ended; None where nobody answers now."""
        states = self.states()
        return None if states is None else all(state not in ("queued", "running") for state in states.values())

    def keep_up(self) -> None:
        """Submit another job if every job has ended."""
        if self.settle() and self.is_over():
            self.more()

    def finish(self) -> None:
        """Wait until every job has ended. Raises `TimeoutError` if one does not."""
        end_s = time.monotonic() + READY_S
        while not (self.settle() and self.is_over()):
            if time.monotonic() > end_s:
                raise TimeoutError(f"jobs did not end within {READY_S:.0f} s: {self.states()}")
            time.sleep(0.5)

    def rows(self) -> dict[str, Any]:
        """Counts of the rows in the parts, as an outsider reads them: missing, twice, wrong, errors.

        Missing rows are lost in a completed job, unfinished in another. ``unknown_jobs``: jobs that were asked for and never answered.
        """
        states = self.states() or {}
        found = Counter[str](expected=self._rows * len(self.asked))
        for one in self.asked:
            if one.job is not None:
                found.update(self._rows_of(one.job, states.get(one.job) == "completed"))
        kinds = ("expected", "lost", "unfinished", "twice", "wrong", "errors")
        unknown = sum(one.job is None for one in self.asked)
        return {kind: found[kind] for kind in kinds} | {"unknown_jobs": unknown, "jobs_by_state": dict(Counter(states.values()))}

    def _rows_of(self, job: str, is_complete: bool) -> Counter[str]:
        try:
            read = self._told(job) if self._is_far else self._read(job)
        except httpx.HTTPError:  # nobody tells them now; that does not make them lost
            read, is_complete = [], False
        ids = {row_id for row_id, _, _ in read}
        missing = len(set(range(self._rows)) - ids)
        return Counter(
            lost=missing if is_complete else 0,
            unfinished=0 if is_complete else missing,
            twice=len(read) - len(ids),
            wrong=sum(status == "ok" and output != tail_of(row_id) for row_id, output, status in read),
            errors=sum(status != "ok" for _, _, status in read),
        )

    def _read(self, job: str) -> list[tuple[int, str, str]]:
        parts = StateFolder(self._server.state).results(job)
        query = f"select row_id, output, status from read_parquet('{parts}/part-*.parquet')"
        return duckdb.execute(query).fetchall() if any(parts.glob("part-*.parquet")) else []

    def _told(self, job: str) -> list[tuple[int, str, str]]:
        answer = httpx.get(f"{self._server.url}/api/jobs/{job}/results", timeout=ASK_S).raise_for_status()
        rows = pa.ipc.open_stream(answer.content).read_all().select(["row_id", "output", "status"]).to_pylist()
        return [(row["row_id"], row["output"], row["status"]) for row in rows]
