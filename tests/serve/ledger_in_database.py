"""The ledger's actor over a database, in a process of its own: killed, cut off from the database, and taken over from. Prints what came."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import ray

from harvester.errors import OwnerError, ReopenError, StorageError
from harvester.serve.deployments.actor import LedgerActor, start_ledger
from harvester.serve.deployments.ledger_host import LedgerSettings
from harvester.serve.machine.node import NAMESPACE
from jobs.ledger.ledger import Ledger
from jobs.ledger.store.place import Place, PostgresPlace
from jobs.spec import Lease, PartStats
from jobs.testing import scripted_plan

NAME = "ledger-test"
WAIT_S = 120.0


def tell(**found: Any) -> None:
    print(json.dumps(found), flush=True)
    sys.stdin.readline()


async def lease(client: LedgerActor) -> Lease:
    found = await client.lease("a", "scripted")
    assert found is not None
    return found


async def commit(client: LedgerActor, held: Lease) -> bool:
    return await client.commit(held.lease_id, held.job.id, held.slice.slice_id, PartStats(rows_ok=3))


def start_error(state: Path, place: Place, lease_s: float, wait_s: float) -> str | None:
    """Why the ledger does not start, after tries for ``wait_s``; None once it does."""
    end_s = time.monotonic() + wait_s
    while True:
        try:
            start_ledger(NAME, LedgerSettings(state=state, place=place, lease_s=lease_s))()
        except StorageError as error:
            if time.monotonic() >= end_s:
                return error.message
            time.sleep(1.0)
        else:
            return None


async def main(url: str, state: Path) -> None:
    ray.init(address="local", num_cpus=1, namespace=NAMESPACE, log_to_driver=False, include_dashboard=False)
    place = PostgresPlace(url, "folder-1")
    start_ledger(NAME, LedgerSettings(state=state, place=place, lease_s=600.0))()
    client = LedgerActor(NAME)
    await client.submit(scripted_plan("docs-1", 18, 3), new=True)
    first = await lease(client)
    ray.kill(ray.get_actor(NAME, namespace=NAMESPACE), no_restart=False)
    tell(after_kill=await commit(client, first))
    second = await lease(client)
    tell(restart=True)
    try:
        await commit(client, second)
        tell(broken=None)
    except ReopenError as error:
        tell(broken=error.message)
    tell(after_restart=await commit(client, second), rows_ok=(await client.show("docs-1")).rows_ok)
    third = await lease(client)
    for lease_s in (600.0, 900.0):  # as before, and by another configuration
        start_ledger(NAME, LedgerSettings(state=state, place=place, lease_s=lease_s))()
    fourth = await lease(client)
    tell(other=await commit(client, third), lasts=fourth.expires_at_s - time.time() > 700.0)
    tell(away=start_error(state, place, 1200.0, 0.0))
    tell(error=start_error(state, place, 1200.0, WAIT_S), held=await commit(client, fourth))
    Ledger(place, state / "jobs", lease_s=600.0, now_s=0.0, new_server=False)
    told = []
    for _ in range(2):
        try:
            await lease(client)
        except OwnerError as error:
            told.append(error.message)
    tell(taken_over=told)
    ray.shutdown()


os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
