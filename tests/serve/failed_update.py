"""A rolling update that Serve gives up, and other attempts at it, in a process of its own. Prints what came."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.serve.config import ProxyLocation

from harvester.serve.applications import has_failed, is_answering
from harvester.serve.deployments.seam import next_attempt
from harvester.serve.deployments.version import bound
from harvester.serve.machine.node import NAMESPACE, ports_of_agents
from harvester.timers import patient_children

APP = "chat"
WAIT_S = 300.0


class Replica:
    def __init__(self, release: str, broken: str) -> None:
        if release == "new" and Path(broken).exists():
            raise RuntimeError("its storage is away")

    def __call__(self) -> int:
        return os.getpid()


def deploy(release: str, broken: Path) -> None:
    """As `harvester.serve.cluster.Cluster` does it, but with one try for each deployment."""
    app = bound(serve.deployment(name="replica", max_constructor_retry_count=1)(Replica), release, str(broken))
    found = serve.status().applications
    if APP in found:
        app = next_attempt(app, APP, has_failed=has_failed(found[APP], found=True))
    serve.run_many([serve.RunTarget(app, name=APP, route_prefix=None)], wait_for_applications_running=False)


def wait_until(condition: Callable[[Any], bool]) -> None:
    end_s = time.monotonic() + WAIT_S
    while not condition(app := serve.status().applications[APP]):
        assert time.monotonic() < end_s, app
        time.sleep(0.2)


def answered() -> int:
    wait_until(lambda app: is_answering(app, found=False))
    return int(serve.get_app_handle(APP).remote().result())


def main(broken: Path) -> None:
    with patient_children(), ports_of_agents():
        ray.init(address="local", num_cpus=2, namespace=NAMESPACE, log_to_driver=False, include_dashboard=False)
    serve.start(proxy_location=ProxyLocation.Disabled)
    deploy("old", broken)
    old = answered()
    broken.touch()
    for _ in range(2):
        deploy("new", broken)
        wait_until(lambda app: has_failed(app, found=True))
    broken.unlink()
    deploy("new", broken)
    new = answered()
    deploy("new", broken)
    print(json.dumps({"is_new": new != old, "stays": answered() == new}), flush=True)
    ray.shutdown()


os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
main(Path(sys.argv[1]))
