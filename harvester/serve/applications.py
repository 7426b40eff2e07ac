"""Our applications on Ray Serve: which of them run, whether they answer, why one does not, and their end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ApplicationStatus

from harvester.errors import EngineError
from harvester.serve.deployments.actor import ledgers
from harvester.serve.deployments.openai_app import PREFIXES as OPENAI_PREFIXES
from harvester.serve.deployments.scale.replicas import CHAT_APP, FURTHER
from harvester.serve.deployments.scale.scaling import REPLICA
from harvester.serve.machine.node import NAMESPACE
from harvester.serve.machine.nodes import ELSEWHERE, root_cause

JOBS_APP = "jobs"
PREFIXES = {JOBS_APP: "/api", **OPENAI_PREFIXES}  # of the applications other than the models'
DEPLOYMENTS = {REPLICA, *PREFIXES}  # names of ours, in any application
COMING = ("STARTING", "UPDATING", "RECOVERING")  # states of a replica that Serve is about to run
LOOK_S = 0.1


def ours(status: Any) -> list[str]:
    """Names of the applications that belong to a harvester server, by Serve's status."""
    return [name for name, app in status.applications.items() if _is_ours(name, app.deployments)]


def _is_ours(name: str, deployments: Collection[str]) -> bool:
    """By its name and those of its deployments; of an application that begins or ends Serve tells none."""
    is_named = name in (CHAT_APP, *PREFIXES) or name.startswith(FURTHER)
    return is_named and (not deployments or not DEPLOYMENTS.isdisjoint(deployments))


def in_the_way(found: Mapping[str, Any], routes: Mapping[str, str]) -> str | None:
    """Name and route of an application that is not a harvester server's, but has the name or the route of one that is to be deployed.

    ``found``: Serve's details by name. ``routes``: of those to be deployed, by name.
    """
    for name, app in found.items():
        route = app["route_prefix"]
        if not _is_ours(name, app["deployments"]) and (name in routes or route in routes.values()):
            return f"{name} at {route}"
    return None


def are_anothers(running: Collection[str], ledger: str, found: Collection[str]) -> bool:
    """Whether the running applications belong to another state folder. ``ledger``: ours; ``found``: the ledgers of the cluster.

    Without any ledger they are taken for ours: a ledger whose database was away at its first start is not there.
    """
    return bool(running) and bool(found) and ledger not in found


def running_replicas(app: Any) -> int:
    """Number of running replicas of the application's deployment that has the fewest."""
    return min((int(one.replica_states.get("RUNNING", 0)) for one in app.deployments.values()), default=0)


def is_answering(app: Any, *, found: bool) -> bool:
    """Whether it answers. ``found``: it ran before this server; then one replica is enough, as the machine of another may be away for long.

    Serve calls it unhealthy until all replicas run.
    """
    is_short = app.status == ApplicationStatus.UNHEALTHY and running_replicas(app) > 0
    return app.status == ApplicationStatus.RUNNING or (found and is_short)


def has_failed(app: Any, *, found: bool) -> bool:
    """Whether it is of no use to wait. ``found``: it ran before this server; then Serve replaces replicas that fail, until it gives up."""
    if not found:
        return app.status in (ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.UNHEALTHY)
    is_tried = any(one.replica_states.get(state, 0) for one in app.deployments.values() for state in COMING)
    return app.status == ApplicationStatus.DEPLOY_FAILED and not is_tried


def raise_if_failed(apps: Mapping[str, Any], found: Collection[str]) -> None:
    """Raise `EngineError` with the replica's own reason if one of ``apps`` has failed. ``found``: names of those that ran before."""
    for name, app in apps.items():
        if has_failed(app, found=name in found):
            raise EngineError(_with_cause(_reason(app)))


def tell_of_tries(apps: Mapping[str, Any], warn: Callable[[str], None], told: set[str]) -> None:
    """Warn of each of ``apps`` that has no replica while Serve goes on trying, once for each reason. ``told``: what was told before."""
    for name, app in apps.items():
        if app.status in (ApplicationStatus.UNHEALTHY, ApplicationStatus.DEPLOY_FAILED) and not running_replicas(app):
            reason = _reason(app)
            if (key := f"{name}: {reason}") not in told:
                told.add(key)
                warn(f"{name} has no replica; Serve tries again: {_with_cause(reason)}")


def _with_cause(reason: str) -> str:
    """``reason``; where it refers to a root cause in a log, with that of the nodes' logs."""
    if ELSEWHERE not in reason:
        return reason
    cause = root_cause()
    found = f"Cause: {cause}" if cause else "See logs/ray in the state folder"
    return f"{reason.split(' See root cause')[0]} {found}"


def _reason(app: Any) -> str:
    """The line of Serve's status with the reason of a failed deployment."""
    texts = [deployment.message for deployment in app.deployments.values() if deployment.message] + [app.message]
    for text in texts:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        for line in reversed(lines):
            if "EngineError" in line or "ConfigError" in line or "Error:" in line:
                return str(line.split("Error: ", 1)[-1])
    return str(texts[-1].splitlines()[-1]) if texts and texts[-1] else "a replica did not start"


def leave(ledger: str, wait_s: float, hurry: threading.Event) -> list[str]:
    """End the applications and the ledger of a joined cluster, unless they belong to another state folder; the cluster stays.

    Waits up to ``wait_s`` or until ``hurry`` is set. Returns the names of those that still end: Serve goes on with that by itself, but
    keeps its ports until this is called again. So does the ledger, which the chats that go on tell their usage.
    """
    ending: list[str] = []
    with suppress(RayServeException, RayError):  # where Serve is not there
        names = ours(serve.status())
        if are_anothers(names, ledger, ledgers()):
            return []
        for name in names:
            serve.delete(name, _blocking=False)
        end_s = time.monotonic() + wait_s
        while (left := serve.status().applications.keys()) & names and time.monotonic() < end_s and not hurry.wait(LOOK_S):
            pass
        ending = sorted(left & set(names))
        if not left:  # with a chat open, Serve would end for long, and silently ignore what another server deploys meanwhile
            serve.shutdown()
    if not ending:
        with suppress(ValueError):
            ray.kill(ray.get_actor(ledger, namespace=NAMESPACE))
    return ending
