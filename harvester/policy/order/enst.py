"""Estimated next scheduled time (ENST) of online requests, and the swapping of KV by it (FastServe 4.2).

A request's KV is needed only when its turn comes. Where an arrival finds no KV, the request whose turn comes last gives up its own. KV was
copied to the host in that order while the engine worked, so that giving it up only frees blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

HYSTERESIS = 2.0  # a victim's turn must come so many times as late as the waiting one's, or KV would be swapped out and in


@dataclass(frozen=True, slots=True)
class Resident:
    """An online request that holds KV. ``blocks``: it holds; ``unsaved``: of those, not on the host."""

    name: str
    enst_s: float
    blocks: int
    unsaved: int


def enst(
    levels: Mapping[str, int], promote_s: Mapping[str, float], counts: Sequence[int], quantum_s: float, batch: int
) -> dict[str, float]:
    """Seconds until each request is scheduled next: min(T_promote, T_execute); O(requests asked for + levels).

    ``levels``: its queue, 0 first served; ``promote_s``: seconds until starvation brings it to the front; ``counts``: of all requests by
    queue; ``quantum_s``: of queue 0, doubled in each next; ``batch``: requests of a step. T_execute is the time that all in higher queues
    take to sink to its own, ``batch`` at once.
    """
    execute_s, above = [0.0], counts[0]
    for level in range(1, len(counts)):
        execute_s.append(execute_s[-1] + above * quantum_s * 2 ** (level - 1) / max(1, batch))
        above += counts[level]
    return {name: min(max(0.0, promote_s[name]), execute_s[level]) for name, level in levels.items()}


def swap_out(residents: Sequence[Resident], need_blocks: int, waiting_enst_s: float, copy_s: float, save_blocks: int) -> tuple[str, ...]:
    """Victims, the latest turn first, that free ``need_blocks`` for a request whose turn comes in ``waiting_enst_s``; empty where they
    cannot.

    ``copy_s``: to read a block back; ``save_blocks``: maximum unsaved blocks that the step waits for. A victim's turn must come later than
    the waiting one's by the hysteresis and the time to read its KV back, and its unsaved blocks must be within ``save_blocks``: nothing is
    computed again.
    """
    chosen: list[str] = []
    for one in sorted(residents, key=lambda one: -one.enst_s):
        if need_blocks <= 0:
            break
        saved = one.unsaved + 1  # and the partly filled one
        if one.enst_s <= HYSTERESIS * waiting_enst_s + one.blocks * copy_s or saved > save_blocks:
            continue
        chosen.append(one.name)
        need_blocks -= one.blocks
        save_blocks -= saved
    return tuple(chosen) if need_blocks <= 0 else ()
