"""Passes a caller's identity from the wall to the routes behind it, in the ASGI scope."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends
from starlette.requests import Request
from starlette.types import Scope

from harvester.serve.access.identity import Identity

_SCOPE_KEY = "harvester.identity"


def remember(scope: Scope, identity: Identity) -> None:
    scope[_SCOPE_KEY] = identity


def identity_of(request: Request) -> Identity:
    """The caller's identity, as the wall has found it. For use as a dependency of FastAPI."""
    found = request.scope[_SCOPE_KEY]
    assert isinstance(found, Identity)
    return found


Who = Annotated[Identity, Depends(identity_of)]  # as a parameter of a route
