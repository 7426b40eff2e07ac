"""The environment of a process of our own that reads what may be hostile."""

from __future__ import annotations

import os
import sys

_KEPT = ("LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "TZ")  # environment variables that are passed on; others may hold keys


def environment(**settings: str) -> dict[str, str]:
    """A minimal environment with the module path and ``settings``, in which OpenBLAS and OpenMP start no threads."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    path = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "PYTHONSAFEPATH": "1"}
    return kept | path | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"} | settings
