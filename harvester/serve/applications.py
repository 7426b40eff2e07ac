"""Our applications on Ray Serve: which of them run, and their end."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from contextlib import suppress
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from harvester.serve.deployments.actor import NAMESPACE, ledgers
from harvester.serve.deployments.openai_app import PREFIXES as OPENAI_PREFIXES
from harvester.serve.deployments.scale.replicas import CHAT_APP, FURTHER

JOBS_APP = "jobs"
PREFIXES = {JOBS_APP: "/api", **OPENAI_PREFIXES}  # of the applications other than the models'
LOOK_S = 0.1


def ours(status: Any) -> list[str]:
    """Names of the applications that belong to a harvester server, by Serve's status."""
    return [name for name in status.applications if name in (CHAT_APP, *PREFIXES) or name.startswith(FURTHER)]


def are_anothers(running: Collection[str], ledger: str, found: Collection[str]) -> bool:
    """Whether the running applications belong to another state folder. ``ledger``: ours; ``found``: the ledgers of the cluster.

    Without any ledger they are taken for ours: a ledger whose database was away at its first start is not there.
    """
    return bool(running) and bool(found) and ledger not in found


def leave(ledger: str, wait_s: float, hurry: threading.Event) -> None:
    """End the applications and the ledger of a joined cluster, unless they belong to another state folder; the cluster stays.

    Waits up to ``wait_s`` or until ``hurry`` is set; Serve then ends what is left, as open chats, by itself.
    """
    with suppress(RayServeException, RayError):  # where Serve is not there
        names = ours(serve.status())
        if are_anothers(names, ledger, ledgers()):
            return
        for name in names:
            serve.delete(name, _blocking=False)
        end_s = time.monotonic() + wait_s
        while (left := serve.status().applications.keys()) & names and time.monotonic() < end_s and not hurry.wait(LOOK_S):
            pass
        if not left:  # else its ports stay open
            serve.shutdown()
    with suppress(ValueError):
        ray.kill(ray.get_actor(ledger, namespace=NAMESPACE))
