"""The processes of a server, known by a mark in their environment: what a killed server leaves behind is found and stopped by it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import psutil

MARK = "HARVESTER_SERVER"


def mark_of(state_dir: Path) -> str:
    """Value of the mark for servers of this state folder: 12 hex digits."""
    return hashlib.sha256(str(state_dir.resolve()).encode()).hexdigest()[:12]


def marked(mark: str) -> Iterator[psutil.Process]:
    """Processes of this user that carry the mark, this one and its ancestors apart."""
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for process in psutil.process_iter():
        if process.pid in own:
            continue
        try:
            if process.environ().get(MARK) == mark:
                yield process
        except (psutil.Error, OSError):
            continue


def stop_marked(mark: str, grace_s: float = 0.0) -> int:
    """Kill what carries the mark, after ``grace_s`` seconds of asking. Returns how many there were."""
    found = list(marked(mark))
    if grace_s > 0:
        for process in found:
            _signal(process, ask=True)
        psutil.wait_procs(found, timeout=grace_s)
    for process in found:
        _signal(process, ask=False)
    psutil.wait_procs(found, timeout=5.0)
    return len(found)


def _signal(process: psutil.Process, *, ask: bool) -> None:
    try:
        if ask:
            process.terminate()
        else:
            process.kill()
    except psutil.Error:
        return  # it has gone by itself
