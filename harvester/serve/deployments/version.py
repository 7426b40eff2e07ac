"""Version deployments by their arguments, so that Serve leaves the replicas of an unchanged one alone."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, is_dataclass
from typing import Any

from pydantic import BaseModel
from ray import serve

from harvester.core import build

IN_PLACE = {"replicas", "drain_s"}  # Serve changes these without another process


def bound(deployment: Any, *given: Any, beside: tuple[Any, ...] = (), read: Any = None) -> serve.Application:
    """Bind ``given`` and ``beside`` to the deployment's constructor. Deployed again, it keeps its processes while its version is the same.

    The version is a digest of ``given`` and ``read``, so a change of ``beside`` replaces no process. ``read``: what the processes read of
    the settings `IN_PLACE`. Without a version of ours, Serve would replace all processes each time.
    """
    version = digest_of(*given, read)
    application: serve.Application = deployment.options(_internal=True, version=version).bind(*given, *beside)
    return application


def digest_of(*given: Any) -> str:
    """Digest of harvester's build and of arguments that are JSON values, Pydantic models or dataclasses."""
    told = json.dumps([build(), *map(_comparable, given)], sort_keys=True, default=str)
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def attempt_at(version: str, deployed: str | None, *, has_failed: bool) -> str:
    """The version to deploy. ``deployed``: that of the running deployment, which stays as it is if it is an attempt at ``version``.

    If that has failed, another attempt: with the same version, Serve would never start another replica.
    """
    of, _, number = (deployed or "").partition(".")
    if of != version:
        return version
    return f"{version}.{int(number or 1) + 1}" if has_failed else f"{deployed}"


def _comparable(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return {name: _comparable(getattr(value, name)) for name in type(value).model_fields if name not in IN_PLACE}
    if isinstance(value, dict):
        return {name: _comparable(one) for name, one in value.items()}
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
