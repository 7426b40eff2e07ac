"""``POST /jobs``: plan a job and enter it in the ledger. On any failure or hang-up, the copy of its rows belongs to a job or is deleted."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel

from harvester.errors import HarvesterError, NotFoundError
from harvester.serve.access.who import Who
from harvester.serve.http.asleep import Sleepers
from harvester.serve.http.contract import refusal
from harvester.serve.http.disconnects import despite_disconnect
from harvester.serve.http.jobs.plan_api import told_abilities
from harvester.serve.http.jobs.planning import Planning
from harvester.serve.http.jobs.uploads_api import Uploads
from harvester.serve.http.seen_api import is_user_of
from harvester.serve.refusals import OpenAiRefusal
from jobs.plan.planner import JobPlanner
from jobs.spec import JobPlan, JobRequest, JobView
from jobs.threads import with_storage

ONCE = "idempotency-key"


class SubmitLedger(Protocol):
    async def submit(self, plan: JobPlan, *, new: bool) -> tuple[JobView, bool]: ...
    async def show(self, job_id: str) -> JobView: ...


class Submitted(BaseModel):
    job: JobView
    created: bool


_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"model": Submitted, "description": "The same job is there already."},
    409: refusal(409, OpenAiRefusal),
    503: refusal(503, OpenAiRefusal),
}


def add_submit(
    app: FastAPI,
    ledger: SubmitLedger,
    planner: JobPlanner,
    server_info: Callable[[], Awaitable[dict[str, Any]]],
    uploads: Uploads,
    planning: Planning,
    sleepers: Sleepers | None = None,
) -> None:
    @app.post("/jobs", status_code=201, responses=_ANSWERS)
    async def submit(request: JobRequest, sent: Request, response: Response, who: Who) -> Submitted:
        info = await server_info()
        able = told_abilities(info, request.model, sleepers)
        is_user = await is_user_of(sent, planner.folder)
        request, rules = await uploads.resolved(request, who)
        work = partial(planner.plan, request, able, who.name, who.limits, is_user=is_user and rules is None, uploaded=rules)
        plan, is_new = _once(await planning.run(who.counted_as, work, planner.forget), request.new, sent.headers.get(ONCE))
        submitted = await despite_disconnect(_entered(ledger, planner, plan, is_new=is_new))
        if not submitted.created:
            response.status_code = 200
        return submitted


async def _entered(ledger: SubmitLedger, planner: JobPlanner, plan: JobPlan, *, is_new: bool) -> Submitted:
    try:
        view, created = await ledger.submit(plan, new=is_new)
    except HarvesterError:
        if await is_unknown(ledger, plan):
            await with_storage(planner.forget, plan)
        raise
    if not created and view.id != plan.spec.id:
        await with_storage(planner.forget, plan)
    return Submitted(job=view, created=created)


async def is_unknown(ledger: SubmitLedger, plan: JobPlan) -> bool:
    """Whether the ledger confirms that it has no such job. If it does not answer, the job may be there."""
    try:
        await ledger.show(plan.spec.id)
    except NotFoundError:
        return True
    except HarvesterError:
        return False
    return False


def _once(plan: JobPlan, is_new: bool, told: str | None) -> tuple[JobPlan, bool]:
    """Make a repeated request with ``new`` find its first job: the job's key is derived from the client's idempotency key."""
    if not is_new or told is None:
        return plan, is_new  # without `new`, the same request finds the same job anyway
    key = hashlib.sha256(f"{plan.spec.key} {told}".encode("utf-8", "surrogateescape")).hexdigest()
    return plan.model_copy(update={"spec": plan.spec.model_copy(update={"key": key})}), False
