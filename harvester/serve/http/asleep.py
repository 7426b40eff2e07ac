"""Answers requests to a model without replicas. The ingress sends them here, as ``/asleep`` plus their own path."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from harvester.errors import NoReplicaError, NotFoundError
from harvester.serve.access.routes import CHAT_ROUTES, SHUT
from harvester.serve.http.page import Asset
from harvester.serve.refusals import error_answer

Wake = Callable[[str | None], float]
ASLEEP = "/asleep/{path:path}"
_FURTHER = "models/"  # before the name of a further model
_HEALTHY = ("health", "ping")
_MESSAGE = "the model is not loaded while nobody uses it; it is being loaded now: try again in {seconds} s"


def add_asleep(app: FastAPI, wake: Wake) -> None:
    """Add the routes below ``/asleep``. ``wake`` starts loading a model and returns in how many seconds it probably answers.

    Requests to the model load it. The page and the health checks are answered without loading it: being polled, they would keep it
    loaded. If health checks failed, a load balancer would send no chat.
    """
    page = Asset("index.html")

    @app.get(ASLEEP, include_in_schema=False)
    async def look(path: str, request: Request) -> Response:
        if not path:
            return page.answer(request)
        if path in _HEALTHY:
            return JSONResponse({"status": "asleep"})
        return error_answer(503, "the model is not loaded while nobody uses it; the next chat or job loads it", code=NoReplicaError.code)

    @app.post(ASLEEP, include_in_schema=False)
    async def ask(path: str) -> Response:
        model = None
        if path.startswith(_FURTHER):
            model, _, path = path.removeprefix(_FURTHER).partition("/")
        route = CHAT_ROUTES.find("POST", f"/{path}")
        if route is None or route.needed == SHUT:
            raise NotFoundError(f"unknown route POST /{path[:80]}")
        wait_s = wake(model)
        return error_answer(503, _MESSAGE.format(seconds=ceil(wait_s)), code=NoReplicaError.code, retry_after_s=wait_s)
