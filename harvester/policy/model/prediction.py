"""Predicts answer lengths from finished answers: quantiles for each kind of request and band of prompt lengths.

An order by predicted length needs the length of each answer before its first token. Requests of one kind (one task of one client on one
model) share a template, so finished answers predict the others. Bands of prompt tokens, whose bounds double, divide a kind further.
"""

from __future__ import annotations

from dataclasses import dataclass

from harvester.policy.model.recent import Recent

MAX_ANSWERS = 256  # answers of a band; older ones are forgotten, so that a change is followed
MIN_ANSWERS = 20  # minimum for a prediction from a band
MAX_KINDS = 64  # clients name them; further kinds are predicted from all answers together


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted length of one answer, in tokens; None: too few have ended."""

    median: int | None = None
    high: int | None = None  # P90


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Counts of finished answers that had a prediction. ``error``: median of abs(predicted - made) / made over the latest."""

    judged: int = 0
    within_median: int = 0
    within_high: int = 0
    error: float | None = None


class LengthPredictor:
    """Learns from each finished answer and predicts the next ones. A call is O(log answers) and one insertion into a short list."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, int | None] | None, Recent] = {None: Recent(MAX_ANSWERS)}
        self._kinds: set[str] = set()
        self._errors = Recent(MAX_ANSWERS)
        self._judged = self._within_median = self._within_high = 0

    def predict(self, kind: str, prompt_tokens: int) -> Prediction:
        """From answers of the same kind and prompt band; where too few, of the kind; else of all."""
        for key in _keys(kind, prompt_tokens):
            answers = self._answers.get(key)
            if answers is not None and len(answers) >= MIN_ANSWERS:
                return Prediction(round(answers.quantile(0.5)), round(answers.quantile(0.9)))
        return Prediction()

    def ended(self, kind: str, prompt_tokens: int, tokens: int, predicted: Prediction) -> None:
        """An answer of ``tokens`` ended by itself or at its limit; ``predicted``: what `predict` had said of it."""
        self._judge(tokens, predicted)
        if kind not in self._kinds and len(self._kinds) < MAX_KINDS:
            self._kinds.add(kind)
        for key in _keys(kind, prompt_tokens) if kind in self._kinds else (None,):
            self._answers.setdefault(key, Recent(MAX_ANSWERS)).add(tokens)

    def accuracy(self) -> Accuracy:
        error = self._errors.quantile(0.5) if len(self._errors) else None
        return Accuracy(self._judged, self._within_median, self._within_high, error)

    def _judge(self, tokens: int, predicted: Prediction) -> None:
        if predicted.median is None or predicted.high is None:
            return
        self._judged += 1
        self._within_median += tokens <= predicted.median
        self._within_high += tokens <= predicted.high
        self._errors.add(abs(predicted.median - tokens) / max(1, tokens))


def _keys(kind: str, prompt_tokens: int) -> tuple[tuple[str, int | None] | None, ...]:
    """From the narrowest group of answers to all of them."""
    return (kind, max(0, prompt_tokens).bit_length()), (kind, None), None
