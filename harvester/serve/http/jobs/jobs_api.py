"""The jobs application: submit, list, change and read jobs over HTTP. Knows the ledger as a Protocol, so tests run it without Ray."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Protocol

import pyarrow as pa
from fastapi import FastAPI, Query, Response
from pydantic import BaseModel, Field

from harvester.core import __version__
from harvester.errors import UsageError
from harvester.serve.access.gate import Gate
from harvester.serve.access.routes import JOBS_ROUTES
from harvester.serve.access.wall import guard
from harvester.serve.access.who import Who
from harvester.serve.http.asleep import Sleepers, add_asleep
from harvester.serve.http.contract import describe, refusal
from harvester.serve.http.disconnects import despite_disconnect
from harvester.serve.http.harvested_api import add_harvested
from harvester.serve.http.jobs.owned import own_active, own_job, own_jobs, own_table
from harvester.serve.http.jobs.plan_api import add_plan
from harvester.serve.http.jobs.planning import Planning
from harvester.serve.http.jobs.removal import removed
from harvester.serve.http.jobs.rows_api import add_rows
from harvester.serve.http.jobs.submit_api import add_submit
from harvester.serve.http.jobs.uploads_api import add_uploads
from harvester.serve.http.live.broadcast import Broadcaster
from harvester.serve.http.live.events import add_events
from harvester.serve.http.live.history import History
from harvester.serve.http.live.history_api import add_history
from harvester.serve.http.metrics_api import Fleet, add_metrics
from harvester.serve.http.page import add_assets
from harvester.serve.http.seen_api import add_seen
from harvester.serve.http.sql_api import add_sql
from harvester.serve.refusals import OpenAiRefusal, PlainJson, Wording, answer_of, install
from jobs.ledger.counts import JobsNow
from jobs.plan.job import check_deadline
from jobs.plan.planner import JobPlanner
from jobs.spec import JobChange, JobPlan, JobView
from jobs.sql.pool import QueryPool
from jobs.tasks.load import list_tasks
from jobs.tasks.options import TaskOption

log = logging.getLogger("harvester.jobs")

ServerInfo = Callable[[], Awaitable[dict[str, Any]]]
Profile = Callable[[float | None], Awaitable[dict[str, Any]]]
Rescale = Callable[[int, str | None], Awaitable[dict[str, Any]]]


class JobsLedger(Protocol):
    async def submit(self, plan: JobPlan, *, new: bool) -> tuple[JobView, bool]: ...
    async def jobs(self) -> list[JobView]: ...
    async def newest(self, owner: str | None, count: int | None) -> tuple[list[JobView], int]: ...
    async def now(self, ended: int) -> JobsNow: ...
    async def show(self, job_id: str) -> JobView: ...
    async def change(self, job_id: str, verb: str) -> JobView: ...
    async def adjust(self, job_id: str, change: JobChange) -> JobView: ...
    async def table(self, name: str, without: tuple[str, ...] = ()) -> pa.Table: ...
    async def specs(self, job_ids: Sequence[str]) -> dict[str, str]: ...
    async def remove(self, job_id: str) -> None: ...
    async def is_read(self, folder: str) -> bool: ...


class Jobs(BaseModel):
    jobs: list[JobView]
    older: int = Field(default=0, description="Number of jobs that `limit` left out.")


class TaskShown(BaseModel):
    name: str
    description: str
    options: dict[str, TaskOption]


class Tasks(BaseModel):
    tasks: list[TaskShown]


class ArrowStream(Response):
    media_type = "application/vnd.apache.arrow.stream"


class ScaleWish(BaseModel):
    replicas: int = Field(ge=1, le=10_000)
    model: str | None = Field(default=None, max_length=256)  # None: the first


class Scaled(BaseModel):
    replicas: int
    was: int


class ProfileWish(BaseModel):
    seconds: float | None = Field(default=None, gt=0.0, le=600.0)


_ASKS_A_REPLICA: dict[int | str, dict[str, Any]] = {503: refusal(503, OpenAiRefusal)}


def jobs_api(
    ledger: JobsLedger,
    planner: JobPlanner,
    server_info: ServerInfo,
    profile: Profile | None = None,
    broadcaster: Broadcaster | None = None,
    gate: Gate | None = None,
    queries: QueryPool | None = None,
    fleet: Fleet | None = None,
    history: History | None = None,
    scale: Rescale | None = None,
    sleepers: Sleepers | None = None,
) -> FastAPI:
    """The application, below its prefix ``/api``. Without ``broadcaster`` it has no live events, without ``history`` no ``GET /history``.

    ``gate``: whom it lets in; None: everybody. ``queries``: processes for SQL; None makes them. ``fleet``: whose metrics it shows.
    ``scale``: sets the number of replicas. ``sleepers``: models that may have no replica; None: it is asked nothing in place of a model.
    """
    app = FastAPI(title="harvester jobs", version=__version__)
    gate = gate or Gate()
    describe(app, OpenAiRefusal, asks_for_key=gate.keys.asks_for_key)
    install(app, log, _WORDING)
    _add_server(app, server_info, profile, scale)
    add_rows(app, ledger, planner.folder)
    uploads = add_uploads(app, ledger, planner.folder, planner.min_free_bytes)
    planning = Planning()
    add_submit(app, ledger, planner, server_info, uploads, planning, sleepers)
    _add_jobs(app, ledger, planner)
    add_plan(app, ledger, planner, server_info, uploads, planning, sleepers)
    add_sql(app, ledger, planner.folder, queries or QueryPool(), planner.min_free_bytes)
    add_assets(app)
    if sleepers is not None:
        add_asleep(app, sleepers)
    if broadcaster is not None:
        add_events(app, broadcaster)
    if fleet is not None:
        add_metrics(app, fleet)
    if history is not None:
        add_history(app, history)
    add_harvested(app, ledger)
    _add_tables(app, ledger)
    add_seen(app, planner)
    guard(app, JOBS_ROUTES, gate)
    return app


def _invalid(first: dict[str, Any]) -> PlainJson:
    where = ".".join(str(part) for part in first["loc"] if part != "body")
    return answer_of(UsageError(f"{where or 'request'}: {first['msg'].removeprefix('Value error, ')}"))


_WORDING = Wording(
    unknown_route="unknown route {method} {path}; see /api/openapi.json",
    bug="the server failed; its log has the cause",
    code_of=lambda kind: kind.code,
    invalid=_invalid,
)


def _add_server(app: FastAPI, server_info: ServerInfo, profile: Profile | None, scale: Rescale | None) -> None:
    @app.get("/server", responses=_ASKS_A_REPLICA)
    async def server() -> dict[str, Any]:
        return await server_info()

    @app.get("/tasks")
    def tasks() -> Tasks:
        return Tasks(tasks=[TaskShown(name=task.name, description=task.description, options=task.options) for task in list_tasks()])

    @app.post("/profile", responses=_ASKS_A_REPLICA)
    async def measure(wish: ProfileWish) -> dict[str, Any]:
        if profile is None:
            raise UsageError("this server has no engine to profile")
        return await profile(wish.seconds)

    @app.post("/scale", responses=_ASKS_A_REPLICA)
    async def rescale(wish: ScaleWish) -> Scaled:
        """Have so many replicas run, until the server is started again. One that leaves ends its chats and gives its slices back."""
        if scale is None:
            raise UsageError("this server has no replicas to scale")
        return Scaled.model_validate(await scale(wish.replicas, wish.model))


def _add_jobs(app: FastAPI, ledger: JobsLedger, planner: JobPlanner) -> None:
    @app.get("/jobs")
    async def jobs(
        who: Who,
        limit: Annotated[int | None, Query(ge=1, description="Of the newest jobs; all if not given.")] = None,
        active: Annotated[bool, Query(description="Only jobs that have not ended, whatever `limit`.")] = False,
    ) -> Jobs:
        if active:
            return Jobs(jobs=await own_active(ledger, who))
        views, older = await own_jobs(ledger, who, limit)
        return Jobs(jobs=views, older=older)

    @app.get("/jobs/{job_id}")
    async def show(job_id: str, who: Who) -> JobView:
        return await own_job(ledger, job_id, who)

    @app.patch("/jobs/{job_id}")
    async def adjust(job_id: str, change: JobChange, who: Who) -> JobView:
        check_deadline(change.deadline_at_s, time.time())
        return await ledger.adjust((await own_job(ledger, job_id, who)).id, change)

    @app.delete("/jobs/{job_id}", responses={409: refusal(409, OpenAiRefusal)})
    async def remove(job_id: str, who: Who) -> JobView:
        """Remove an ended job with its results, and return it as it was."""
        return await despite_disconnect(removed(ledger, planner.folder, await own_job(ledger, job_id, who)))

    @app.post("/jobs/{job_id}/{verb}")
    async def change(job_id: str, verb: str, who: Who) -> JobView:
        return await ledger.change((await own_job(ledger, job_id, who)).id, verb)


def _add_tables(app: FastAPI, ledger: JobsLedger) -> None:
    @app.get("/ledger/{name}", response_class=ArrowStream)
    async def table(name: str, who: Who) -> Response:
        found = await own_table(ledger, name, who)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, found.schema) as writer:
            writer.write_table(found)
        return ArrowStream(sink.getvalue().to_pybytes())
