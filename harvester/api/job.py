"""A job as the client sees it: its state, waiting for its end, its rows."""

from __future__ import annotations

import html
from functools import partial
from typing import Any, Self, TypeVar, overload

from harvester.api.errors import JobFailedError
from harvester.api.flow import PATIENCE_S, Flow, Pause, ask
from harvester.api.rows import AsyncRows, Rows
from harvester.api.show import Progress
from harvester.api.stream import rows_of
from harvester.api.wire import AsyncWire, Wire

ENDED = ("completed", "failed", "cancelled", "expired")
POLL_S = 0.5
M = TypeVar("M")


class _JobState:
    """A job as the server last described it. ``view``: the object of ``GET /api/jobs/JOB``."""

    def __init__(self, view: dict[str, Any], model: Any = None) -> None:
        self.view = view
        self._model = model

    @property
    def id(self) -> str:
        return str(self.view["id"])

    @property
    def state(self) -> str:
        """``queued``, ``running``, ``paused``, ``cancelling``, ``cancelled``, ``completed``, ``failed`` or ``expired``."""
        return str(self.view["state"])

    @property
    def rows_done(self) -> int:
        return int(self.view["rows_ok"]) + int(self.view["rows_error"]) - int(self.view.get("rows_to_retry", 0))

    def _refreshed(self, patience_s: float = 0.0) -> Flow[None]:
        self.view = yield from ask("GET", f"/api/jobs/{self.id}", patience_s=patience_s)

    def _changed(self, verb: str) -> Flow[None]:
        self.view = yield from ask("POST", f"/api/jobs/{self.id}/{verb}", is_safe=verb in ("cancel", "pause", "resume"))

    def _watched(self, progress: bool | None, poll_s: float) -> Flow[None]:
        shown = Progress(self, progress)
        while True:
            yield from self._refreshed(PATIENCE_S)
            is_over = self.state in ENDED and not self.view["rows_running"]
            shown.update(is_over)
            if is_over:
                break
            yield Pause(poll_s)
        if self.state != "completed" or not self.view["rows_ok"]:
            raise JobFailedError(f"job {self.id} is {self.state}: {self.view['message'] or 'no row was answered'}", self.state)

    def __str__(self) -> str:
        failed = f", {self.view['rows_error']:,} failed" if self.view["rows_error"] else ""
        return f"{self.id} {self.state}, {self.rows_done:,}/{self.view['rows_total']:,} rows{failed}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"

    def _repr_html_(self) -> str:
        bar = f'<progress max="{self.view["rows_total"]}" value="{self.rows_done}"></progress>'
        return f"<div><b>{html.escape(str(self.view['task']))}</b> {html.escape(str(self))} {bar}</div>"


class Job(_JobState):
    """Made by `Harvester.submit`. Its methods return the job, so that they chain: ``job.watch().results().df()``."""

    def __init__(self, wire: Wire, view: dict[str, Any], model: Any = None) -> None:
        super().__init__(view, model)
        self._wire = wire

    def refresh(self) -> Self:
        """Fetch the job's current state from the server."""
        self._wire.run(self._refreshed())
        return self

    def watch(self, *, progress: bool | None = None, poll_s: float = POLL_S) -> Self:
        """Wait until the job has ended. ``progress``: a bar in a notebook, a line on stderr; None: only in a notebook or on a terminal.

        Raises `JobFailedError` unless the job completed with at least one answered row. Single failed rows are in the results. Raises
        `UnreachableError` or `HarvesterError` where the server is away for more than two minutes.
        """
        self._wire.run(self._watched(progress, poll_s))
        return self

    def cancel(self) -> Self:
        """Cancel the job. Finished rows stay in its results; `resume` computes the rest. Raises `RefusedError` for a job that has ended."""
        self._wire.run(self._changed("cancel"))
        return self

    def pause(self) -> Self:
        self._wire.run(self._changed("pause"))
        return self

    def resume(self) -> Self:
        self._wire.run(self._changed("resume"))
        return self

    def retry(self) -> Self:
        """Compute the failed rows again. Raises `RefusedError` for a job that has not ended."""
        self._wire.run(self._changed("retry"))
        return self

    @overload
    def results(self) -> Rows[Any]: ...
    @overload
    def results(self, model: type[M]) -> Rows[M]: ...
    def results(self, model: Any = None) -> Rows[Any]:
        """The rows that are done when they are read: `row_id`, the kept input columns, the answer, and columns on how each row went.

        ``model``: Pydantic model of the objects that iteration yields. Default: the one that the job was submitted with, else dicts.
        """
        return Rows(partial(rows_of, self._wire, self.id), model or self._model)


class AsyncJob(_JobState):
    """`Job` for coroutines: ``await job.watch()``; ``async for row in job.results()``."""

    def __init__(self, wire: AsyncWire, view: dict[str, Any], model: Any = None) -> None:
        super().__init__(view, model)
        self._wire = wire

    async def refresh(self) -> Self:
        await self._wire.run(self._refreshed())
        return self

    async def watch(self, *, progress: bool | None = None, poll_s: float = POLL_S) -> Self:
        await self._wire.run(self._watched(progress, poll_s))
        return self

    async def cancel(self) -> Self:
        await self._wire.run(self._changed("cancel"))
        return self

    async def pause(self) -> Self:
        await self._wire.run(self._changed("pause"))
        return self

    async def resume(self) -> Self:
        await self._wire.run(self._changed("resume"))
        return self

    async def retry(self) -> Self:
        await self._wire.run(self._changed("retry"))
        return self

    @overload
    def results(self) -> AsyncRows[Any]: ...
    @overload
    def results(self, model: type[M]) -> AsyncRows[M]: ...
    def results(self, model: Any = None) -> AsyncRows[Any]:
        return AsyncRows(Rows(partial(rows_of, self._wire.blocking, self.id), model or self._model))
