"""Functions that numba compiles when they are first called; the machine code is kept beside the sources it was made from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])
FOLDER = Path(__file__).parent


def sources() -> str:
    """A digest of this folder's sources. numba itself looks only at the file of a function, not at those of what it calls."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(FOLDER.glob("*.py")))).hexdigest()[:16]


numba.config.CACHE_DIR = str(FOLDER / "__pycache__" / sources())


def compiled(function: F) -> F:
    """The same function as machine code. It may take numbers, arrays and records, and call other compiled functions."""
    return cast(F, numba.njit(cache=True)(function))
