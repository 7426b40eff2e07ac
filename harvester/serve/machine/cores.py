"""Divides a machine's cores among its CPU replicas, because vLLM binds each engine's threads as if it were alone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

SYSTEM = Path("/sys/devices/system/cpu")


def share(cores: Sequence[Sequence[int]], rank: int, replicas: int) -> set[int]:
    """The logical CPUs of replica ``rank`` of ``replicas``. ``cores``: the logical CPUs of each core.

    Whole cores, divided as evenly as possible. With more replicas than cores, they share cores round-robin.
    """
    if replicas > len(cores):
        return set(cores[rank % len(cores)])
    first, end = (len(cores) * turn // replicas for turn in (rank, rank + 1))
    return {cpu for core in cores[first:end] for cpu in core}


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
def on_own_cores(rank: int, replicas: int) -> Iterator[None]:
    """Bind processes that this thread starts in the block to this replica's cores. Afterwards the thread has its former affinity."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, share(allowed_cores(), rank, replicas))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
