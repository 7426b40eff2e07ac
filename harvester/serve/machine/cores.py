"""Divides a machine's cores among its CPU replicas, because vLLM binds each engine's threads as if it were alone."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

SYSTEM = Path("/sys/devices/system/cpu")


def share(cores: Sequence[Sequence[int]], part: int, parts: int) -> set[int]:
    """The logical CPUs of one of ``parts`` parts. ``cores``: the logical CPUs of each core. A ``part`` beyond the last counts from 0 again.

    Whole cores, divided as evenly as possible. With more parts than cores, they share cores round-robin.
    """
    part %= parts
    if parts > len(cores):
        return set(cores[part % len(cores)])
    first, end = (len(cores) * turn // parts for turn in (part, part + 1))
    return {cpu for core in cores[first:end] for cpu in core}


def claim_part(folder: Path, name: str, parts: int, otherwise: int) -> int:
    """The lowest of the ``parts`` of ``name`` that no process has claimed by its file in ``folder``. This process has it until it ends.

    Serve's ranks do not say which cores are free: one that has left keeps its rank while its chats end, and the ranks of others change
    while their engines stay where they are. ``otherwise``: returned where no part is free, since more replicas run than there are parts.
    """
    for part in range(parts):
        file = os.open(folder / f"cores-{name.replace('/', '-')}-{part}", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
        else:
            return part
    return otherwise


def allowed_cores(system: Path = SYSTEM) -> list[list[int]]:
    """The logical CPUs that this thread may use, by core."""
    cpus = sorted((_siblings(system, cpu), cpu) for cpu in os.sched_getaffinity(0))
    return [[cpu for _, cpu in core] for _, core in groupby(cpus, key=lambda found: found[0])]


def _siblings(system: Path, cpu: int) -> int:
    """The first logical CPU of the core that has ``cpu``."""
    try:
        told = (system / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text("utf-8")
        return int(told.replace("-", ",").split(",")[0])
    except (OSError, ValueError):
        return cpu


@contextmanager
def on_own_cores(part: int, parts: int) -> Iterator[None]:
    """Bind processes that this thread starts in the block to one part of the cores. Afterwards the thread has its former affinity."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, share(allowed_cores(), part, parts))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
