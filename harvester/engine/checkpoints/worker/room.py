"""How much more host memory this process may take: of the machine, and of the control groups that it is in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

UNLIMITED_BYTES = 1 << 60  # the first version of control groups writes a number near 2**63 for none
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Room:
    """``free_bytes`` of ``total_bytes`` may still be taken. ``bound``: where that limit comes from, for messages."""

    free_bytes: int
    total_bytes: int
    bound: str

    def __str__(self) -> str:
        return f"{self.free_bytes / GIB:.1f} of {self.total_bytes / GIB:.1f} GiB free, {self.bound}"


def memory_room(root: Path = Path("/")) -> Room:
    """The tightest bound. ``root``: where ``proc`` and ``sys`` are."""
    return min([_machine(root), *_groups(root)], key=lambda room: room.free_bytes)


def memlock_bytes() -> int | None:
    """The limit on locked memory of this process (``ulimit -l``); None: no limit."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def _machine(root: Path) -> Room:
    """Memory available without swapping, by the kernel's estimate; on systems other than Linux, by psutil."""
    if sys.platform != "linux":
        import psutil

        memory = psutil.virtual_memory()
        return Room(memory.available, memory.total, "memory of the machine")
    found = {}
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        found[name] = value
    free_kib, total_kib = (int(found[name].split()[0]) for name in ("MemAvailable", "MemTotal"))
    return Room(free_kib << 10, total_kib << 10, "memory of the machine")


def _groups(root: Path) -> Iterator[Room]:
    """Of this process's control groups, from its own to the outermost that is visible, those with a limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _limits(root / "sys/fs/cgroup/memory", path, names)
        elif not controllers:
            yield from _limits(root / "sys/fs/cgroup", path, ("memory.max", "memory.current", "inactive_file"))


def _limits(base: Path, path: str, names: tuple[str, str, str]) -> Iterator[Room]:
    """``names``: the files with the limit and with the use, and the entry of ``memory.stat`` with used pages that are reclaimed at once."""
    inner = PurePosixPath(path.lstrip("/"))
    for place in dict.fromkeys([inner, *inner.parents]):
        room = None if ".." in place.parts else _limit(base / place, names)
        if room is not None:
            yield room


def _limit(folder: Path, names: tuple[str, str, str]) -> Room | None:
    try:
        written = (folder / names[0]).read_text().strip()
        if written == "max" or int(written) >= UNLIMITED_BYTES:
            return None
        limit, used = int(written), int((folder / names[1]).read_text())
        stat = dict(line.split(maxsplit=1) for line in (folder / "memory.stat").read_text().splitlines())
        used = max(0, used - int(stat.get(names[2], 0)))
    except (OSError, ValueError):  # not there, as in a container that sees no group but its own
        return None
    return Room(max(0, limit - used), limit, f"memory limit of the control group {folder}")
