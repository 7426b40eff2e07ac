"""Ingress of a joined cluster: which one its Serve runs, and what each process of a deployment sets up on its node."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Literal

import ray
from ray.util import list_named_actors

from harvester.errors import EngineError
from harvester.serve.environment import asked_with
from harvester.serve.ingress.front import TOLD, forget_nodes, haproxy_here, write_launcher
from harvester.serve.reach import Reach, unreached
from harvester.serve.runtime import held, make_node_folder
from harvester.timers import patient_children

SETUP = f"{__name__}.prepare"
_SERVE = "serve"  # Ray namespace of Serve's actors
_PROXY = "SERVE_PROXY_ACTOR"
_OF_HAPROXY = "get_target_groups"  # a method that only HAProxy's manager has
HEAD_S = 10.0  # for the head to accept a connection: Ray itself would wait for minutes
LOOK_S = 0.2
_VERSIONS = re.compile(r"Ray: (\S+)\s+Python: (\S+)")
_for_life = ExitStack()


def join(address: str, **options: Any) -> None:
    """Connect to the cluster with Ray's ``options``. Raises `EngineError` if none answers there, or one of other versions."""
    try:
        if address != "auto":
            _meet(address)
        with patient_children():
            ray.init(address=address, **options)
    except ConnectionError as error:
        raise EngineError(
            f"no Ray cluster answers at {address}, or it takes another token: {asked_with()}; "
            "give it the token of the head's ~/.ray/auth_token as RAY_AUTH_TOKEN, or start a cluster with: ray start --head"
        ) from error
    except RuntimeError as error:
        versions = _VERSIONS.findall(str(error))  # the cluster's, then ours
        if len(versions) != 2:
            raise
        there, here = (f"Ray {of_ray} on Python {of_python}" for of_ray, of_python in versions)
        raise EngineError(f"the Ray cluster at {address} runs {there}, this machine {here}; install the cluster's versions here") from error


def _meet(address: str) -> None:
    """Wait until somebody accepts a connection at ``address``. Raises `ConnectionError` after `HEAD_S`."""
    host, _, port = address.rpartition(":")
    end_s = time.monotonic() + HEAD_S
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=HEAD_S).close()
        except OSError as error:
            if time.monotonic() > end_s:
                raise ConnectionError(str(error)) from error
            time.sleep(LOOK_S)
        else:
            return


def ingress_there() -> Literal["haproxy", "proxy"] | None:
    """Ingress of the Serve that runs in the cluster; None if none runs."""
    names = [actor["name"] for actor in list_named_actors(all_namespaces=True) if actor["namespace"] == _SERVE]
    proxies: list[Any] = []
    for name in names:
        if name.startswith(_PROXY):
            with suppress(ValueError):  # it has gone
                proxies.append(ray.get_actor(name, namespace=_SERVE))
    if any(hasattr(one, _OF_HAPROXY) for one in proxies):  # the head has a proxy of Serve's beside it
        return "haproxy"
    return "proxy" if proxies else None


def wait_elsewhere(nodes: Collection[str], port: int, paths: tuple[str, ...], is_over: Callable[[], bool]) -> list[str]:
    """Wait a while until ``port`` of every machine leads to each of ``paths``. Returns names and addresses of those where it does not.

    ``nodes``: Ray's ids. ``is_over``: whether to wait no longer.
    """
    found = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
    ports = {}
    for node in (found[one] for one in nodes if one in found):
        address = node["NodeManagerAddress"]
        ports[f"{node['NodeManagerHostname']} ({address})"] = Reach(address, port, paths)
    return unreached(ports, is_over)


def prepare() -> None:
    """Write the launcher on this node that Serve's manager of HAProxy starts. Raises `StorageError` if another user has its folder."""
    told, haproxy = os.environ.get(TOLD), haproxy_here()
    if told is None or haproxy is None:
        return
    host, _, rules = told.partition(" ")
    folder = Path(os.environ["RAY_SERVE_HAPROXY_BINARY_PATH"]).parent
    make_node_folder(folder)
    _for_life.enter_context(held(folder))
    forget_nodes(folder, ray.get_runtime_context().get_node_id())
    write_launcher(folder, haproxy, host, rules)
