"""Step times of a machine with CUDA graphs, and loads to run on it: an H200 that serves a model of 8 billion parameters.

The truth is `harvester.sim.cost.roofline` with graphs. Weights are read in 4.2 ms, which hides the arithmetic of 155 tokens. A step of
decodes alone is padded to the next size. One prompt token beside them costs 1.3 ms more, no graph another 0.6 ms.
"""

from __future__ import annotations

from random import Random

from harvester.policy.model.graphs import GraphSizes
from harvester.policy.model.latency import LatencyModel, StepLoad
from harvester.policy.model.load import DECODE_CONTEXT, PLAIN_FEATURES
from harvester.sim.cost import GPUS, MODELS, Cost, Machine, roofline

SIZES = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))  # what vLLM captures by default
H200 = Machine(GPUS["h200"], step_s=0.0015)
NOISE = 0.02  # sigma of a log-normal factor of each step
NOISE_P99 = 1.0477  # its 99th percentile: exp(2.326 x NOISE)

GRAPHS = {
    "full and piecewise": GraphSizes(SIZES, SIZES),
    "256 sequences": GraphSizes(SIZES[:35], SIZES),
    "piecewise": GraphSizes((), SIZES),
    "full for decodes only": GraphSizes(SIZES, ()),
    "few sizes": GraphSizes((1, 8, 64, 256), (1, 8, 64, 256)),
}
DEFAULT = GRAPHS["full and piecewise"]


def truth(graphs: GraphSizes = DEFAULT, machine: Machine = H200) -> Cost:
    return roofline(MODELS["llama-3.1-8b"], machine, graphs)


def decodes(random: Random, count: int) -> StepLoad:
    """``count`` sequences with 20 to 4,000 tokens of context, mostly few."""
    mean = random.choice((200, 800, 2000))
    return StepLoad(0, 0.0, count, sum(random.randint(20, 2 * mean) for _ in range(count)), count)


def a_load(random: Random) -> StepLoad:
    """A step of a serving engine. Half of the steps are decodes alone, mostly tens of them. The others have 1 to 4 prompt chunks of 1 to
    1,448 tokens too, which are seldom alone."""
    load = decodes(random, min(400, 1 + int(random.lognormvariate(3.5, 1.0)))) if random.random() < 0.93 else StepLoad()
    if load.tokens == 0 or random.random() < 0.45:
        for _ in range(random.randint(1, 4)):
            load += StepLoad.prefill(int(2 ** random.uniform(0, 10.5)), random.choice((0, 0, random.randint(0, 4000))))
    return load


def learn(model: LatencyModel, cost: Cost, steps: int = 2000, seed: int = 1) -> LatencyModel:
    """``model``, when it has seen so many noisy steps."""
    random = Random(seed)
    for _ in range(steps):
        load = a_load(random)
        model.observe(load, cost(load) * random.lognormvariate(0.0, NOISE))
    return model


class Knower(LatencyModel):
    """The oracle: it predicts the true time, and its margin is the noise's own P99."""

    def __init__(self, cost: Cost, margin: float = NOISE_P99) -> None:
        super().__init__()
        context_s = cost(StepLoad(0, 0.0, 1, 10**9, 1)) - cost(StepLoad(0, 0.0, 1, 10**9 - 1000, 1))
        self._coefficients = [0.0] * PLAIN_FEATURES
        self._coefficients[DECODE_CONTEXT] = context_s / 1000
        self._cost, self._margin = cost, margin
        self._max_tokens = 10**6

    @property
    def ready(self) -> bool:
        return True

    @property
    def margin(self) -> float:
        return self._margin

    def margin_at(self, seconds: float) -> float:
        return self._margin

    def predict(self, load: StepLoad) -> float:
        return self._cost(load)

    def knows(self, load: StepLoad) -> bool:
        return True

    def observe(self, load: StepLoad, seconds: float) -> None:
        """It has nothing to learn."""
