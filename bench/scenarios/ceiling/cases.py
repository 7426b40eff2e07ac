"""The machines, chat loads and rows that the ceiling is measured with."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bench.harness.load.arrivals import Arrival, read_trace, replay, synthetic
from bench.scenarios.admission.simulated import arxiv
from harvester.policy.model.load import StepLoad
from harvester.sim.cost import GPUS, MODELS, Cost, Machine, kv_blocks, roofline
from harvester.sim.trace import Drawn, Lengths, LogNormal

Chat = Callable[[float, np.random.Generator], list[Arrival]]
MOST_CHAT = (4096, 512)


@dataclass(frozen=True, slots=True)
class Noise:
    """Log-normal factor on step times with a mean of 1 and this ``sigma``. ``stalls``: share of steps that take twice as long."""

    sigma: float
    stalls: float = 0.0

    def over(self, cost: Cost, seed: int) -> Cost:
        """``cost`` with this noise, drawn by ``seed``."""
        rng = random.Random(seed)

        def noisy(load: StepLoad) -> float:
            seconds = cost(load) * math.exp(rng.gauss(0.0, self.sigma) - self.sigma**2 / 2)
            return 2.0 * seconds if rng.random() < self.stalls else seconds

        return noisy


@dataclass(frozen=True, slots=True)
class Case:
    """An engine, its chat and its rows. ``most``: tokens of a row's prompt and of its answer, also its `max_tokens`.

    ``lead_s``: of rows alone before chat comes, so that the latency model is ready.
    """

    cost: Cost
    blocks: int
    slots: int
    step_tokens: int
    block_tokens: int
    layers: int
    chat: Chat
    rows: Lengths
    most: tuple[int, int]
    noise: Noise
    lead_s: float

    def row(self, rng: random.Random) -> tuple[int, int]:
        """(prompt, answer) tokens of one row."""
        prompt, answer = self.rows.draw(rng)
        return min(self.most[0], prompt), max(2, min(self.most[1], answer))


def cpu_s(load: StepLoad) -> float:
    """Seconds of a step of the bench's model on two cores, fitted to real runs of chat alone, rows alone and stock priority."""
    prompts_s = 2.1e-4 * load.prefill_tokens + 1.6e-7 * load.prefill_attention
    return 6e-3 + prompts_s + 6e-4 * load.decode_seqs + 9.4e-7 * load.decode_context


def _cpu(chat: Chat) -> Case:
    rows = Drawn(LogNormal(1407.0, 0.15, 64, 4096), LogNormal(96.0, 0.0, 96, 96))  # the bench's speeches
    return Case(cpu_s, 2048, 32, 2048, 32, 8, chat, rows, (4096, 96), Noise(0.1, 0.005), 60.0)


def _gpu(model: str, gpu: str, rate: float, gpus: int = 1) -> Case:
    """Chat of 1,024 prompt and 128 answer tokens, Poisson; rows are summaries of papers."""
    machine, shape = Machine(GPUS[gpu], gpus), MODELS[model]
    blocks = kv_blocks(shape, machine)
    return Case(
        roofline(shape, machine), blocks, 256, 8192, 16, shape.layers, _poisson(rate, (1024, 128)), arxiv(), (3500, 512), Noise(0.05), 20.0
    )


def _poisson(rate: float, lengths: tuple[int, int]) -> Chat:
    return lambda seconds, draw: synthetic(rate, 1.0, seconds, lengths, draw)


CASES: dict[str, Case] = {
    "cpu_trace": _cpu(lambda seconds, draw: replay(read_trace(), 3.0, seconds, 0.15, MOST_CHAT, draw)),
    "cpu_bursts": _cpu(_poisson(3.0, (160, 32))),
    "8b_a100": _gpu("llama-3.1-8b", "a100-80gb", 4.0),
    "8b_h200": _gpu("llama-3.1-8b", "h200", 10.0),
    "70b_4xh200": _gpu("llama-3.1-70b", "h200", 5.0, gpus=4),
}
