"""The jobs application: submit, list, change and read jobs over HTTP. Knows the ledger as a Protocol, so tests run it without Ray."""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, Protocol

import pyarrow as pa
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from connectors.open import open_source
from harvester.core import __version__
from harvester.errors import HarvesterError, NotFoundError, TaskError, UsageError
from harvester.serve.broadcast import Broadcaster
from harvester.serve.contract import describe, refusal
from harvester.serve.events import add_events
from harvester.serve.openai_errors import PlainJson
from harvester.serve.page import add_assets
from harvester.serve.sql_api import add_sql
from harvester.serve.walls import CrossSiteWall, KeyWall, plain_answer
from jobs.config import HarvestConfig
from jobs.folder import StateFolder
from jobs.plan.job import check_deadline, plan_job
from jobs.spec import JobChange, JobPlan, JobRequest, JobView
from jobs.tasks.load import list_tasks
from jobs.tasks.options import TaskOption

log = logging.getLogger("harvester.jobs")

ServerInfo = Callable[[], Awaitable[dict[str, Any]]]
Profile = Callable[[float | None], Awaitable[dict[str, Any]]]


class JobsLedger(Protocol):
    async def submit(self, plan: JobPlan, *, new: bool) -> tuple[JobView, bool]: ...
    async def jobs(self) -> list[JobView]: ...
    async def show(self, job_id: str) -> JobView: ...
    async def change(self, job_id: str, verb: str) -> JobView: ...
    async def adjust(self, job_id: str, change: JobChange) -> JobView: ...
    async def table(self, name: str) -> pa.Table: ...


class Submitted(BaseModel):
    job: JobView
    created: bool


class Jobs(BaseModel):
    jobs: list[JobView]


class TaskShown(BaseModel):
    name: str
    description: str
    options: dict[str, TaskOption]


class Tasks(BaseModel):
    tasks: list[TaskShown]


class RefusedWhy(BaseModel):
    code: str
    message: str


class Refusal(BaseModel):
    """Body of every error."""

    error: RefusedWhy


class ArrowStream(Response):
    media_type = "application/vnd.apache.arrow.stream"


class ProfileWish(BaseModel):
    seconds: float | None = Field(default=None, gt=0.0, le=600.0)


_SUBMIT: dict[int | str, dict[str, Any]] = {
    200: {"model": Submitted, "description": "The same job is there already."},
    409: refusal(409, Refusal),
    503: refusal(503, Refusal),
}
_ASKS_A_REPLICA: dict[int | str, dict[str, Any]] = {503: refusal(503, Refusal)}


class JobPlanner:
    """Turns a request into a plan, in a thread, because that reads files of the source."""

    def __init__(self, folder: StateFolder, harvest: HarvestConfig, model: str) -> None:
        self.folder = folder
        self._harvest = harvest
        self._model = model

    def plan(self, request: JobRequest, context_tokens: int) -> JobPlan:
        """Raises the `UsageError` that tells the user what to change. ``context_tokens``: of prompt and answer, in this engine."""
        check_deadline(request.deadline_at_s, time.time())  # before a source is copied
        if request.model not in (None, self._model):
            raise UsageError(f"this server runs {self._model}, not {request.model}; remove --model, or serve {request.model}")
        spec = request.source
        staging = self.folder.jobs / f".staging-{secrets.token_hex(6)}"
        try:
            with open_source(spec.uri, table=spec.table, query=spec.query, snapshot_dir=staging / "input") as source:
                token = self._token(source.name)
                plan = plan_job(request, source, model=self._model, harvest=self._harvest, now_s=time.time(), token=token)
            if plan.spec.task.max_tokens >= context_tokens:
                raise TaskError(
                    f"max_tokens {plan.spec.task.max_tokens} leaves no room for a prompt in the {context_tokens} tokens "
                    f"that {self._model} takes; lower it with --max-tokens"
                )
            if staging.exists():  # a snapshot was taken: the job reads that from now on
                staging.rename(self.folder.jobs / plan.spec.id)
            return plan
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _token(self, name: str) -> str:
        """Four hex digits for a job id that no folder has yet."""
        while True:
            token = secrets.token_hex(2)
            if not (self.folder.jobs / f"{name}-{token}").exists():
                return token

    def forget(self, plan: JobPlan) -> None:
        """Remove the snapshot that `plan` made for a job that was then not made. Never removes results."""
        shutil.rmtree(self.folder.snapshot(plan.spec.id), ignore_errors=True)
        with suppress(OSError):  # not there, or not empty
            (self.folder.jobs / plan.spec.id).rmdir()


async def is_unknown(ledger: JobsLedger, plan: JobPlan) -> bool:
    """Whether the ledger says that it has no such job. Where it says nothing, the job may be there."""
    try:
        await ledger.show(plan.spec.id)
    except NotFoundError:
        return True
    except HarvesterError:
        return False
    return False


def jobs_api(
    ledger: JobsLedger,
    planner: JobPlanner,
    server_info: ServerInfo,
    profile: Profile | None = None,
    broadcaster: Broadcaster | None = None,
    hosts: Collection[str] | None = None,
    keys: Sequence[str] = (),
) -> FastAPI:
    """The application, below its prefix ``/api``. Without ``broadcaster`` it has no live events.

    ``hosts``: see `CrossSiteWall`. ``keys``: see `KeyWall`; what the page loads is open, so that it can ask for one.
    """
    app = FastAPI(title="harvester jobs", version=__version__)
    app.add_middleware(CrossSiteWall, hosts=hosts)
    app.add_middleware(KeyWall, keys=keys, answer=plain_answer, open_below="/page/")
    describe(app, Refusal, asks_for_key=bool(keys))
    _answer_errors(app)
    _add_server(app, server_info, profile)
    _add_jobs(app, ledger, planner, server_info)
    add_sql(app, ledger, planner.folder)
    add_assets(app)
    if broadcaster is not None:
        add_events(app, broadcaster)
    _add_tables(app, ledger)
    return app


def _answer_errors(app: FastAPI) -> None:
    @app.exception_handler(HarvesterError)
    async def _refuse(request: Request, error: HarvesterError) -> PlainJson:
        return PlainJson(error.to_json(), status_code=error.http_status)

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> PlainJson:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "body")
        return PlainJson(UsageError(f"{where or 'request'}: {first['msg'].removeprefix('Value error, ')}").to_json(), status_code=400)

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> PlainJson:
        asked = f"{request.method} {request.url.path}"
        message = f"unknown route {asked}; see /api/openapi.json" if error.status_code in (404, 405) else str(error.detail)
        body = NotFoundError(message) if error.status_code in (404, 405) else UsageError(message)
        return PlainJson(body.to_json(), error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def _bug(request: Request, error: Exception) -> PlainJson:
        log.exception("jobs_bug path=%s", request.url.path, exc_info=error)
        return PlainJson(HarvesterError("internal error; the server's log has the cause").to_json(), 500)


def _add_server(app: FastAPI, server_info: ServerInfo, profile: Profile | None) -> None:
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


def _add_jobs(app: FastAPI, ledger: JobsLedger, planner: JobPlanner, server_info: ServerInfo) -> None:
    @app.post("/jobs", status_code=201, responses=_SUBMIT)
    async def submit(request: JobRequest, response: Response) -> Submitted:
        context_tokens = int((await server_info())["context_tokens"])
        plan = await asyncio.to_thread(planner.plan, request, context_tokens)
        try:
            view, created = await ledger.submit(plan, new=request.new)
        except HarvesterError:
            if await is_unknown(ledger, plan):
                await asyncio.to_thread(planner.forget, plan)
            raise
        if not created:
            if view.id != plan.spec.id:
                await asyncio.to_thread(planner.forget, plan)
            response.status_code = 200
        return Submitted(job=view, created=created)

    @app.get("/jobs")
    async def jobs() -> Jobs:
        return Jobs(jobs=await ledger.jobs())

    @app.get("/jobs/{job_id}")
    async def show(job_id: str) -> JobView:
        return await ledger.show(job_id)

    @app.patch("/jobs/{job_id}")
    async def adjust(job_id: str, change: JobChange) -> JobView:
        check_deadline(change.deadline_at_s, time.time())
        return await ledger.adjust(job_id, change)

    @app.post("/jobs/{job_id}/{verb}")
    async def change(job_id: str, verb: str) -> JobView:
        return await ledger.change(job_id, verb)


def _add_tables(app: FastAPI, ledger: JobsLedger) -> None:
    @app.get("/ledger/{name}", response_class=ArrowStream)
    async def table(name: str) -> Response:
        found = await ledger.table(name)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, found.schema) as writer:
            writer.write_table(found)
        return ArrowStream(sink.getvalue().to_pybytes())
