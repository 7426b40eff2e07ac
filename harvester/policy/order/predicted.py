"""Adds predictions to online requests, and teaches the predictor how long their answers became."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harvester.policy.model.latency import LatencyModel
from harvester.policy.model.load import StepLoad
from harvester.policy.model.prediction import LengthPredictor, Prediction
from harvester.policy.order.online import OnlineRequest


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is kept of an open request, to learn the length of its answer when it ends."""

    kind: str
    prompt_tokens: int
    predicted: Prediction


class PredictedRequests:
    """Fills in the predictions that online orders sort by, and teaches the predictor when an answer ends."""

    def __init__(self) -> None:
        self.predictor = LengthPredictor()
        self._asked: dict[str, _Asked] = {}

    def of(self, request: OnlineRequest, model: LatencyModel, fresh: float = 1.0) -> OnlineRequest:
        """``request`` with the predicted length of its answer, unless it has one, and the predicted times of its prompt and of a token.

        ``fresh``: expected share of the prompt that is computed, and not found in the prefix cache.
        """
        predicted = self.predictor.predict(request.kind, request.prompt_tokens)
        self._asked[request.name] = _Asked(request.kind, request.prompt_tokens, predicted)
        known = (tokens for tokens in (request.expected_tokens, predicted.median) if tokens is not None)
        expected = max(1, min(next(known, request.max_tokens), request.max_tokens))
        prefill_s = model.predict(StepLoad.prompt(request.prompt_tokens, fresh))
        token_s = model.predict(StepLoad.decode(request.prompt_tokens))
        return replace(request, expected_tokens=expected, prefill_s=prefill_s, token_s=token_s)

    def finish(self, name: str, answer_tokens: int | None) -> None:
        """The request ended with ``answer_tokens``; None: it was aborted, and its length is not learnt."""
        asked = self._asked.pop(name)
        if answer_tokens is not None:
            self.predictor.ended(asked.kind, asked.prompt_tokens, answer_tokens, asked.predicted)
