"""End what a dead server left in a Ray cluster that it had joined."""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path

from connectors.edge import MAX_TOLD, first_line
from harvester.errors import EngineError
from harvester.serve.environment import token_from
from jobs.storage.folder import StateFolder

LEAVE_S = 60.0  # for the applications of a dead server to end
STILL_ENDING = 3  # exit code of the process that ends them: some are left


def end_joined(address: str, state_dir: Path) -> None:
    """End what a dead server left in the cluster at ``address``. Raises `EngineError`, also if some of it still ends."""
    folder = StateFolder(state_dir.absolute())
    with folder.locked():
        context = multiprocessing.get_context("spawn")
        ours, its = context.Pipe(duplex=False)
        session = context.Process(target=_end_joined, args=(address, folder.root, its))
        session.start()
        session.join()
        if session.exitcode == STILL_ENDING:
            raise EngineError(
                f"applications in the Ray cluster at {address} have not ended after {LEAVE_S:.0f} s, as open chats may take `drain_s`; "
                "harvester stop again ends what is left"
            )
        if session.exitcode != 0:
            reason = f": {ours.recv()}" if ours.poll() else ""
            raise EngineError(
                f"the applications in the Ray cluster at {address} could not be ended{reason}; end them there with: serve shutdown; "
                f"if that cluster is gone for good, remove {folder.cluster}"
            )
        folder.cluster.unlink(missing_ok=True)
        folder.server.unlink(missing_ok=True)  # of a dead server; those of earlier versions name the cluster


def _end_joined(address: str, root: Path, told: Connection) -> None:
    """Runs in a process of its own, because Ray may end it, and because it sets variables that the caller should not have."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if token_from() is not None:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    import ray

    from harvester.serve.applications import leave
    from harvester.serve.deployments.actor import ledger_name
    from harvester.serve.machine.joined import join
    from harvester.serve.machine.node import NAMESPACE

    logging.getLogger("ray").setLevel(logging.CRITICAL)
    try:
        join(address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.CRITICAL)
        ending = leave(ledger_name(root), LEAVE_S, threading.Event())
    except Exception as error:  # of Ray, of many kinds
        told.send(first_line(error)[:MAX_TOLD])
        sys.exit(1)
    ray.shutdown()
    if ending:
        sys.exit(STILL_ENDING)
