"""Prices of tokens, the same for all systems: the work of a system, and the capacity of an engine for chat alone.

Work is the marginal seconds of the computed tokens, by one latency model for all systems of a run. A step's fixed time, and the cost of a
prompt chunk beside its tokens, are left out: a scheduler does no more work by running more and smaller steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from bench.harness.load.arrivals import Arrival
from bench.harness.measure.steps import Ran, read_record, settled_model
from harvester.errors import EngineError
from harvester.policy.model.latency import LatencyModel
from harvester.policy.model.load import StepLoad

LEAST_STEPS = 20  # needed to fit prices
PIECES = 8
FITTED = ("online_only", "offline_only", "vllm_priority")  # prefixes of the labels of stock vLLM


@dataclass(frozen=True, slots=True)
class Prices:
    """Marginal seconds in a full step, of a prompt token and of a decode.

    ``attention_s``: of a prompt token, for each token of context before it. ``context_s``: of a decode, for each token of context.
    """

    prompt_token_s: float
    attention_s: float
    decode_s: float
    context_s: float

    def load_s(self, load: StepLoad) -> float:
        prompts_s = self.prompt_token_s * load.prefill_tokens + self.attention_s * load.prefill_attention
        return prompts_s + self.decode_s * load.decode_seqs + self.context_s * load.decode_context

    def step_s(self, step: Ran) -> float:
        """Work of a step without its recomputed tokens, which count at the mean price of the step's tokens."""
        return self.load_s(step.load) * (1.0 - step.again_tokens / max(1, step.load.tokens))

    def request_s(self, prompt_tokens: int, output_tokens: int) -> float:
        """Work of a whole request. Its first output token comes with the prompt."""
        decodes = max(0, output_tokens - 1)
        contexts = decodes * prompt_tokens + decodes * (decodes - 1) // 2
        return self.load_s(StepLoad.prefill(prompt_tokens) + StepLoad(0, 0.0, decodes, contexts))

    def line(self) -> dict[str, float]:
        """In a result."""
        return {name: float(f"{value:.4g}") for name, value in asdict(self).items()}


def prices_of(steps: Iterable[Ran]) -> Prices:
    """Fitted to steps that ran to their end. Raises `EngineError` for too few."""
    return _prices(_model(steps))


def stock_prices(folder: Path) -> tuple[Prices, dict[str, Any]]:
    """Prices fitted to all steps of stock vLLM in a run, whose records lie in ``folder``; and an entry for the result."""
    files = sorted(file for name in FITTED for file in folder.glob(f"{name}*.steps"))
    steps = [step for file in files for step in read_record(file).steps]
    prices = prices_of(steps)
    return prices, {"fitted_to": [file.stem for file in files], "steps": len(steps), "prices": prices.line()}


def _model(steps: Iterable[Ran]) -> LatencyModel:
    ran = [step for step in steps if not step.ended_early]
    if len(ran) < LEAST_STEPS:
        raise EngineError(f"{len(ran)} steps are too few to tell what a token costs; give the run more --seconds")
    return settled_model(ran)


def _prices(model: LatencyModel) -> Prices:
    _, token, *hinges, attention, context, seq = model.coefficients
    full = token + sum(hinges)
    return Prices(full, attention, full + seq, context)


@dataclass(frozen=True, slots=True)
class Capacity:
    """Capacity of an engine for chat alone. ``work_per_s``: work in a second of computing with a full batch of chats.

    It is the median of ``pieces``, which took about equally long.
    """

    work_per_s: float
    pieces: Sequence[float]
    busy_s: float  # that all pieces took
    prices: Prices

    def requests_per_s(self, load: Sequence[Arrival]) -> float:
        """Capacity in requests as long as those of ``load``."""
        return self.work_per_s / fmean(self.prices.request_s(one.prompt_tokens, one.output_tokens) for one in load)

    def share_of(self, load: Sequence[Arrival], seconds: float) -> float:
        """The load's share of what the engine can do in ``seconds``."""
        return len(load) / seconds / self.requests_per_s(load) if load else 0.0

    def line(self, load: Sequence[Arrival]) -> dict[str, Any]:
        """In a result."""
        return {
            "requests_per_s": round(self.requests_per_s(load), 4),
            "work_per_s": round(self.work_per_s, 4),
            "pieces": [round(piece, 4) for piece in self.pieces],
            "busy_s": round(self.busy_s, 3),
            "prices": self.prices.line(),
        }


def capacity_of(steps: Sequence[Ran]) -> Capacity:
    """From the steps of an engine that had more chats to serve than it takes at once. Raises `EngineError` for too few.

    Work is counted over all steps, the speed of the machine by the median piece: nearly half of the pieces may be slow because of other
    load.
    """
    model = _model(steps)
    prices = _prices(model)
    predicted_s = sum(model.predict(step.load) for step in steps)
    work_per_s = sum(prices.step_s(step) for step in steps) / predicted_s if predicted_s > 0.0 else 0.0
    if not work_per_s > 0.0:
        raise EngineError("the engine's steps do not tell what a token costs; give the run more --seconds, or set --rate")
    pieces = [work_per_s * pace for pace in _paces(steps, model)]
    return Capacity(median(pieces), pieces, sum(step.seconds for step in steps), prices)


def _paces(steps: Sequence[Ran], model: LatencyModel) -> list[float]:
    """Predicted over actual seconds of each piece."""
    least_s = sum(step.seconds for step in steps) / PIECES * (1 - 1e-9)
    found: list[float] = []
    predicted_s = actual_s = 0.0
    for step in steps:
        predicted_s, actual_s = predicted_s + model.predict(step.load), actual_s + step.seconds
        if actual_s >= least_s:
            found.append(predicted_s / actual_s)
            predicted_s = actual_s = 0.0
    return found
