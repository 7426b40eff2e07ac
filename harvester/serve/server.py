"""`harvester serve`: check what can be checked, serve until a signal, leave nothing behind."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from connectors.durable import publish
from harvester.config import ServeConfig
from harvester.engine.launch.models import ModelChoice
from harvester.logs import write_logs
from harvester.serve.access.gate import check_listening, requiring_keys_if_any
from harvester.serve.access.origin import is_loopback
from harvester.serve.environment import check_sleep, front_of
from harvester.serve.ingress.front import Front
from harvester.serve.machine.device import device_of
from harvester.serve.machine.port import check_port
from harvester.serve.notify import notify
from harvester.serve.processes import mark_of, numbering, stop_marked
from harvester.serve.reach import url_here
from harvester.serve.runtime import clear, held, runtime_folder
from harvester.serve.session import Deployment
from harvester.serve.supervisor import OnEvent, Supervisor
from jobs.ledger.store.move import ready_state
from jobs.sql.scratch import forget_scratch
from jobs.storage.folder import StateFolder, keep_private


def run(config: ServeConfig, state_dir: Path, on_event: OnEvent, chat_app: Any = None) -> None:
    """Serve until SIGINT or SIGTERM, and restart what dies meanwhile. A second signal ends the wait for open requests.

    Reports ``starting``, ``waiting``, ``ready``, ``stopping`` and ``stopped`` (and ``warning``) through ``on_event``; ``ready`` with the
    seconds since the start, or since the server stopped answering. ``chat_app`` (a `cluster.ChatApp`) replaces vLLM's replicas, for
    measuring everything around them. Raises `HarvesterError` if the server cannot start, and then leaves nothing running.
    """
    began_s = time.monotonic()
    folder = StateFolder(state_dir.absolute())
    keep_private()
    folder.prepare()
    write_logs(config.logs, folder.logs, "server")
    stop, hurry = threading.Event(), threading.Event()
    with folder.locked(), _signals(stop, hurry), _server_file(folder) as tell:
        mark = mark_of(folder.root)
        _sweep(mark, on_event)
        for line in _ready(folder, config):
            on_event("warning", {"message": line})
        open_to = check_listening(config, folder.keys)
        config = _checked(config, folder)
        cpu = device_of(config) == "cpu"
        config, choice, further, engine = _chosen(config, cpu=cpu)
        url = url_here(config.host, config.port)
        on_event("starting", {"model": choice.name, "note": choice.note, "state": str(folder.root), "url": url, "engine": engine})

        def on_ready(seconds: float) -> None:
            tell(url=url, model=choice.name, started_at_s=time.time())
            notify("READY=1")
            told = {"url": url, "model": choice.name, "seconds": round(seconds, 1)}
            on_event("ready", {**told, "open_to": open_to})

        front = front_of(config, folder, mark)
        deployment = Deployment(config, folder, choice, further, url, mark, cpu, os.getpid(), chat_app)
        with _leaving_nothing(folder, mark, front):
            Supervisor(deployment, front, on_event, on_ready, began_s).run(stop, hurry)
        if config.address is not None and folder.cluster.exists():
            told = "applications are left in the Ray cluster, where open chats may end; harvester stop waits for them and ends the rest"
            on_event("warning", {"message": told})
        on_event("stopped", {})


def _checked(config: ServeConfig, folder: StateFolder) -> ServeConfig:
    """The configuration with what the keys and the address imply. Raises `HarvesterError` if it cannot be served here."""
    check_sleep(config)
    config = requiring_keys_if_any(config, folder.keys)
    sources = config.sources.with_roots(Path.cwd() if is_loopback(config.host) else None)
    config = config.model_copy(update={"sources": sources})
    if config.address is None:  # in a joined cluster, the proxy of an earlier server of this state may hold the port
        check_port(config.host, config.port)
    return config


def _chosen(config: ServeConfig, *, cpu: bool) -> tuple[ServeConfig, ModelChoice, dict[str, ModelChoice], str]:
    """The settled configuration, its model, its further models, and a line on the engine. Raises `HarvesterError` for what cannot fit."""
    from harvester.engine.launch.defaults import check_gpus, described
    from harvester.engine.launch.models import choose_model, settled

    if not cpu and config.address is None:
        for one in (config, *map(config.of, config.models)):
            check_gpus(one, beside_others=bool(config.models))
    choice = choose_model(config.model, config.served_model_name, elsewhere=config.address is not None)
    config, further = settled(config, choice.name)
    return config, choice, further, described(config, cpu=cpu, embedded=choice.embedded)


@contextmanager
def _leaving_nothing(folder: StateFolder, mark: str, front: Front | None) -> Iterator[None]:
    """Hold the server's runtime folder within the block. However that ends, no process and no file of the server's is left."""
    try:
        with held(runtime_folder(folder, mark)):
            yield
    finally:
        if front is not None:
            front.stop()
        stop_marked(mark)
        forget_scratch(mark)
        clear(runtime_folder(folder, mark))


def _sweep(mark: str, on_event: OnEvent) -> None:
    """End and remove what an earlier server of this state folder left behind."""
    left = stop_marked(mark)
    forget_scratch(mark)
    if left:
        on_event("warning", {"message": f"stopped {left} processes that an earlier server had left behind"})


def _ready(folder: StateFolder, config: ServeConfig) -> list[str]:
    """`ready_state`; with a storage, in a process of its own: sessions are forked from this process, which must have no threads."""
    if config.storage is None:
        return ready_state(folder, config.ledger)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(ready_state, folder, config.ledger, config.storage).result()


@contextmanager
def _signals(stop: threading.Event, hurry: threading.Event) -> Iterator[None]:
    """The first SIGINT or SIGTERM sets ``stop``, the second ``hurry``; a third SIGINT raises."""

    def on_signal(number: int, frame: object) -> None:
        if hurry.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        (hurry if stop.is_set() else stop).set()

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _server_file(folder: StateFolder) -> Iterator[Callable[..., None]]:
    """Name this process in ``server.json`` within the block. Yields a function that adds fields. Raises `StorageError`."""

    def tell(**more: Any) -> None:
        with publish(folder.server) as file:
            here = {"pid": os.getpid(), "host": socket.gethostname(), "numbering": numbering(), "state": str(folder.root)}
            file.write(json.dumps(here | more).encode() + b"\n")

    tell()
    try:
        yield tell
    finally:
        folder.server.unlink(missing_ok=True)
