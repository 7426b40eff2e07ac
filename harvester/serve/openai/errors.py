"""Errors in the shape of OpenAI's API: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import json
import logging
from math import ceil
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from harvester.errors import HarvesterError, ParameterError, QuotaError, TooManyQueriesError

log = logging.getLogger("harvester.openai")


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


_CODES = {"missing": "missing_required_parameter", "extra_forbidden": "unknown_parameter"}


def handle_errors(app: FastAPI) -> None:
    """Give every error of the application this shape."""

    @app.exception_handler(HarvesterError)
    async def _refuse(request: Request, error: HarvesterError) -> PlainJson:
        return answer_of(error)

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> PlainJson:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
        message = f"{where or 'request'}: {first['msg']}"
        return error_answer(400, " ".join(message.split())[:500], where or None, _CODES.get(first["type"], "invalid_value"))

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> PlainJson:
        path = request.url.path[:80]
        message = f"Invalid URL ({request.method} {path})" if error.status_code in (404, 405) else str(error.detail)
        return error_answer(error.status_code, message)

    @app.exception_handler(ClientDisconnect)
    async def _gone(request: Request, error: ClientDisconnect) -> PlainJson:
        return error_answer(400, "the client hung up before the request was whole")

    @app.exception_handler(Exception)
    async def _bug(request: Request, error: Exception) -> PlainJson:
        log.exception("openai_bug path=%s", request.url.path, exc_info=error)
        return error_answer(500, "internal error; the server's log has the cause")
