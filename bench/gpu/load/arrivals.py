"""When chats come and how long they are: the loads of ConServe's Figs. 5 and 6. ``trace.json`` is a sample of `bench/traces`."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

TRACE = Path(__file__).with_name("trace.json")


@dataclass(frozen=True, slots=True)
class Chat:
    """``at_s`` after the start; exactly so many tokens in prompt and answer."""

    at_s: float
    prompt_tokens: int
    answer_tokens: int


def trace_load(rate: float, seconds: float, scale: float, most: tuple[int, int], seed: int) -> list[Chat]:
    """``rate`` x ``seconds`` requests sampled from the whole trace, its time rescaled to ``seconds`` (ConServe 6.1, Fig. 5)."""
    trace, rng = json.loads(TRACE.read_text(encoding="utf-8")), random.Random(seed)
    count = min(len(trace["times"]), max(1, round(rate * seconds)))
    chosen = sorted(rng.sample(range(len(trace["times"])), count))
    columns = trace["times"], trace["prompt_tokens"], trace["output_tokens"]
    return [
        Chat(at * seconds, max(4, min(most[0], round(prompt * scale))), max(2, min(most[1], round(answer * scale))))
        for at, prompt, answer in (tuple(column[index] for column in columns) for index in chosen)
    ]


def phased_load(rate: float, phase_s: float, lengths: tuple[int, int], seed: int) -> list[Chat]:
    """Chat, none, and chat again, each for ``phase_s``; Poisson arrivals of one length (ConServe 6.3.1, Fig. 6)."""
    rng, found = random.Random(seed), list[Chat]()
    for begin_s in (0.0, 2 * phase_s):
        at_s = rng.expovariate(rate)
        while at_s < phase_s:
            found.append(Chat(begin_s + at_s, *lengths))
            at_s += rng.expovariate(rate)
    return found
