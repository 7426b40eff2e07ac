"""``POST /plan``: a dry run of a job for the page. Rows, tokens, time and price; nothing is kept."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from fastapi import FastAPI

from harvester.errors import NoReplicaError
from harvester.serve.access.who import Who
from harvester.serve.http.asleep import Sleepers
from harvester.serve.http.jobs.owned import LedgerTables
from harvester.serve.http.jobs.planning import Planning
from harvester.serve.http.jobs.uploads_api import Uploads
from jobs.config import PriceConfig
from jobs.forecast.lengths import Lengths
from jobs.ledger.history import recent_spans, task_key
from jobs.plan.estimate import Known
from jobs.plan.planner import JobPlanner
from jobs.spec import JobRequest, JobSpec
from jobs.tasks.abilities import Abilities, abilities_of


def told_abilities(info: dict[str, Any], model: str | None, sleepers: Sleepers | None) -> Abilities:
    """What the model can do. Raises `NoReplicaError` for a further model if none of its replicas has reported that yet, and wakes it."""
    able = abilities_of(info, model)
    if able is None:
        if sleepers is not None:
            sleepers.wake(model)
        raise NoReplicaError(f"no replica of {model} answers; it may be starting: try again in a moment")
    return able


async def _known(ledger: LedgerTables, info: dict[str, Any], model: str | None, sleepers: Sleepers | None) -> Known:
    """Rates and answer lengths of earlier jobs. A prompt's tokens are estimated from its characters."""
    harvest, told = [(await ledger.table(name)).to_pylist() for name in ("harvest", "lengths")]
    counts = {line["task_key"]: line["counts"] for line in told}

    def lengths(job: JobSpec) -> Lengths | None:
        found = counts.get(task_key(job.task, job.model))
        return None if found is None else Lengths.from_json(json.loads(found))

    price = info.get("price")
    name = model or info["model"]
    spans = recent_spans(harvest, name, time.time())
    return Known(name, spans, lengths, None if price is None else PriceConfig.model_validate(price), told_abilities(info, model, sleepers))


def add_plan(
    app: FastAPI,
    ledger: LedgerTables,
    planner: JobPlanner,
    server_info: Callable[[], Awaitable[dict[str, Any]]],
    uploads: Uploads,
    planning: Planning,
    sleepers: Sleepers | None = None,
) -> None:
    @app.post("/plan")
    async def plan(request: JobRequest, who: Who) -> dict[str, Any]:
        """What a job would be: rows, tokens, time and price. Nothing is computed or kept."""
        known = await _known(ledger, await server_info(), request.model, sleepers)
        request, rules = await uploads.resolved(request, who)
        return await planning.run(who.counted_as, partial(planner.estimate, request, known, who.limits, rules))
