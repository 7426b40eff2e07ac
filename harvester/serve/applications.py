"""Our applications on Ray Serve: which of them run, and whose they are."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from harvester.serve.deployments.openai_app import PREFIXES as OPENAI_PREFIXES
from harvester.serve.deployments.scale.replicas import CHAT_APP, FURTHER

JOBS_APP = "jobs"
PREFIXES = {JOBS_APP: "/api", **OPENAI_PREFIXES}  # of the applications other than the models'


def ours(status: Any) -> list[str]:
    """Names of the applications that belong to a harvester server, by Serve's status."""
    return [name for name in status.applications if name in (CHAT_APP, *PREFIXES) or name.startswith(FURTHER)]


def are_anothers(running: Collection[str], ledger: str, found: Collection[str]) -> bool:
    """Whether the running applications belong to another state folder. ``ledger``: ours; ``found``: the ledgers of the cluster.

    Without any ledger they are taken for ours: a ledger whose database was away at its first start is not there.
    """
    return bool(running) and bool(found) and ledger not in found
