"""Functions that numba compiles when they are first called; the machine code is kept beside the file."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from numba import njit

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """The same function as machine code. It may take numbers, arrays and records, and call other compiled functions."""
    return cast(F, njit(cache=True)(function))
