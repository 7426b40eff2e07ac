"""A part of the bench: runs, each in a process of its own, and what they amount to together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.gpu.run_config import RunConfig

Found = Mapping[str, dict[str, Any]]  # of the runs that are done, by name
Run = Callable[[RunConfig, Found], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Part:
    """``runs`` are done in their order, each told what those before it found."""

    runs: Mapping[str, Run]
    summary: Callable[[Found], dict[str, Any]]
