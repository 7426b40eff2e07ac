"""The ledger as a named, restartable Ray actor, and its client for replicas and the jobs application."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
from ray.util import list_named_actors

from harvester.errors import StorageError
from harvester.serve.deployments.ledger_host import LedgerHost, LedgerSettings
from harvester.serve.deployments.version import digest_of
from harvester.serve.machine.node import NAMESPACE
from harvester.serve.processes import mark_of
from jobs.run.client import TIMED, LedgerCalls
from jobs.spec import JobPlan, JobView

log = logging.getLogger("harvester.ledger")

_PREFIX = "ledger-"
OPEN_WAIT_S = 300.0
TOLD_S = 30.0  # timeout for asking a ledger what it was started with, and for its end


def ledger_name(state: Path) -> str:
    """Name of the ledger's actor, in `NAMESPACE`."""
    return f"{_PREFIX}{mark_of(state)}"


def ledgers() -> list[str]:
    """Names of all ledgers in the cluster, of whichever state folder."""
    found: list[dict[str, str]] = list_named_actors(all_namespaces=True)
    return [one["name"] for one in found if one["namespace"] == NAMESPACE and one["name"].startswith(_PREFIX)]


def has_ledger(name: str) -> bool:
    """Whether the cluster has the ledger of that name (`ledger_name`), whoever started it."""
    with suppress(ValueError):
        ray.get_actor(name, namespace=NAMESPACE)
        return True
    return False


def end_other_ledgers(own: str) -> None:
    """End what a stop of another state folder's server has left for its chats. Call it where no application of another server runs.

    With two ledgers nobody could say whose the applications are.
    """
    for name in ledgers():
        if name != own:
            with suppress(ValueError):  # it has gone
                ray.kill(ray.get_actor(name, namespace=NAMESPACE))


def start_ledger(name: str, settings: LedgerSettings, options: dict[str, Any] | None = None) -> Callable[[], None]:
    """Start the ledger's actor, unless the cluster runs it already, with the same settings and options and of this version.

    ``options``: Ray's, for its placement. A ledger that was started with others, as on a head that has gone since, is replaced.

    Returns a function that waits until the ledger is open, and raises the ledger's own error.
    """
    digest = digest_of(settings, options)
    ended = _ended_other(name, digest)
    actor: Any = ray.remote(num_cpus=0, max_restarts=-1)(LedgerHost)
    handle: Any = actor.options(name=name, namespace=NAMESPACE, lifetime="detached", get_if_exists=True, **(options or {})).remote(
        settings, digest, takes_over=ended
    )
    opened = handle.call.remote("expire", ())
    return lambda: _cause_of(lambda: ray.get(opened, timeout=OPEN_WAIT_S))


def _ended_other(name: str, digest: str) -> bool:
    """End a ledger of that name that was started with other settings, or cannot tell. Returns whether there was one.

    Raises `StorageError` where it does not end.
    """
    if not has_ledger(name):
        return False
    handle: Any = ray.get_actor(name, namespace=NAMESPACE)
    with suppress(AttributeError, RayActorError, RayTaskError, GetTimeoutError):  # of an earlier version, failed or silent
        found: Any = ray.get(handle.digest.remote(), timeout=TOLD_S)
        if found == digest:
            return False
    log.warning("ledger_replaced name=%s", name)
    ray.kill(handle, no_restart=True)
    deadline_s = time.monotonic() + TOLD_S
    while has_ledger(name):
        if time.monotonic() > deadline_s:
            raise StorageError("the ledger of an earlier configuration does not end; stop the cluster's applications and start again")
        time.sleep(0.1)
    return True


def _cause_of(work: Any) -> Any:
    try:
        return work()
    except RayTaskError as error:
        raise (error.cause or error) from None
    except RayActorError as error:
        raise StorageError(f"the ledger did not start: {str(error).splitlines()[-1]}") from error


class LedgerActor(LedgerCalls):
    """The calls of the ledger through Ray. Waits up to ``patience_s`` while the actor restarts."""

    def __init__(self, name: str, patience_s: float = 60.0) -> None:
        self._name = name
        self._patience_s = patience_s
        self._handle: Any = None

    async def _call(self, method: str, *args: Any) -> Any:
        is_timed = method in TIMED  # read by a ledger of an earlier build
        return await self._reach(lambda handle: handle.call.remote(method, args, is_timed))

    async def _reach(self, call: Any) -> Any:
        deadline_s = time.monotonic() + self._patience_s
        while True:
            try:
                if self._handle is None:  # in a thread: while Ray's GCS is away it blocks for a minute
                    self._handle = await asyncio.to_thread(ray.get_actor, self._name, namespace=NAMESPACE)
                return await call(self._handle)
            except RayTaskError as error:
                raise (error.cause or error) from None
            except (RayActorError, GetTimeoutError, ValueError) as error:  # ValueError: no actor of that name now
                self._handle = None
                if time.monotonic() > deadline_s:
                    raise StorageError("the ledger does not answer; stop the server and start it again") from error
                await asyncio.sleep(0.3)

    async def submit(self, plan: JobPlan, *, new: bool) -> tuple[JobView, bool]:
        view, created = await self._reach(lambda handle: handle.submit.remote(plan, new))
        return view, bool(created)
