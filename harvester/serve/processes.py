"""Find and stop the processes of a (killed) server by a mark in their environment."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

MARK = "HARVESTER_SERVER"
# Processes of Ray and Serve, known by a word of their command line. Not the raylet: its children would inherit the settings.
HOUSEKEEPING = ("gcs_server", "agent", "Agent", "ServeController")
PROXY = "ProxyActor"  # behind HAProxy a fallback that gets no request
HOUSEKEEPING_NICENESS = 10
INGRESS = "HAProxyManager"  # its main thread only waits for signals; the other threads start HAProxy, which would inherit


def mark_of(state_dir: Path) -> str:
    """Value of the mark for servers of this state folder: 12 hex digits."""
    return hashlib.sha256(str(state_dir.resolve()).encode()).hexdigest()[:12]


def numbering() -> str | None:
    """Names the numbering of processes that this one is in: of one start of a machine, or of a container. None: the system does not say.

    A machine's name does not: it may change while a server runs, and another machine may have the same.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except (OSError, ValueError):
        return None


def marked(mark: str) -> Iterator[psutil.Process]:
    """This user's processes that carry the mark, except this one and its ancestors."""
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for process in psutil.process_iter():
        if process.pid in own:
            continue
        with suppress(psutil.Error, OSError):
            if mark in _marks(process):
                yield process


def _marks(process: psutil.Process) -> list[str]:
    """Marks in a process's environment. It is read whole: psutil stops at a blanked variable, as in processes that set their title."""
    if sys.platform != "linux":
        return [process.environ().get(MARK, "")]
    variables = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
    return [value.decode() for name, _, value in (one.partition(b"=") for one in variables) if name == MARK.encode()]


def stop_marked(mark: str, grace_s: float = 0.0, keep: Collection[int] = ()) -> int:
    """Terminate the marked processes, except the ids in ``keep``; kill them after ``grace_s`` seconds. Returns their number.

    Looks again until it finds no more, because one of them may start another meanwhile, such as Serve's manager an HAProxy.
    """
    stopped: set[psutil.Process] = set()
    while found := [process for process in marked(mark) if process.pid not in keep and process not in stopped]:
        if grace_s > 0:
            for process in found:
                _signal(process, ask=True)
            psutil.wait_procs(found, timeout=grace_s)
        for process in found:
            _signal(process, ask=False)
        psutil.wait_procs(found, timeout=5.0)
        stopped.update(found)
    return len(stopped)


def lower_housekeeping(mark: str, *, is_haproxy: bool) -> None:
    """Keep Ray's housekeeping off the cores that a CPU engine is bound to, and at low priority on the others.

    ``is_haproxy``: whether HAProxy is the ingress. If not, Serve's proxies carry the chats, and keep their priority.
    """
    if sys.platform != "linux":
        return
    words = (*HOUSEKEEPING, PROXY) if is_haproxy else HOUSEKEEPING
    lines = {process: _line(process) for process in marked(mark)}
    own = set(psutil.Process().cpu_affinity())
    allowed = set(own)
    for process, line in lines.items():
        if not any(word in line for word in words):
            allowed -= _bound(process, own)
    for process, line in lines.items():
        if any(word in line for word in words):
            _step_back(_threads(process), allowed, HOUSEKEEPING_NICENESS)
        elif INGRESS in line:
            _step_back([process.pid])


def lower_priority(*, whole: bool = True) -> None:
    """Schedule this process as ``SCHED_BATCH``: on waking it does not preempt a running step, but waits for a free core or its turn.

    Threads started later inherit that. Not ``whole``: only the main thread, which in Ray's processes only waits for signals.
    """
    if sys.platform == "linux":
        _step_back(_threads(psutil.Process()) if whole else [os.getpid()])


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()[:3])
    except psutil.Error:
        return ""


def _bound(process: psutil.Process, own: set[int]) -> set[int]:
    """Cores that the process is bound to; none if it may use all of ``own``."""
    try:
        cores = set(process.cpu_affinity())
    except psutil.Error:
        return set()
    return cores if cores < own else set()


def _threads(process: psutil.Process) -> list[int]:
    try:
        return [thread.id for thread in process.threads()]
    except psutil.Error:
        return []


def _step_back(threads: list[int], cores: set[int] | None = None, niceness: int | None = None) -> None:
    """Lower the threads' priority and bind them to ``cores``. Never raises it, even as an administrator: a higher niceness stays."""
    for thread in threads:
        # Each call by itself: a thread may have ended meanwhile, and a container may forbid one of the calls and allow the others.
        with suppress(OSError):
            if os.sched_getscheduler(thread) == os.SCHED_OTHER:  # the idle class has a lower priority already
                os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))
        if niceness is not None:
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, thread, max(niceness, os.getpriority(os.PRIO_PROCESS, thread)))
        if cores:
            with suppress(OSError):
                os.sched_setaffinity(thread, cores)


def _signal(process: psutil.Process, *, ask: bool) -> None:
    try:
        if ask:
            process.terminate()
        else:
            process.kill()
    except psutil.Error:
        return  # it has gone by itself
