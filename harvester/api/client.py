"""A client of one server: tables up, jobs watched, rows down. Needs no more than httpx and Arrow, and nothing of the server's rooms."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import httpx

from harvester.api.errors import HarvesterError, UnreachableError, error_of
from harvester.api.frames import digest_of, write_parquet
from harvester.api.job import Job

DEFAULT_URL = "http://127.0.0.1:8000"
PIECE_BYTES = 8 << 20
TRIES = 5
RETRY_S = 0.2
SUBMIT_S = 900.0
_RETRIED = (502, 503, 504)
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


class Async:
    """The methods of ``target`` as coroutines, each in a thread."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        method = getattr(self._target, name)

        async def call(*given: Any, **named: Any) -> Any:
            return await asyncio.to_thread(method, *given, **named)

        return call


class Harvester:
    """Made by `harvester.connect`. ``aio`` has the same methods as coroutines."""

    def __init__(self, url: str | None = None, *, api_key: str | None = None, transport: httpx.BaseTransport | None = None) -> None:
        self.url = (url or os.environ.get("HARVESTER_URL") or DEFAULT_URL).rstrip("/")
        key = api_key or os.environ.get("HARVESTER_API_KEY")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self.http = httpx.Client(base_url=self.url, headers=headers, timeout=httpx.Timeout(60.0, connect=3.0), transport=transport)
        self.aio = Async(self)
        self.model = str(self.call("GET", "/api/server")["model"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *given: object) -> None:
        self.http.close()

    def __repr__(self) -> str:
        return f"Harvester({self.url!r}, model={self.model!r})"

    def submit(
        self,
        data: Any,
        task: str | None = None,
        *,
        prompt: str | None = None,
        labels: list[str] | None = None,
        schema: Any = None,
        options: dict[str, Any] | None = None,
        name: str = "frame",
        **fields: Any,
    ) -> Job:
        """Make a job of a path, an address, a frame or a relation; the same job submitted again is found, not made twice.

        ``schema``: a Pydantic model or a JSON schema; its rows come back as `Job.rows`. ``fields``: those of ``POST /api/jobs``, such as
        ``column``, ``keep``, ``max_tokens``, ``deadline_at_s``. Raises `RefusedError` for a wrong value.
        """
        asked = dict(options or {})
        model = schema if hasattr(schema, "model_json_schema") else None
        json_schema = model.model_json_schema() if model is not None else schema
        given = {"prompt": prompt, "labels": labels, "schema": json_schema}
        asked |= {key: value for key, value in given.items() if value is not None}
        implied = {"prompt": "ask", "labels": "classify", "schema": "extract"}
        chosen = task or next((implied[key] for key in implied if key in asked), "summarize")
        body = {"source": {"uri": self.uri_of(data, name)}, "task": chosen, "options": asked, **fields}
        told = self.call("POST", "/api/jobs", json=body, timeout=httpx.Timeout(SUBMIT_S, connect=3.0))
        return Job(self, told["job"], model)

    def map(self, frame: Any, prompt: str, **fields: Any) -> Any:
        """Answer ``prompt`` for each row, and wait: an Arrow table with the frame's columns and ``output``."""
        return self.submit(frame, prompt=prompt, **fields).watch().results().arrow()

    def job(self, job_id: str = "latest") -> Job:
        """A job that exists. Raises `NotFoundError`."""
        return Job(self, self.call("GET", f"/api/jobs/{job_id}"))

    def jobs(self) -> list[Job]:
        """All jobs of this key, newest first."""
        return [Job(self, view) for view in self.call("GET", "/api/jobs")["jobs"]]

    def uri_of(self, data: Any, name: str = "frame") -> str:
        """Where the server reads ``data``: an address as it is, anything else uploaded."""
        if isinstance(data, str) and "://" in data:
            return data
        if isinstance(data, str | os.PathLike):
            return self.upload(Path(data))
        with tempfile.TemporaryDirectory(prefix="harvester-") as folder:
            path = Path(folder) / f"{_UNSAFE.sub('-', name) or 'frame'}.parquet"
            write_parquet(data, path)
            return self.upload(path)

    def upload(self, path: Path) -> str:
        """Send a file in pieces, each with its checksum; goes on where an earlier upload of the same content ended. Returns its address.

        Raises `HarvesterError` for a file that cannot be read.
        """
        try:
            total, digest = path.stat().st_size, digest_of(path)
        except OSError as error:
            raise HarvesterError(f"cannot read {path}: {error.strerror}; give the path of a file") from error
        route = f"/api/uploads/{digest}/{_UNSAFE.sub('-', path.name)[-100:].lstrip('.') or 'file'}"
        state = self.call("GET", route)
        with path.open("rb") as file:
            while not state["is_whole"]:
                offset = min(int(state["bytes"]), total)
                file.seek(offset)
                piece = file.read(PIECE_BYTES)
                asked = {"offset": offset, "last": offset + len(piece) >= total}
                headers = {"x-content-sha256": hashlib.sha256(piece).hexdigest()}
                state = self.call("PUT", route, params=asked, content=piece, headers=headers)
        return str(state["uri"])

    def call(self, method: str, path: str, **options: Any) -> Any:
        """One request, tried again while the connection or the server is away: each is safe to repeat. Returns the JSON of the answer."""
        for attempt in range(1, TRIES + 1):
            try:
                with self.reached():
                    answer = self.http.request(method, path, **options)
            except UnreachableError:
                if attempt == TRIES or path == "/api/server":
                    raise
            else:
                if answer.status_code < 400:
                    return answer.json()
                if answer.status_code not in _RETRIED or attempt == TRIES:
                    raise error_of(answer.status_code, _json(answer))
            time.sleep(RETRY_S * 2**attempt)
        raise AssertionError("unreachable")

    @contextmanager
    def reached(self) -> Iterator[None]:
        """Connections that fail, as `UnreachableError`."""
        try:
            yield
        except httpx.TransportError as error:
            raise UnreachableError(f"no server answers at {self.url} ({error}); start one with: harvester serve") from error


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        return {"message": answer.text[:300]}
