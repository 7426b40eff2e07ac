"""Compares two greedy answers as far as floating-point arithmetic allows.

The order of floating-point sums depends on which other requests are in a step, so two likely tokens of nearly the same probability may swap
ranks, in stock vLLM too. How near is near is measured on this machine: stock vLLM computes its own answers a second time, as prompts, with
other kernels and other batches. The tie is twice the most that the lead of a first token over the second changed between the two. An answer
is compared up to its first other token. That token counts as a difference, unless it was within the tie of stock's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harvester.engine.frontend.engine import Top

MAX_TIE = 1.0  # nats; a machine whose sums move by more cannot be verified this way
MIN_COMPARED = 0.25  # least share of the tokens that must be compared; with less, nothing was shown


@dataclass(frozen=True, slots=True)
class Compared:
    """Counts over many answers: all tokens, tokens compared, answers cut off at a tie, answers that differ."""

    answers: int = 0
    tokens: int = 0
    compared: int = 0
    tied: int = 0
    different: int = 0

    @property
    def identical(self) -> bool:
        return self.different == 0 and self.compared >= MIN_COMPARED * self.tokens > 0


def compare(pairs: Iterable[tuple[Sequence[int], Sequence[int]]], tops: Sequence[Sequence[Top]], tie: float) -> Compared:
    """``pairs``: an answer and stock's, at least as long as ``tops`` says; ``tops``: of stock's answers, place by place."""
    answers = tokens = compared = tied = different = 0
    for (ours, stock), top in zip(pairs, tops, strict=True):
        answers, tokens = answers + 1, tokens + len(stock)
        place = first_other(ours, stock)
        compared += len(stock) if place is None else place
        if place is None:
            continue
        near = place < len(ours) and place < len(stock) and lead(top[place], stock[place], ours[place]) <= tie
        tied, different = tied + near, different + (not near)
    return Compared(answers, tokens, compared, tied, different)


def first_other(ours: Sequence[int], stock: Sequence[int]) -> int | None:
    """The first place where they are not the same; None for equal ones."""
    place = next((place for place, pair in enumerate(zip(ours, stock, strict=False)) if pair[0] != pair[1]), None)
    return min(len(ours), len(stock)) if place is None and len(ours) != len(stock) else place


def lead(top: Top, first: int, other: int) -> float:
    """How much likelier ``first`` is than ``other``; infinite where ``other`` is not among the likeliest."""
    return top[first] - top[other] if first in top and other in top else float("inf")


def moved(answer: Sequence[int], once: Sequence[Top], again: Sequence[Top]) -> float:
    """The most that a token's lead over the second likeliest changed between two computations of the same ``answer``."""
    most = 0.0
    for token, top, other in zip(answer, once, again, strict=True):
        rivals = [rival for rival in top if rival != token and rival in other]
        if rivals and token in other:
            second = max(rivals, key=lambda rival: top[rival])
            most = max(most, abs(lead(top, token, second) - lead(other, token, second)))
    return most
