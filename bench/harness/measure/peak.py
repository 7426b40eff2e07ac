"""Peak resident memory of a process since the last reset, as the kernel counts it (Linux)."""

from __future__ import annotations

import re
from pathlib import Path


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
