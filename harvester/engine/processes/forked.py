"""Processes forked from one that has already imported vLLM: the import takes 10 s of a core, and an engine has two further processes.

The contexts of `multiprocessing`, with what they leave to do. A forked process inherits the descriptor by which signals wake the parent's
event loop, and so would report its own signals to the parent. A process of a fork server has the environment and the cores of the server's
start, and outlives the server.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import context, forkserver, get_context, process
from typing import Any

METHOD = "VLLM_WORKER_MULTIPROC_METHOD"  # vLLM's: if a user sets it to spawn, nothing is forked
PRELOAD = ("harvester.engine.processes.preload",)
_PR_SET_PDEATHSIG = 1

First = Callable[[Mapping[str, Any]], None]
"""What a new process does before its own work, of whose arguments by name it is told."""


def is_wanted() -> bool:
    return sys.platform == "linux" and os.environ.get(METHOD) != "spawn"


def begin(preload: Sequence[str] = PRELOAD, sockets: str | None = None) -> None:
    """Start a fork server, if there is none. It imports ``preload`` meanwhile, and ends after this process and all that it forked.

    ``sockets``: folder for its socket. None: a new one, which stays where this process is killed.
    """
    if is_wanted() and not has_begun():
        if sockets is not None:
            process.current_process()._config["tempdir"] = sockets  # type: ignore[attr-defined]
        get_context("forkserver").set_forkserver_preload(list(preload))
        forkserver.ensure_running()


@contextmanager
def uncollected() -> Iterator[None]:
    """Turn the garbage collector off for imports: what is imported stays, and scanning it repeatedly takes a sixth of the import's time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def has_begun() -> bool:
    return forkserver._forkserver._forkserver_pid is not None  # type: ignore[attr-defined]


@contextmanager
def method_kept() -> Iterator[bool]:
    """Yields whether the user allows forking. Unsets `METHOD` at the end if it was unset: vLLM sets it itself on a CPU and within Ray."""
    before = os.environ.get(METHOD)
    try:
        yield is_wanted()
    finally:
        if before is None:
            os.environ.pop(METHOD, None)


def is_single() -> bool:
    """Whether this process has no other thread of Python's, which might hold a lock that a forked one would wait for."""
    return threading.active_count() == 1


def end_with_parent(parent: int) -> None:
    """Have this process killed when ``parent``, which has started it, ends; now, if that has happened."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before that
        os._exit(1)


class _Surroundings:
    """Environment and cores of the process that creates it. The process that unpickles it takes them over."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _surround, (dict(os.environ), os.sched_getaffinity(0))


def _surround(environment: Mapping[str, str], cores: set[int]) -> _Surroundings:
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update({name: value for name, value in environment.items() if os.environ.get(name) != value})
    with suppress(OSError):  # cores that are gone
        os.sched_setaffinity(0, cores)
    return _Surroundings()


class _Served(context.ForkServerProcess):
    """A process of the fork server. ``_around`` is unpickled first: what follows imports modules, which may read the environment."""

    first: First | None = None

    def __init__(self, *given: Any, **named: Any) -> None:
        self._around = _Surroundings()
        super().__init__(*given, **named)

    def run(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # which the server ignores
        end_with_parent(os.getppid())  # the server, which alone knows when this process has ended
        if self.first is not None:
            self.first(self._kwargs)  # type: ignore[attr-defined]
        super().run()


class _Forked(context.ForkProcess):
    first: First | None = None

    def run(self) -> None:
        signal.set_wakeup_fd(-1)
        if self.first is not None:
            self.first(self._kwargs)  # type: ignore[attr-defined]
        super().run()


class ServedContext(context.ForkServerContext):
    """Processes come from the fork server that `begin` started."""

    def __init__(self, first: First | None = None) -> None:
        super().__init__()
        self._first = first

    def Process(self, *given: Any, **named: Any) -> _Served:  # type: ignore[override]  # noqa: N802  # as `multiprocessing` names it
        served = _Served(*given, **named)
        served.first = self._first
        return served


class ForkedContext(context.ForkContext):
    """Processes are forked from this one."""

    def __init__(self, first: First | None = None) -> None:
        super().__init__()
        self._first = first

    def Process(self, *given: Any, **named: Any) -> _Forked:  # type: ignore[override]  # noqa: N802
        child = _Forked(*given, **named)
        child.first = self._first
        return child
