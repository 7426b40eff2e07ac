"""Client of one server: uploads tables, submits and watches jobs, reads rows. Imports httpx and Arrow, and no server code."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import pyarrow as pa

from harvester.api.errors import NotFoundError, UnreachableError
from harvester.api.flow import Flow, Work, ask, awaited, blocking
from harvester.api.frames import as_file, check_aligned, like
from harvester.api.job import AsyncJob, Job
from harvester.api.rows import RECORD, AsyncRows, Rows
from harvester.api.stream import answer_of, rows_of
from harvester.api.uploads import upload
from harvester.api.wire import SUBMIT_S, Address, AsyncWire, Wire

SQL_S = 900.0
J = TypeVar("J")
IMPLIED = {"prompt": "ask", "labels": "classify", "schema": "extract", "to": "translate"}  # an option that one task alone has implies it
# What a prompt becomes with labels or a schema: fields of a task, whose options are given as those of built-in tasks.
_ANSWERS: dict[str, dict[str, Any]] = {
    "labels": {"answer": "choice", "labels": "{labels}"},
    "schema": {"answer": "json", "json_schema": "{schema}", "max_tokens": 512},
}
_DATABASE = re.compile(r"(postgres|postgresql|mysql|md|odbc|duckdb|sqlite):", re.IGNORECASE)  # as `connectors.open.is_attached`
_CHOICES = ("table", "query", "where", "sample", "seed", "limit", "encoding", "ragged")  # fields of the request's ``source``


def implied_task(options: Mapping[str, Any]) -> tuple[str, dict[str, Any] | None]:
    """Name of the task that ``options`` imply, and its content where it is none of the built-in ones: a prompt with labels or a schema."""
    own = [name for name in _ANSWERS if name in options] if "prompt" in options else []
    if not own:
        return next((IMPLIED[name] for name in options if name in IMPLIED), "summarize"), None
    fields = {key: value for name in own for key, value in _ANSWERS[name].items()}
    return "ask", {"prompt": "{prompt}", **fields, "options": {name: {"required": True} for name in ("prompt", *own)}}


class Calls(Generic[J]):
    """The requests to a server, as flows. ``made`` builds a job object from the server's view of it and the user's Pydantic model."""

    def __init__(self, wire: Wire, made: Callable[[dict[str, Any], Any], J]) -> None:
        self._wire, self._made = wire, made

    def submit(
        self,
        /,
        data: Any,
        task: str | None = None,
        *,
        prompt: str | None = None,
        labels: Sequence[str] | None = None,
        schema: Any = None,
        options: Mapping[str, Any] | None = None,
        name: str = "frame",
        new: bool = False,
        **fields: Any,
    ) -> Flow[J]:
        """Submit a job over a table. Submitting the same job again returns the existing one, unless ``new``.

        ``data``: a local path (file, folder or glob), an address that the server reads (``s3://...``, ``file:///...``,
        ``postgres:dbname=shop``) or that `upload` returned, a frame (pandas, polars, Arrow), a DuckDB relation, or a list of dicts.
        All but addresses are uploaded, once.

        ``task``: a built-in task; ``prompt`` (with ``{column}``) implies ``ask``, ``labels`` ``classify``, ``schema`` ``extract``.
        A ``prompt`` with ``labels`` or ``schema`` is answered by one of the labels, or in the columns of the schema.
        ``embed`` gives vectors, on a model that makes embeddings, in column ``embedding``.
        ``images``: columns that hold images (bytes, paths, addresses at allowed hosts), shown with each prompt.
        ``adapter``: name of a LoRA adapter that the server has.
        ``schema``: a Pydantic model, whose objects `Job.results` yields, or a JSON schema. ``options``: the task's further options.
        ``name``: of an uploaded frame; the job's id begins with it. ``fields``: those of ``POST /api/jobs``, such as ``column``, ``keep``,
        ``max_tokens``, ``temperature``, ``deadline_at_s`` or ``weight``; also those of its ``source``, such as ``where`` or ``limit``.
        ``thinking`` is "off", "on" or a maximum of tokens. Results then have a column ``reasoning``.

        Raises `RefusedError` for a wrong value, `HarvesterError` for data that cannot be read or has no rows, `UnreachableError`.
        """
        model = schema if hasattr(schema, "model_json_schema") else None
        given = {"prompt": prompt, "labels": labels, "schema": schema if model is None else model.model_json_schema()}
        asked = dict(options or {}) | {key: value for key, value in given.items() if value is not None}
        chosen = {key: fields.pop(key) for key in _CHOICES if key in fields}
        named, inline = (task, None) if task else implied_task(asked)
        uri = yield from self.upload(data, name)
        told = yield from ask(
            "POST",
            "/api/jobs",
            json={
                "source": {"uri": uri, **chosen},
                "task": named,
                "task_inline": inline,
                "options": asked,
                "new": new,
                **fields,
            },
            headers={"idempotency-key": secrets.token_hex(16)},  # one for all tries: a lost answer makes no second job
            timeout_s=SUBMIT_S,
        )
        return self._made(told["job"], model)

    def map(self, /, frame: Any, prompt: str, **fields: Any) -> Flow[Any]:
        """Answer ``prompt`` for each row, and wait. ``fields``: those of `submit`.

        Returns an object of the kind of ``frame``: pandas, polars, a relation, a list of dicts, else Arrow. It has the frame's columns, the
        answer (``output``, or the columns of ``schema``) and ``error_message``, null where the row was answered. A pandas frame keeps its
        index, so ``where``, ``sample`` and ``query`` are refused for it. Raises `JobFailedError`, `HarvesterError`.
        """
        check_aligned(frame, fields)
        job: Any = yield from self.submit(frame, prompt=prompt, **fields)
        yield from job._watched(None, 0.2)
        table: pa.Table = yield Work(Rows(partial(rows_of, self._wire, job.id)).arrow)
        table = table.sort_by("row_id")
        kept = [name for name in table.column_names if name != "row_id" and (name not in RECORD or name == "error_message")]
        return (yield Work(partial(like, frame, table.select(kept))))

    def job(self, job_id: str = "latest") -> Flow[J]:
        """A job that exists. Raises `NotFoundError`."""
        view = yield from ask("GET", f"/api/jobs/{job_id}")
        return self._made(view, None)

    def jobs(self, limit: int | None = None) -> Flow[list[J]]:
        """The newest ``limit`` jobs of this key, newest first; by default all."""
        found = yield from ask("GET", "/api/jobs" if limit is None else f"/api/jobs?limit={limit}")
        return [self._made(view, None) for view in found["jobs"]]

    def upload(self, data: Any, name: str = "frame") -> Flow[str]:
        """Upload what the server does not have yet of ``data``. Returns its address there; an address is returned unchanged."""
        if isinstance(data, str) and _is_address(data):
            return data
        if isinstance(data, str | os.PathLike):
            return (yield from upload(Path(os.path.expanduser(data))))  # noqa: PTH111 - the home of an unknown user stays as it is written
        with ExitStack() as stack:
            path: Path = yield Work(lambda: stack.enter_context(as_file(data, name)))
            return (yield from upload(path))

    def answer(self, query: str) -> Flow[str]:
        """Run a query. Returns the id of its answer."""
        told = yield from ask("POST", "/api/sql/answers", json={"query": query}, timeout_s=SQL_S)
        return str(told["id"])


def _is_address(data: str) -> bool:
    """Whether the server opens it. A file of this machine may have a name like one of a database."""
    return "://" in data or data.startswith("upload:") or (_DATABASE.match(data) is not None and not os.path.lexists(data))


def _model(url: str) -> Flow[str]:
    """Name of the model that the server runs. Raises `UnreachableError` for anything but a ready harvester server."""
    try:
        told = yield from ask("GET", "/api/server", tries=1)
        return str(told["model"])
    except (NotFoundError, KeyError, TypeError) as error:
        raise UnreachableError(f"what answers at {url} is no harvester server; check the address") from error


class Harvester:
    """Made by `harvester.connect`; a context manager. Raises the errors of `harvester.api.errors`. Threads may share it."""

    def __init__(self, url: str | None = None, *, api_key: str | None = None) -> None:
        self._wire = Wire(Address(url, api_key))
        self.url = self._wire.address.url
        self._calls: Calls[Job] = Calls(self._wire, partial(Job, self._wire))
        try:
            self.model = self._wire.run(_model(self.url))
        except BaseException:
            self._wire.close()
            raise

    submit = blocking(Calls[Job].submit)
    map = blocking(Calls[Job].map)
    job = blocking(Calls[Job].job)
    jobs = blocking(Calls[Job].jobs)
    upload = blocking(Calls[Job].upload)

    def sql(self, query: str) -> Rows[Any]:
        """Run one SELECT on the server, over the ledger's tables and ``results('JOB')``. Returns its rows.

        The server keeps the answer for an hour: reading resumes after a broken connection. Raises `RefusedError` for a query that
        fails or takes too long.
        """
        return Rows(partial(answer_of, self._wire, self._wire.run(self._calls.answer(query))))

    def close(self) -> None:
        self._wire.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *given: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Harvester({self.url!r}, model={self.model!r})"


class AsyncHarvester:
    """Made by `harvester.connect_async`; an asynchronous context manager. The methods of `Harvester` as coroutines."""

    def __init__(self, url: str | None = None, *, api_key: str | None = None) -> None:
        self._wire = AsyncWire(Address(url, api_key))
        self.url = self._wire.address.url
        self._calls: Calls[AsyncJob] = Calls(self._wire.blocking, partial(AsyncJob, self._wire))
        self.model: str | None = None

    submit = awaited(Calls[AsyncJob].submit)
    map = awaited(Calls[AsyncJob].map)
    job = awaited(Calls[AsyncJob].job)
    jobs = awaited(Calls[AsyncJob].jobs)
    upload = awaited(Calls[AsyncJob].upload)

    async def sql(self, query: str) -> AsyncRows[Any]:
        """As `Harvester.sql`."""
        answer = await self._wire.run(self._calls.answer(query))
        return AsyncRows(Rows(partial(answer_of, self._wire.blocking, answer)))

    async def open(self) -> Self:
        """Ask the server which model it runs. Raises `UnreachableError`."""
        try:
            self.model = await self._wire.run(_model(self.url))
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        await self._wire.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *given: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncHarvester({self.url!r}, model={self.model!r})"
