"""What a request of an order scenario tells the schedulers of `bench.harness.engine.ordered_harvest`, as ``vllm_xargs``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

PREFIX = "bench_"


@dataclass(frozen=True, slots=True)
class OrderArgs:
    """``output_tokens``: length of the answer. ``expected_tokens``: the same as predicted from outside; 0: no prediction."""

    order: str
    output_tokens: int
    expected_tokens: int
    ttft_s: float
    tpot_s: float

    def to_args(self) -> dict[str, str | int | float]:
        return {PREFIX + name: value for name, value in asdict(self).items()}

    @classmethod
    def of(cls, args: Mapping[str, Any]) -> Self | None:
        """From a request's extra arguments. None if it carries none of these."""
        given = {name.removeprefix(PREFIX): value for name, value in args.items() if name.startswith(PREFIX)}
        return cls(**given) if given else None
