"""Error answers in the shape of OpenAI's API, of every application and of the wall: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from harvester.errors import HarvesterError, NotFoundError, ParameterError, QuotaError, TooManyQueriesError, UsageError


class RefusedWhy(BaseModel):
    model_config = ConfigDict(extra="forbid")

    message: str
    type: Literal["invalid_request_error", "server_error", "requests", "tokens"]
    param: str | None
    code: str | None


class OpenAiRefusal(BaseModel):
    """Body of every error."""

    model_config = ConfigDict(extra="forbid")

    error: RefusedWhy


class PlainJson(JSONResponse):
    """JSON in ASCII: a client's text may hold a lone surrogate, which UTF-8 cannot encode."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, separators=(",", ":")).encode("ascii")


def error_answer(
    status: int, message: str, param: str | None = None, code: str | None = None, kind: str | None = None, retry_after_s: float = 1.0
) -> PlainJson:
    kind = kind or ("invalid_request_error" if status < 500 else "server_error")
    headers = {
        401: {"www-authenticate": "Bearer"},
        408: {"connection": "close"},
        413: {"connection": "close"},  # the rest of the body is not read
        429: {"retry-after": str(ceil(retry_after_s))},
        503: {"retry-after": str(ceil(retry_after_s))},
    }
    return PlainJson({"error": {"message": message, "type": kind, "param": param, "code": code}}, status, headers.get(status))


def answer_of(error: HarvesterError) -> PlainJson:
    param = error.param if isinstance(error, ParameterError) else None
    kind = error.counted if isinstance(error, QuotaError) else "requests" if isinstance(error, TooManyQueriesError) else None
    return error_answer(error.http_status, error.message, param, error.code, kind, getattr(error, "retry_after_s", 1.0))


@dataclass(frozen=True, slots=True)
class Wording:
    """How an application words the refusals that are not its own, and failures of the server.

    ``unknown_route``: a format of ``method`` and ``path``. ``bug``: what a client is told of an error of ours. ``code_of``: the ``code``
    for an error of that class. ``invalid``: the answer to a request that does not fit its model, by pydantic's first error.
    """

    unknown_route: str
    bug: str
    code_of: Callable[[type[HarvesterError]], str | None]
    invalid: Callable[[dict[str, Any]], PlainJson]


def install(app: FastAPI, log: logging.Logger, wording: Wording) -> None:
    """Give every error of the application this shape. ``log`` gets the traceback of a bug."""

    @app.exception_handler(HarvesterError)
    async def _refuse(request: Request, error: HarvesterError) -> PlainJson:
        return answer_of(error)

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> PlainJson:
        return wording.invalid(error.errors()[0])

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> PlainJson:
        is_unknown = error.status_code in (404, 405)
        unknown = wording.unknown_route.format(method=request.method, path=request.url.path)
        code = wording.code_of(NotFoundError if is_unknown else UsageError)
        return error_answer(error.status_code, unknown if is_unknown else str(error.detail), code=code)

    @app.exception_handler(ClientDisconnect)
    async def _gone(request: Request, error: ClientDisconnect) -> PlainJson:
        return error_answer(400, "the client hung up before the request was whole", code=wording.code_of(UsageError))

    @app.exception_handler(Exception)
    async def _bug(request: Request, error: Exception) -> PlainJson:
        log.exception(f"{log.name.rpartition('.')[2]}_bug path=%s", request.url.path, exc_info=error)
        return error_answer(500, wording.bug, code=wording.code_of(HarvesterError))
