"""Batches: which lesson, how long, how many rows. Step and seed decide a batch wholly."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from bench.demo_model.chat import chat
from bench.demo_model.copying import echo, lead, repeat
from bench.demo_model.documents import Library
from bench.demo_model.fields import extract
from bench.demo_model.labels import classify
from bench.demo_model.sample import Sample

Lesson = Callable[[Library, random.Random, int], Sample]

# Few widths, and as many tokens in every batch: a CPU's matrix kernels are compiled for each shape anew.
WIDTHS = (80, 120, 180, 240, 360, 480, 720, 900, 1200, 1800, 2400, 3600, 7200)
SHORTEST, LONGEST = 64, 7000
LESSONS: dict[str, Lesson] = {"echo": echo, "repeat": repeat, "lead": lead, "classify": classify, "extract": extract, "chat": chat}
# The fewest tokens in which a lesson can be given.
ROOM = {"echo": 64, "repeat": 64, "lead": 110, "classify": 160, "extract": 280, "chat": 64}
MOST_ROOM = {"chat": 300, "classify": 2500, "extract": 4000}


@dataclass(frozen=True, slots=True)
class Stage:
    """``rates``: share of the full learning rates at its first and last step. ``choice_weight``: in the loss, of a token at which an
    answer decides something."""

    steps: int
    shares: dict[str, float]
    rates: tuple[float, float]
    choice_weight: float
    longest: int = LONGEST  # tokens of a sample
    batch_tokens: int = 3600  # more where one row is longer

    def widths(self) -> list[int]:
        """Row lengths, ascending, up to the first that holds the longest sample."""
        widths = [width for width in WIDTHS if self.batch_tokens % width == 0 or width > self.batch_tokens]
        return [width for place, width in enumerate(widths) if place == 0 or widths[place - 1] < self.longest]


# Where an answer begins is what takes the time, and one token of a long answer is all that teaches it: such tokens are given weight, and
# shorter documents at first. Then every length: one that is left out is forgotten.
STAGES = (
    Stage(2000, {"echo": 0.03, "repeat": 0.05, "lead": 0.36, "classify": 0.22, "extract": 0.24, "chat": 0.1}, (1.0, 0.7), 8.0, 1200),
    Stage(6000, {"echo": 0.03, "repeat": 0.05, "lead": 0.4, "classify": 0.19, "extract": 0.23, "chat": 0.1}, (0.7, 0.0), 8.0),
)


def stage_at(stages: tuple[Stage, ...], step: int) -> tuple[Stage, float]:
    """The stage that ``step`` of all steps is in, and how far into it that is, from 0 to 1."""
    for stage in stages:
        if step < stage.steps:
            return stage, step / stage.steps
        step -= stage.steps
    return stages[-1], 1.0


def make_batch(library: Library, stage: Stage, seed: int, step: int) -> tuple[list[Sample], int]:
    """Samples of lengths alike, drawn evenly on a logarithmic scale, and the width that each is to be padded to."""
    rng = random.Random(f"{seed}/{step}")
    widths = stage.widths()
    tokens = SHORTEST * (stage.longest / SHORTEST) ** rng.random()
    place = next(place for place, width in enumerate(widths) if width >= tokens)
    shortest, longest = (widths[place - 1] if place else SHORTEST), min(widths[place], stage.longest)
    samples: list[Sample] = []
    while len(samples) < max(1, stage.batch_tokens // widths[place]):
        sample = _sample(library, stage, rng, int(shortest * (longest / shortest) ** rng.random()))
        if len(sample.ids) <= widths[place]:
            samples.append(sample)
    return samples, widths[place]


def _sample(library: Library, stage: Stage, rng: random.Random, tokens: int) -> Sample:
    fitting = {name: share for name, share in stage.shares.items() if ROOM[name] <= tokens <= MOST_ROOM.get(name, LONGEST)}
    return LESSONS[rng.choices(list(fitting), list(fitting.values()))[0]](library, rng, tokens)
