"""How the engine core and its workers poll for each other's messages where cores are few.

vLLM's message queue polls shared memory, and for a second after each message only yields the core between two polls (``sched_yield``).
The kernel counts such a core as busy. Where all cores are in use, another process on that core (the HTTP server, a client) may wait in its
run queue until the answer is complete. So we sleep between polls, for a sixteenth of the time already waited and at most 0.2 ms: that frees
the core, and delays a step by no more. A step of offline work alone keeps nobody waiting. The time at which its answer is due is told
beforehand, and around that time the queue is polled as vLLM does. GPU machines have cores enough and keep vLLM's polling.
"""

from __future__ import annotations

import os
import time

SHARE = 16  # one sleep is the time already waited, divided by this
MAX_S = 0.0002
MIN_S = 0.00001
NEW_WAIT_S = 0.001  # two polls further apart than this belong to different waits
EARLY, LATE = 0.85, 1.15  # the answer is expected between these multiples of the predicted step time
SLACK_S = 0.0005  # added to the late end: the time from planning a step to its start


class PollBackoff:
    """Called between two polls; sleeps. In the first ``spin_s`` of a wait and around an expected answer it only yields, as vLLM does."""

    def __init__(self, spin_s: float = 0.0) -> None:
        self._spin_s = spin_s
        self._began_s = 0.0
        self._looked_s = float("-inf")
        self._due_s = (float("inf"), float("inf"))

    def expect(self, now_s: float, seconds: float) -> None:
        """An answer is due about ``seconds`` after ``now_s``, and nobody else needs the core: poll without sleeping around then.

        Holds until the next call. 0 seconds: the step time is unknown, or others need the core.
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
