"""Validation of requests that ends at the first wrong item of a list: it runs on the event loop of every chat.

pydantic validates the whole list and describes each wrong item by every form that it might have had: for 2,000 empty objects as ``input``
of `/v1/responses` that is half a million descriptions, which take five seconds.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic_core import SchemaValidator

_LISTS = frozenset({"list", "set", "frozenset", "tuple"})  # kinds of schema that can stop at the first error


def stop_at_first_error(app: FastAPI) -> None:
    """Have every route of ``app``, and every model that one validates, stop at the first wrong item. What is right stays the same."""
    for route in app.routes:
        if not isinstance(route, APIRoute):
            continue
        for field in route.dependant.body_params:
            adapter, model = field._type_adapter, field.field_info.annotation
            adapter.validator = _stopping(adapter.core_schema)
            if isinstance(model, type) and issubclass(model, BaseModel):  # the rows of a job are validated without a route
                model.__pydantic_validator__ = _stopping(model.__pydantic_core_schema__)


def _stopping(schema: Any) -> SchemaValidator:
    left, seen = [schema], set[int]()
    while left:
        node = left.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, dict):
            kind = node.get("type")
            if isinstance(kind, str) and kind in _LISTS:
                node["fail_fast"] = True
            left += node.values()
        elif isinstance(node, list | tuple):
            left += node
    return SchemaValidator(schema, _use_prebuilt=False)
