"""Passes a caller's identity, and whether it still holds, from the wall to the routes behind it, in the ASGI scope."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import Depends
from starlette.requests import Request
from starlette.types import Scope

from harvester.serve.access.identity import Identity

_SCOPE_KEY = "harvester.identity"
_STILL_KEY = "harvester.is_known"


def remember(scope: Scope, identity: Identity, is_known: Callable[[], bool]) -> None:
    """``is_known``: whether the caller would be let in now. Its key may be revoked or expire while an answer goes on."""
    scope[_SCOPE_KEY], scope[_STILL_KEY] = identity, is_known


def identity_of(request: Request) -> Identity:
    """The caller's identity, as the wall has found it. For use as a dependency of FastAPI."""
    found = request.scope[_SCOPE_KEY]
    assert isinstance(found, Identity)
    return found


def is_known(request: Request) -> bool:
    """Whether the caller of ``request`` would be let in now."""
    return bool(request.scope[_STILL_KEY]())


Who = Annotated[Identity, Depends(identity_of)]  # as a parameter of a route
