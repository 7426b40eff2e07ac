"""A job, and its rows."""

from __future__ import annotations

import html
import json
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from harvester.api.errors import JobFailedError, UnreachableError, error_of

if TYPE_CHECKING:
    from harvester.api.client import Harvester

ENDED = ("completed", "failed", "cancelled", "expired")
POLL_S = 0.5
RESUMES = 5


class Job:
    """``view`` is the server's last word: the object of ``GET /api/jobs/JOB``. ``aio`` has the same methods as coroutines."""

    def __init__(self, client: Harvester, view: dict[str, Any], model: Any = None) -> None:
        from harvester.api.client import Async

        self._client, self.view, self._model = client, view, model
        self.aio = Async(self)

    @property
    def id(self) -> str:
        return str(self.view["id"])

    @property
    def state(self) -> str:
        return str(self.view["state"])

    def refresh(self) -> Job:
        self.view = self._client.call("GET", f"/api/jobs/{self.id}")
        return self

    def watch(self, *, progress: bool | None = None, poll_s: float = POLL_S) -> Job:
        """Wait for the end. ``progress``: a line on stderr; None: where that is a terminal. Raises `JobFailedError`."""
        shows = sys.stderr.isatty() if progress is None else progress
        while self.refresh().state not in ENDED or self.view["rows_running"]:
            if shows:
                sys.stderr.write(f"\r{self}")
                sys.stderr.flush()
            time.sleep(poll_s)
        if shows:
            sys.stderr.write(f"\r{self}\n")
        if self.state != "completed" or not self.view["rows_ok"]:
            raise JobFailedError(f"job {self.id} is {self.state}: {self.view['message'] or 'no row was answered'}", self.state)
        return self

    def cancel(self) -> Job:
        self.view = self._client.call("POST", f"/api/jobs/{self.id}/cancel")
        return self

    def results(self) -> Results:
        """The rows that are done, as far as they are asked for: nothing is read before."""
        return Results(self._client, self.id, self._model)

    def __str__(self) -> str:
        done = self.view["rows_ok"] + self.view["rows_error"]
        return f"{self.id} {self.state}, {done:,}/{self.view['rows_total']:,} rows"

    def __repr__(self) -> str:
        return f"<Job {self}>"

    def _repr_html_(self) -> str:
        done = self.view["rows_ok"] + self.view["rows_error"]
        bar = f'<progress max="{self.view["rows_total"]}" value="{done}"></progress>'
        return f"<div><b>{html.escape(self.id)}</b> {html.escape(str(self))} {bar}</div>"


class Results:
    """Rows of a job in the order of its parts, read over HTTP as Arrow record batches."""

    def __init__(self, client: Harvester, job_id: str, model: Any) -> None:
        self._client, self._job_id, self._model = client, job_id, model

    def batches(self) -> Iterator[pa.RecordBatch]:
        """One batch in memory at a time. A connection that breaks is taken up again behind the last whole part."""
        after: str | None = None
        held: list[pa.RecordBatch] = []
        for attempt in range(RESUMES + 1):
            part, held = after, []
            try:
                for name, batch in self._stream(after):
                    if name != part:
                        yield from held
                        after, part, held = part, name, []
                    held.append(batch)
                yield from held
                return
            except (UnreachableError, pa.ArrowInvalid, OSError):
                if attempt == RESUMES:
                    raise

    def _stream(self, after: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
        asked = {} if after is None else {"after": after}
        client = self._client
        with client.reached(), client.http.stream("GET", f"/api/jobs/{self._job_id}/results", params=asked) as answer:
            if answer.status_code >= 400:
                answer.read()
                raise error_of(answer.status_code, answer.json())
            reader = pa.ipc.open_stream(pa.PythonFile(_Bytes(answer.iter_raw()), "r"))
            while True:
                try:
                    found = reader.read_next_batch_with_custom_metadata()
                except StopIteration:
                    return
                yield (found.custom_metadata or {}).get(b"part", b"").decode(), found.batch

    def arrow(self) -> pa.Table:
        found = list(self.batches())
        return pa.Table.from_batches(found) if found else pa.table({})

    def df(self) -> Any:
        """A pandas frame."""
        return self.arrow().to_pandas()

    def pl(self) -> Any:
        """A polars frame."""
        import polars

        return polars.from_arrow(self.arrow())

    def relation(self) -> Any:
        """A DuckDB relation."""
        import duckdb

        return duckdb.from_arrow(self.arrow())

    def rows(self) -> list[Any]:
        """The answers that are ok: of the job's Pydantic model where it was submitted with one, else dicts."""
        found = [row for batch in self.batches() for row in batch.to_pylist() if row["status"] == "ok"]
        if self._model is None:
            return found
        names = self._model.model_fields
        typed = [row if "output" not in row or set(names) <= set(row) else json.loads(row["output"]) for row in found]
        return [self._model.model_validate({name: row[name] for name in names if name in row}) for row in typed]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self.batches():
            yield from batch.to_pylist()


class _Bytes:
    """An iterator of bytes as a file that is read forward."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._left = pieces, b""
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        found = [self._left]
        count = len(self._left)
        while size < 0 or count < size:
            piece = next(self._pieces, None)
            if piece is None:
                break
            found.append(piece)
            count += len(piece)
        whole = b"".join(found)
        cut = len(whole) if size < 0 else size
        self._left = whole[cut:]
        return whole[:cut]

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True
