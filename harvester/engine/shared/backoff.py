"""How the engine core and its workers wait for each other where cores are few.

vLLM's message queue polls shared memory and yields the core between two looks (``sched_yield``) for a whole second after each message.
A core that does so looks busy to the kernel: on a machine whose cores are all in use, whoever shares that core (the HTTP server, a
client) may stand in its run queue until the answer is complete. Sleeping a sixteenth of the time already waited, 0.2 ms at most, costs
the step at most that, and gives the core away. Where nobody is kept waiting (a step of offline work alone) the time at which the answer is
due is told beforehand, and around it the queue is polled as vLLM does. On a GPU machine cores are plenty, and vLLM's own way stays.
"""

from __future__ import annotations

import os
import time

SHARE = 16  # of the time already waited, one sleep is this part
MAX_S = 0.0002
MIN_S = 0.00001
NEW_WAIT_S = 0.001  # two looks further apart than this belong to different waits
EARLY, LATE = 0.85, 1.15  # of the seconds that a step is thought to take: when its answer may come
SLACK_S = 0.0005  # later still: what lies between planning the step and its beginning


class PollBackoff:
    """Called between two looks; each call sleeps, but for the first ``spin_s`` of a wait, in which it yields the core as vLLM does."""

    def __init__(self, spin_s: float = 0.0) -> None:
        self._spin_s = spin_s
        self._began_s = 0.0
        self._looked_s = float("-inf")
        self._due_s = (float("inf"), float("inf"))

    def expect(self, now_s: float, seconds: float) -> None:
        """An answer is due about ``seconds`` after ``now_s``, and nobody else is in a hurry: look all the time around then.

        Holds until the next call; 0 seconds: nothing is known, or somebody is.
        """
        self._due_s = (now_s + EARLY * seconds, now_s + LATE * seconds + SLACK_S) if seconds > 0.0 else (float("inf"), float("inf"))

    def __call__(self) -> None:
        now_s = time.monotonic()
        if now_s - self._looked_s > NEW_WAIT_S:
            self._began_s = now_s
        waited_s = now_s - self._began_s
        early_s, late_s = self._due_s
        if waited_s < self._spin_s or early_s <= now_s < late_s:
            os.sched_yield()
        else:
            time.sleep(min(MAX_S, max(MIN_S, waited_s / SHARE)))
        self._looked_s = time.monotonic()
