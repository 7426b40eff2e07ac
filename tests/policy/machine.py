"""A machine to learn: true step times of known coefficients, with noise, and loads to run on it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from harvester.policy.model.latency import LatencyModel, StepLoad, predict_with

CPU = (2e-3, 1.5e-4, 0.0, 0.0, 0.0, 2e-8, 5e-8, 1e-4)
GPU = (8e-3, 0.0, 0.0, 2.7e-5, 0.0, 2e-10, 4e-8, 1e-5)  # flat to 256 tokens, then linear


def a_load(random: Random) -> StepLoad:
    """1 to 64 decodes and, in half of the steps, a prompt chunk."""
    decodes = random.randint(1, 64)
    context = sum(int(10 + 1991 * random.random()) for _ in range(decodes))  # `randint` takes five times as long
    load = StepLoad(0, 0.0, decodes, context, decodes)
    chunk = random.choice((16, 64, 128, 256, 512, 1024, 2048)) if random.random() < 0.5 else 0
    return load + StepLoad.prefill(chunk, random.randint(0, 3000))


def steps(
    coefficients: tuple[float, ...], count: int, noise: float, seed: int = 1, pace: Callable[[int], float] = lambda step: 1.0
) -> list[tuple[StepLoad, float]]:
    """``count`` loads with their seconds; ``noise``: sigma of a log-normal factor; ``pace``: how much slower the machine is at a step."""
    random = Random(seed)
    loads = [a_load(random) for _ in range(count)]
    return [(load, predict_with(coefficients, load) * pace(i) * random.lognormvariate(0.0, noise)) for i, load in enumerate(loads)]


def a_model(coefficients: tuple[float, ...] = CPU, noise: float = 0.0, count: int = 300, seed: int = 1) -> LatencyModel:
    """One that has seen ``count`` steps."""
    model = LatencyModel()
    for load, seconds in steps(coefficients, count, noise, seed):
        model.observe(load, seconds)
    return model
