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

import psutil
import ray
from ray.util import list_named_actors

from harvester.config import ServeConfig
from harvester.errors import ConfigError, EngineError
from harvester.serve.access.origin import is_loopback
from harvester.serve.environment import EVERYWHERE, asked_with
from harvester.serve.ingress.front import TOLD, forget_nodes, haproxy_here, write_launcher
from harvester.serve.reach import Reach, unreached
from harvester.serve.runtime import held, make_node_folder
from harvester.timers import patient_children

SETUP = f"{__name__}.prepare"
_SERVE = "serve"  # Ray namespace of Serve's actors
_PROXY = "SERVE_PROXY_ACTOR"
_OF_HAPROXY = "get_target_groups"  # a method that only HAProxy's manager has
HEAD_S = 10.0  # for the head to accept a connection: Ray itself would wait for minutes
START_S = 120.0  # for the head of a server that starts with it, as beside a head of KubeRay's
ANSWER_S = 2.0
LOOK_S = 0.2
_SOCKET = "--raylet_socket_name="  # argument of a Ray node's raylet
_VERSIONS = re.compile(r"Ray: (\S+)\s+Python: (\S+)")
_for_life = ExitStack()


def join(address: str, **options: Any) -> None:
    """Connect to the cluster with Ray's ``options``. Raises `EngineError` if none answers there, or one of other versions.

    Raises it too where the sockets of this machine's node are out of reach: Ray itself would end the process without a word.
    """
    try:
        if address != "auto":
            _meet(address)
        _check_sockets()
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


def await_head(address: str | None, is_over: Callable[[], bool], tell: Callable[[str], None]) -> None:
    """Wait until the head accepts a connection, ``is_over()``, or `START_S` have passed: `join` then says what is wrong.

    ``address``: None or ``auto`` is not waited for. ``tell`` receives what is waited for, if it is not there at once.
    """
    if address in (None, "auto"):
        return
    end_s, is_told = time.monotonic() + START_S, False
    while not is_over() and _fault(address, ANSWER_S) is not None and time.monotonic() < end_s:
        if not is_told:
            tell(f"the head of the Ray cluster at {address}")
            is_told = True
        time.sleep(LOOK_S)


def _meet(address: str) -> None:
    """Wait until somebody accepts a connection at ``address``. Raises `ConnectionError` after `HEAD_S`."""
    end_s = time.monotonic() + HEAD_S
    while (fault := _fault(address, HEAD_S)) is not None:
        if time.monotonic() > end_s:
            raise ConnectionError(str(fault)) from fault
        time.sleep(LOOK_S)


def _check_sockets() -> None:
    """Wait until a socket of a Ray node that runs here, if one does, can be opened. Raises `EngineError` after `HEAD_S`."""
    end_s = time.monotonic() + HEAD_S
    while (hidden := _hidden_socket()) is not None:
        if time.monotonic() > end_s:
            raise EngineError(
                f"the socket of this machine's Ray node, {hidden}, cannot be opened; run harvester serve as the user of ray start, "
                "and in the same /tmp: a systemd unit must not have PrivateTmp"
            )
        time.sleep(LOOK_S)


def _hidden_socket() -> str | None:
    """A socket of a Ray node that runs here, where this process can open none; None where it can, or none runs."""
    found = _sockets()
    return None if any(os.access(path, os.W_OK) for path in found) else next(iter(found), None)


def _sockets() -> list[str]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            found += [word.removeprefix(_SOCKET) for word in process.cmdline() if word.startswith(_SOCKET)]
    return found


def _fault(address: str, timeout_s: float) -> OSError | None:
    """Why nobody accepts a connection at ``address``; None: somebody does."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s).close()
    except OSError as error:
        return error
    return None


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


def check_listens(config: ServeConfig, host: str | None, port: int) -> None:
    """``host``, ``port``: where Serve listens in the cluster. Raises `ConfigError` if the configuration says otherwise."""
    if port != config.port:
        raise ConfigError(
            f"Ray Serve listens on port {port} in the cluster at {config.address}, not on {config.port}; "
            f"give --port {port}, or end Serve there first: serve shutdown"
        )
    if is_loopback(config.host) and not is_loopback(host or EVERYWHERE):
        raise ConfigError(
            f"Ray Serve listens on {host} in the cluster at {config.address}, not on {config.host} alone; "
            f"give --host {host}, or end Serve there first: serve shutdown"
        )


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
