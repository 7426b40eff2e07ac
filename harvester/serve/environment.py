"""Environment variables for Ray, Serve and vLLM, set before Ray is imported."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from pathlib import Path

from harvester.config import ServeConfig
from harvester.errors import ConfigError
from harvester.ports import free_range
from harvester.serve.access.origin import is_loopback
from harvester.serve.ingress import program
from harvester.serve.ingress.front import LAUNCHER, TOLD, Front, haproxy_binary, places, write_launcher
from harvester.serve.processes import MARK
from harvester.serve.runtime import node_folder, runtime_folder
from jobs.storage.folder import StateFolder

EVERYWHERE = "0.0.0.0"
LONGEST_STREAM_S = 3600  # after a reload, the old HAProxy may finish its streams for so long
PORT_REST_S = 600  # before a port of a stopped replica is reused: an old HAProxy may still send to it
LEAVES_S = 2  # a stopping replica accepts requests for so long, until every node's HAProxy knows
CONNECT_S = 2  # to a replica on another node; then another replica is tried
CHECK_S = 2  # between two checks of a replica by each node, of which two in a row must fail
HAPROXY = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
    "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": str(LONGEST_STREAM_S),
    "RAY_SERVE_PORT_QUARANTINE_S": str(PORT_REST_S),
}
PATIENT = {  # with Serve's ingress on a busy machine: by Serve's own times it is killed while it still starts
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "300",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60",
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "2",  # a dead one is missed after three checks
    "RAY_SERVE_HAPROXY_STARTUP_TIMEOUT_S": "300",
}


def haproxy_available() -> bool:
    """Ray ships HAProxy with ``ray[serve]`` on Linux."""
    return sys.platform == "linux" and haproxy_binary() is not None


def use_haproxy(config: ServeConfig) -> bool:
    """Whether to use HAProxy. ``auto`` avoids it on loopback in a joined cluster, because its replicas would listen on the network."""
    if config.ingress == "auto":
        return haproxy_available() and (config.address is None or not is_loopback(config.host))
    return config.ingress == "haproxy"


def replica_host(config: ServeConfig) -> str:
    """Host on which replicas listen. HAProxy listens on ``host``; replicas behind it, where every node's HAProxy reaches them."""
    if not use_haproxy(config):
        return config.host
    if config.address is None:
        return "127.0.0.1"
    return "::" if ":" in config.host else EVERYWHERE


def check_sleep(config: ServeConfig) -> None:
    """Raise `ConfigError` where a model may have no replica and Serve's own proxies are the ingress.

    HAProxy answers 503 meanwhile. Serve's proxies hold a chat until the model is loaded, and any look at the server would load it.
    """
    if config.sleeps and not use_haproxy(config):
        raise ConfigError(
            "replicas.min=0 needs HAProxy before the server, and here Ray Serve's own proxies are the ingress: "
            "set replicas.min to 1 or more, or choose ingress: haproxy (in a joined cluster with a host that others reach)"
        )


def joined_variables(config: ServeConfig) -> dict[str, str]:
    """Environment of every process that runs our code in a joined cluster. ``ingress`` must be settled: not ``auto``.

    Serve's controller has it too, unless Serve ran before. Raises `ConfigError` as `check_sleep`.
    """
    check_sleep(config)
    if not use_haproxy(config):
        return process_variables() | _unless_set(PATIENT)
    folder = node_folder(config.port)
    # The same for every process: each writes the launcher of its node, also one that an earlier configuration has started.
    rules = (program.FLEET, program.ASLEEP)
    times = {
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": str(LEAVES_S),
        "RAY_SERVE_HAPROXY_TIMEOUT_CONNECT_S": str(CONNECT_S),
        "RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER": f"{CHECK_S}s",
    }
    ours = _unless_set(PATIENT | HAPROXY | times)
    told = {TOLD: f"{config.host} {','.join(rules)}", "RAY_SERVE_HAPROXY_BINARY_PATH": str(folder / LAUNCHER)}
    return process_variables() | ours | places(folder) | told


def _unless_set(ours: dict[str, str]) -> dict[str, str]:
    """``ours``, but with the operator's value of each variable that is set."""
    return {name: os.environ.get(name, value) for name, value in ours.items()}


def process_variables() -> dict[str, str]:
    """Environment of every Ray process that runs our code, on any machine."""
    return {
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",  # a chat token is sent from the event loop that made it
        "RAY_SERVE_LOG_TO_STDERR": "0",
        "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1",  # `drain_s` is for healthy replicas; an unhealthy one is replaced at once
        "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",  # Serve's control loop runs less often: its load is noticeable on few cores
        "RAY_USAGE_STATS_ENABLED": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONSAFEPATH": "1",
    }


def node_variables() -> dict[str, str]:
    """Environment that a node's raylet reads when it starts, and Serve's controller there, whoever starts it.

    `harvester env` prints it for nodes that the user starts.
    """
    return PATIENT | {
        "RAY_worker_niceness": "0",  # vLLM would inherit Ray's 15: any client on the same cores would outrank chat
        "RAY_enable_metrics_collection": "0",
        "RAY_task_events_report_interval_ms": "0",
        "RAY_raylet_report_resources_period_milliseconds": "1000",
        "RAY_agent_register_timeout_ms": "300000",
        "RAY_worker_register_timeout_seconds": "300",
    }


def prepare_environment(config: ServeConfig, folder: StateFolder, mark: str) -> None:
    """Set the variables of this process, which Ray's processes inherit. What the user has set already stays."""
    runtime = runtime_folder(folder, mark)
    values = process_variables() | {
        "RAY_ENABLE_AUTO_CONNECT": "0",  # a late call by Serve, after Ray's shutdown, would start another cluster
        "RAY_DEDUP_LOGS": "0",
        "VLLM_RPC_BASE_PATH": str(runtime),
    }
    ours = {MARK: mark}
    if config.address is None and use_haproxy(config):
        values |= _haproxy(runtime, mark)
        ours["RAY_SERVE_HAPROXY_BINARY_PATH"] = str(_launcher(config, runtime))
    if config.address is None:
        values |= node_variables() | {"RAY_health_check_timeout_ms": "60000"}  # the server itself watches its only node
        ours |= _own_cluster(runtime)
    elif token_from() is not None:
        values["RAY_AUTH_MODE"] = "token"  # the default of `ray start`; without it, that cluster does not answer
    for name, value in values.items():
        os.environ.setdefault(name, value)
    os.environ.update(ours)


def token_from() -> str | None:
    """Where Ray would read a cluster's token: the name of a variable, or a path. None: there is no token, and we connect without."""
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        if os.environ.get(name):
            return name
    path = Path.home() / ".ray" / "auth_token"
    return str(path) if path.exists() else None


def asked_with() -> str:
    """How this process authenticates to the cluster that it joins, for an error message."""
    mode, source = os.environ.get("RAY_AUTH_MODE", "disabled"), token_from()
    if mode != "token":
        return "asked without a token (RAY_AUTH_MODE=disabled)"
    return (
        f"asked with RAY_AUTH_MODE=token and the token of {source}" if source else "asked with RAY_AUTH_MODE=token, but there is no token"
    )


def _haproxy(folder: Path, mark: str) -> dict[str, str]:
    """HAProxy's variables in our own cluster: sockets in ``folder``, free ports, no cut streams.

    Replicas get the ports of the free range except the last, which Serve's own proxy gets. Nothing is sent to that one.
    """
    *replicas, fallback = free_range(int(mark, 16))
    return (
        HAPROXY
        | places(folder)
        | {
            "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(fallback),
            "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0",
            "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(replicas[0]),
            "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(replicas[-1]),
        }
    )


def front_of(config: ServeConfig, folder: StateFolder, mark: str) -> Front | None:
    """Holder of the server's port if HAProxy is its ingress. None with Serve's own proxy, or in a joined cluster."""
    if config.address is not None or not use_haproxy(config):
        return None
    runtime = runtime_folder(folder, mark)
    return Front(runtime, _launcher(config, runtime), config.host, config.port, {MARK: mark})


def _launcher(config: ServeConfig, runtime: Path) -> Path:
    """Write the program that Ray Serve starts as HAProxy (`harvester.serve.ingress.program`). Raises `ConfigError` without HAProxy."""
    binary = haproxy_binary()
    if binary is None:
        raise ConfigError("ingress haproxy needs HAProxy, which is not installed; install ray[serve], or set ingress: proxy")
    return write_launcher(runtime, binary, config.host, program.ASLEEP if config.sleeps else "")


def _own_cluster(runtime: Path) -> dict[str, str]:
    """Ray's variables in our own cluster: loopback only, a token of this server's own, and long timeouts for a busy machine."""
    tables = runtime / "gcs"
    shutil.rmtree(tables, ignore_errors=True)
    tables.mkdir(mode=0o700)
    return {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's default on these two; its only effect is the address of a node
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_gcs_storage": "rocksdb",  # the GCS that replaces a dead one continues with its tables
        "RAY_gcs_storage_path": str(tables),
        "RAY_gcs_rpc_server_reconnect_timeout_s": "300",
    }
