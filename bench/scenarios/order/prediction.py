"""How well the length of a prompt predicts that of its answer, on recorded chats: the brain's quantiles and other predictors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.harness.load.arrivals import Lengths
from harvester.policy.model.prediction import LengthPredictor

Tokens = NDArray[np.float64]
DEGREE = 5  # of the polynomial in the logarithm of the prompt


def predictors(lengths: Lengths, seed: int) -> dict[str, Any]:
    """Each learns from half of ``lengths`` and predicts the other half. The brain's goes on learning from each answer that it predicted."""
    order = np.random.default_rng(seed).permutation(len(lengths))
    prompts, answers = (np.array([pair[i] for pair in lengths], dtype=np.float64)[order] for i in (0, 1))
    half = len(lengths) // 2
    learnt, asked, made = prompts[:half], prompts[half:], answers[:half]
    logs = _regression(np.log(learnt), np.log(made), 1), _regression(np.log(learnt), made, DEGREE)
    predicted = {
        "median of all": np.full(len(asked), np.median(made)),
        "quantiles by band of prompts": _brain(prompts, answers, half),
        "regression, log on log": np.exp(logs[0](np.log(asked))),
        "polynomial in log": np.maximum(1.0, logs[1](np.log(asked))),
    }
    explained = float(np.corrcoef(np.log(prompts), np.log(answers))[0, 1] ** 2)
    errors = {name: _error(tokens, answers[half:]) for name, tokens in predicted.items()}
    return {"answers": len(lengths), "explained_by_prompt": round(explained, 4), "predictors": errors}


def _brain(prompts: Tokens, answers: Tokens, half: int) -> Tokens:
    lengths, predicted = LengthPredictor(), list[float]()
    for prompt, answer in zip(prompts.astype(int).tolist(), answers.astype(int).tolist(), strict=True):
        said = lengths.predict("", prompt)
        predicted.append(float(said.median or 1))
        lengths.ended("", prompt, answer, said)
    return np.array(predicted[half:])


def _regression(prompts: Tokens, answers: Tokens, degree: int) -> np.polynomial.Polynomial:
    return np.polynomial.Polynomial.fit(prompts, answers, degree)


def _error(predicted: Tokens, made: Tokens) -> dict[str, float]:
    """``rank``: correlation of the predicted order with the true one, all that a shortest-first order can use."""
    ranks = [np.argsort(np.argsort(values)) for values in (predicted, made)]
    rank = 0.0 if np.ptp(predicted) == 0.0 else float(np.corrcoef(ranks[0], ranks[1])[0, 1])
    error = np.abs(predicted - made)
    return {"mean_tokens": round(float(error.mean()), 1), "median_share": round(float(np.median(error / made)), 3), "rank": round(rank, 3)}
