"""Peak resident memory of a process since the last reset, as the kernel counts it (Linux), and what the processes below it take."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

import psutil


def resident_bytes(pid: int | str = "self") -> int:
    return _field(pid, "VmRSS")


def peak_bytes(pid: int | str = "self") -> int:
    """Since `reset_peak`, else since the process began."""
    return _field(pid, "VmHWM")


def reset_peak(pid: int | str = "self") -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")


def _field(pid: int | str, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(encoding="ascii"), re.MULTILINE)
    assert found is not None, f"/proc/{pid}/status has no {name}"
    return int(found[1]) * 1024


class Taken(NamedTuple):
    """Resident memory and processor time of a process since its start."""

    bytes: int
    cpu_s: float


class Below:
    """Peaks of the processes below a server, over all looks; the first look is when this is made.

    ``one_bytes``: of one of them, ``bytes``: of all, ``whole_bytes``: of all with the server. A page that several share counts for each.
    ``cpu_s``, ``server_cpu_s``: processor time since the first look, of all of them and of the server.
    """

    def __init__(self, taken: Callable[[], tuple[Taken, Mapping[int, Taken]]]) -> None:
        self._taken = taken
        self.one_bytes = self.bytes = self.whole_bytes = 0
        server, below = taken()
        self._first_s, self._server_first_s = {pid: one.cpu_s for pid, one in below.items()}, server.cpu_s
        self._last_s, self._server_last_s = dict(self._first_s), server.cpu_s
        self._note(server, below)

    @classmethod
    def of(cls, server: int) -> Self:
        return cls(lambda: _taken(server))

    def look(self) -> None:
        self._note(*self._taken())

    def _note(self, server: Taken, below: Mapping[int, Taken]) -> None:
        together = sum(one.bytes for one in below.values())
        self.one_bytes = max([self.one_bytes, *(one.bytes for one in below.values())])
        self.bytes, self.whole_bytes = max(self.bytes, together), max(self.whole_bytes, together + server.bytes)
        self._last_s |= {pid: one.cpu_s for pid, one in below.items()}
        self._server_last_s = server.cpu_s

    @property
    def cpu_s(self) -> float:
        return sum(last_s - self._first_s.get(pid, 0.0) for pid, last_s in self._last_s.items())

    @property
    def server_cpu_s(self) -> float:
        return self._server_last_s - self._server_first_s


def _taken(server: int) -> tuple[Taken, dict[int, Taken]]:
    found = {}
    for child in psutil.Process(server).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            found[child.pid] = _of(child)
    return _of(psutil.Process(server)), found


def _of(process: psutil.Process) -> Taken:
    with process.oneshot():
        times = process.cpu_times()
        return Taken(process.memory_info().rss, times.user + times.system)
