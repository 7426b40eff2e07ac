"""Have Prometheus and its promtool for the tests of alert rules: those that are there, else Debian's package.

Standard library only. Where it cannot be had, the tests that need it are skipped with the reason.
"""

from __future__ import annotations

import shutil

from tools.browser import install, lack


def have() -> str | None:
    """Have both on PATH, installed if need be. Returns why that failed; None if it did not."""
    if _missing():
        why = lack() or install("prometheus")
        return f"no Prometheus here ({why})" if why or _missing() else None
    return None


def _missing() -> bool:
    return any(shutil.which(name) is None for name in ("promtool", "prometheus"))
