"""Answers requests to a model without replicas. The ingress sends them here, as ``/asleep`` plus their own path."""

from __future__ import annotations

from math import ceil
from typing import Protocol

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from harvester.errors import NoReplicaError, NotFoundError
from harvester.serve.access.routes import CHAT_ROUTES, SHUT
from harvester.serve.http.page import Asset
from harvester.serve.refusals import error_answer

ASLEEP = "/asleep/{path:path}"
_FURTHER = "models/"  # before the name of a further model
_HEALTHY = ("health", "ping")
_MESSAGE = "the model is not loaded while nobody uses it; it is being loaded now: try again in {seconds} s"


class Sleepers(Protocol):
    """The models that may have no replica. ``model``: name of a further model; None: the first."""

    def may_sleep(self, model: str | None) -> bool: ...

    def wake(self, model: str | None) -> float:
        """Start loading the model. Returns in how many seconds it probably answers."""


def add_asleep(app: FastAPI, sleepers: Sleepers) -> None:
    """Add the routes below ``/asleep``.

    Requests to the model load it. The page and the health checks are answered without loading it: being polled, they would keep it
    loaded. If health checks failed, a load balancer would send no chat. A model that never sleeps has lost its replicas: everything is 503.
    """
    page = Asset("index.html")

    def asked(path: str) -> tuple[str | None, str]:
        """The model that a path belongs to, and the path there. Raises `NoReplicaError` if that model never sleeps."""
        model = None
        if path.startswith(_FURTHER):
            model, _, path = path.removeprefix(_FURTHER).partition("/")
        if not sleepers.may_sleep(model):
            raise NoReplicaError("no replica answers; it may be starting: try again in a moment")
        return model, path

    @app.get(ASLEEP, include_in_schema=False)
    async def look(path: str, request: Request) -> Response:
        _, path = asked(path)
        if not path:
            return page.answer(request)
        if path in _HEALTHY:
            return JSONResponse({"status": "asleep"})
        return error_answer(503, "the model is not loaded while nobody uses it; the next chat or job loads it", code=NoReplicaError.code)

    @app.options(ASLEEP, include_in_schema=False)
    async def probe(path: str) -> Response:
        """What `harvester.serve.reach.Reach` asks: a model that sleeps is reached, one that has lost its replicas is not."""
        asked(path)
        return Response(status_code=204, headers={"allow": "GET, POST"})

    @app.post(ASLEEP, include_in_schema=False)
    async def ask(path: str) -> Response:
        model, path = asked(path)
        route = CHAT_ROUTES.find("POST", f"/{path}")
        if route is None or route.needed == SHUT:
            raise NotFoundError(f"unknown route POST /{path[:80]}")
        wait_s = sleepers.wake(model)
        return error_answer(503, _MESSAGE.format(seconds=ceil(wait_s)), code=NoReplicaError.code, retry_after_s=wait_s)
