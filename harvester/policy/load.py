"""What a step computes, as the features that its time is predicted from."""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul
from typing import NamedTuple

KNEES = (128, 256, 512)  # tokens
FEATURES = len(KNEES) + 5
DECODE_CONTEXT = FEATURES - 2  # its place among the features


class StepLoad(NamedTuple):
    """What a step computes. A tuple, because a budget is found by trying many."""

    prefill_tokens: int = 0
    prefill_attention: float = 0.0  # sum over prefill chunks of chunk tokens x mean context of a token in the chunk
    decode_seqs: int = 0
    decode_context: int = 0  # sum over decoding sequences of their context tokens
    seqs: int = 0  # all in the step

    @property
    def tokens(self) -> int:
        return self.prefill_tokens + self.decode_seqs

    def __add__(self, other: StepLoad) -> StepLoad:  # type: ignore[override]
        return StepLoad(
            self.prefill_tokens + other.prefill_tokens,
            self.prefill_attention + other.prefill_attention,
            self.decode_seqs + other.decode_seqs,
            self.decode_context + other.decode_context,
            self.seqs + other.seqs,
        )

    @classmethod
    def prefill(cls, tokens: int, context: int = 0) -> StepLoad:
        """One chunk of ``tokens`` behind ``context`` tokens computed before; nothing for a chunk without tokens."""
        return cls(tokens, tokens * (context + tokens / 2), 0, 0, 1) if tokens > 0 else cls()

    @classmethod
    def decode(cls, context: int) -> StepLoad:
        """One sequence that makes one token with ``context`` tokens before it."""
        return cls(0, 0.0, 1, context, 1)


def features(load: StepLoad) -> tuple[float, ...]:
    """``[FEATURES]``, in the order of the coefficients."""
    tokens = load.prefill_tokens + load.decode_seqs
    hinges = [tokens - knee if tokens > knee else 0.0 for knee in KNEES]
    return (1.0, tokens, *hinges, load.prefill_attention, load.decode_context, load.seqs)


def predict_with(coefficients: Sequence[float], load: StepLoad) -> float:
    """Seconds of a step, from the ``coefficients`` of a model that may live in another process."""
    return float(sum(map(mul, coefficients, features(load))))
