"""The CUDA graphs of a machine: what a step is padded to, and whether it runs as a graph at all.

A graph is captured for a number of tokens. A step runs as the smallest graph that holds it, padded; above the largest it runs without one.
Steps of decodes alone and steps that hold prompt tokens have graphs of their own (vLLM's FULL and PIECEWISE), or none.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

DECODE, MIXED, EAGER = range(3)  # a graph for decodes alone, one for any step, none


@dataclass(frozen=True, slots=True)
class GraphSizes:
    """Tokens of the captured graphs, ascending.

    ``decode``: for steps of decodes alone, one token a sequence. ``mixed``: for any step. Either may be empty, not both: a machine without
    graphs has no `GraphSizes`. Raises `ValueError` where both are empty, or sizes are not positive and ascending.
    """

    decode: tuple[int, ...]
    mixed: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.decode and not self.mixed:
            raise ValueError("a machine without CUDA graphs has no sizes of them")
        for sizes in (self.decode, self.mixed):
            if list(sizes) != sorted(set(sizes)) or (sizes and sizes[0] <= 0):
                raise ValueError(f"sizes of CUDA graphs must be positive and ascend, and are {sizes}")

    def padded(self, prefill_tokens: int, decode_seqs: int) -> tuple[int, int]:
        """How the step runs (`DECODE`, `MIXED` or `EAGER`), and the tokens that it computes.

        More tokens of a sort that the step holds never give an earlier kind or fewer tokens. The first prompt tokens beside decodes never
        give an earlier kind.
        """
        tokens = prefill_tokens + decode_seqs
        if not prefill_tokens and self.decode and tokens <= self.decode[-1]:
            return DECODE, self.decode[bisect_left(self.decode, tokens)]
        if self.mixed and tokens <= self.mixed[-1]:
            return MIXED, self.mixed[bisect_left(self.mixed, tokens)]
        return EAGER, tokens

    def state(self) -> dict[str, list[int]]:
        """JSON values."""
        return {"decode": list(self.decode), "mixed": list(self.mixed)}

    @classmethod
    def from_state(cls, state: Any) -> GraphSizes | None:
        """Read what `state` wrote, or None. Raises `KeyError`, `TypeError` or `ValueError` for anything else."""
        if state is None:
            return None
        return cls(tuple(int(size) for size in state["decode"]), tuple(int(size) for size in state["mixed"]))
