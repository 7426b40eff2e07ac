"""What a step computes, as the features that its time is predicted from."""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul
from typing import NamedTuple

from harvester.policy.model.graphs import DECODE, EAGER, GraphSizes

KNEES = (128, 256, 512)  # tokens
PLAIN_FEATURES = len(KNEES) + 5  # of a machine without CUDA graphs
DECODE_CONTEXT = PLAIN_FEATURES - 2  # its index among the features
# Where reading the weights takes as long as computing with them: 105 tokens on an A100, 155 on an H200, 220 on an H100, at the usual
# shares of the peaks.
GRAPH_KNEES = (96, 160, 192, 224, 384)
FEATURES = PLAIN_FEATURES + 2 + len(GRAPH_KNEES)  # of a machine with graphs


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
    def prompt(cls, tokens: int, fresh: float) -> StepLoad:
        """A whole prompt of ``tokens``, at least 1, of which the last ``fresh`` (a share) is computed, and the rest is found in a cache."""
        computed = max(1, round(fresh * tokens))
        return cls.prefill(computed, tokens - computed)

    @classmethod
    def decode(cls, context: int) -> StepLoad:
        """One sequence that makes one token with ``context`` tokens before it."""
        return cls(0, 0.0, 1, context, 1)


def feature_count(graphs: GraphSizes | None) -> int:
    return PLAIN_FEATURES if graphs is None else FEATURES


def features(load: StepLoad, graphs: GraphSizes | None = None) -> tuple[float, ...]:
    """``[feature_count(graphs)]``, in the order of the coefficients.

    With graphs, tokens are those that the step is padded to, and more features follow: 1 if the step is not a graph of decodes alone, 1 if
    it runs without a graph, and hinges at closer knees.
    """
    tokens = load.prefill_tokens + load.decode_seqs
    if graphs is None:
        hinges = [tokens - knee if tokens > knee else 0.0 for knee in KNEES]
        return (1.0, tokens, *hinges, load.prefill_attention, load.decode_context, load.seqs)
    kind, tokens = graphs.padded(load.prefill_tokens, load.decode_seqs)
    hinges = [tokens - knee if tokens > knee else 0.0 for knee in KNEES]
    closer = [tokens - knee if tokens > knee else 0.0 for knee in GRAPH_KNEES]
    jumps = kind != DECODE, kind == EAGER
    return (1.0, tokens, *hinges, load.prefill_attention, load.decode_context, load.seqs, *jumps, *closer)


def predict_with(coefficients: Sequence[float], load: StepLoad, graphs: GraphSizes | None = None) -> float:
    """Seconds of a step, from the ``coefficients`` of a model that may live in another process. Surplus coefficients are ignored."""
    return float(sum(map(mul, coefficients, features(load, graphs))))
