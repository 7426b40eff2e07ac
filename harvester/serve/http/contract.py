"""Error answers in an application's OpenAPI document: the statuses of each operation, and their shape."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

_REF = "#/components/schemas/{model}"
_NEVER_SENT = ("HTTPValidationError", "ValidationError")  # FastAPI's own, for its status 422
_BEARER = "ApiKey"
_WHY = {
    400: "The request is wrong. The message says which value, and what to do.",
    401: "The API key is missing, unknown or expired.",
    403: "A page of another site asks, or the API key lacks the role.",
    404: "There is nothing of this name.",
    408: "The body came too slowly.",
    409: "Its state forbids the change.",
    413: "The request is larger than this server, or its API key, takes.",
    429: "The API key has asked more than it may for now, or the server is at it; Retry-After says when to ask again.",
    500: "The server, its disk or its engine failed.",
    503: "No replica is there to answer; try again in a moment.",
}


def refusal(status: int, shape: type[BaseModel]) -> dict[str, Any]:
    """An OpenAPI response object for error ``status``."""
    return {"description": _WHY[status], "content": {"application/json": {"schema": {"$ref": _REF.format(model=shape.__name__)}}}}


def describe(app: FastAPI, shape: type[BaseModel], *, asks_for_key: Callable[[], bool]) -> None:
    """Add error answers to the OpenAPI document of ``app``. ``shape``: the body of each error.

    They follow from each operation's form: 400 with a query or a body, 404 with a name in its path, 409 if it changes what is
    named, 408, 413 and 429 for the wall's limits, 401 if keys are asked for, 403 and 500 always. A route declares others itself.
    """
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        return _completed(deepcopy(plain()), shape, asks_for_key())

    app.openapi = openapi  # type: ignore[method-assign]


def _completed(document: dict[str, Any], shape: type[BaseModel], asks_for_key: bool) -> dict[str, Any]:
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in _NEVER_SENT:
        schemas.pop(name, None)
    own = shape.model_json_schema(ref_template=_REF)
    schemas |= own.pop("$defs", {}) | {shape.__name__: own}
    if asks_for_key:
        components["securitySchemes"] = {_BEARER: {"type": "http", "scheme": "bearer"}}
        document["security"] = [{_BEARER: []}]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            responses = operation["responses"]
            responses.pop("422", None)
            for status in _refusals(path, method, operation, asks_for_key):
                responses.setdefault(str(status), refusal(status, shape))
    return document


def _refusals(path: str, method: str, operation: dict[str, Any], asks_for_key: bool) -> list[int]:
    names_one = "{" in path
    has_input = "requestBody" in operation or any(one["in"] == "query" for one in operation.get("parameters", ()))
    may = {400: has_input, 401: asks_for_key, 403: True, 404: names_one, 409: names_one and method in ("post", "put", "patch"), 500: True}
    may |= {408: method in ("post", "put", "patch"), 413: method in ("post", "put", "patch"), 429: method == "post"}
    return [status for status, is_so in may.items() if is_so]
