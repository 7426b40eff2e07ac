"""Makes `import jobs` and `import connectors` find our packages, even where the user has packages of the same names.

A process of harvester calls `claim` before it imports either, so that ours are found before those in the working directory and on
PYTHONPATH. A process of the user never does: there, `import jobs` stays the user's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

NAMES = ("jobs", "connectors")
ROOT = Path(__file__).resolve().parent.parent  # the folder that holds all three packages
OWN_PATH = Path(__file__).resolve().parent / "own-path"  # two stub packages that lead to those of ROOT


class OwnPackages:
    """Finds `NAMES` beside this package, and nothing else."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, [str(ROOT)]) if fullname in NAMES else None


def claim() -> None:
    """Make this process one of harvester's: from now on `jobs` and `connectors` are ours, here and in processes that it starts.

    Raises `ImportError` where another package of either name was imported before.
    """
    if not any(isinstance(finder, OwnPackages) for finder in sys.meta_path):
        sys.meta_path.insert(0, OwnPackages())
    for name in NAMES:
        found = sys.modules.get(name)
        if found is not None and not _is_ours(found, name):
            raise ImportError(f"another package named {name} is imported already ({found.__file__}); run harvester in a process of its own")
    if str(OWN_PATH) not in sys.path:
        sys.path.insert(0, str(OWN_PATH))
    os.environ.update(environment(os.environ))


def is_ours() -> bool:
    """Whether a process of harvester started this one."""
    return os.environ.get("PYTHONPATH", "").split(os.pathsep)[0] == str(OWN_PATH)


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Variables that make a child Python find our packages first and leave its working directory out of the search."""
    rest = [entry for entry in given.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != str(OWN_PATH)]
    return {"PYTHONPATH": os.pathsep.join([str(OWN_PATH), *rest]), "PYTHONSAFEPATH": "1"}


def _is_ours(module: ModuleType, name: str) -> bool:
    return str(ROOT / name) in list(getattr(module, "__path__", ()))
