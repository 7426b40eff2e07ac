"""Linux timer slack: how late the kernel may wake a sleeping thread, so that the wake-ups of several threads coincide.

Each of Ray's processes polls for work a hundred times a second. On few cores each wake-up takes time from the threads that compute:
measured on two cores, an idle Ray cluster made a step of the model 5% longer. A message from another process still wakes a thread at once.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

USUAL_S, PATIENT_S = 0.00005, 0.05
PR_SET_TIMERSLACK, PR_GET_TIMERSLACK = 29, 30  # include/uapi/linux/prctl.h


def set_timer_slack(seconds: float) -> None:
    """Set the slack of the calling thread, and of threads and processes that it starts from now on. Does nothing outside Linux."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(max(1, round(seconds * 1e9))), 0, 0, 0)


def timer_slack_s() -> float | None:
    """Timer slack of the calling thread in seconds; None where the system does not report it."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            return float(ctypes.CDLL(None).prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0)) / 1e9
    return None


@contextmanager
def patient_children() -> Iterator[None]:
    """Threads and processes started within the block may be woken up to `PATIENT_S` late."""
    before_s = timer_slack_s()
    set_timer_slack(PATIENT_S)
    try:
        yield
    finally:
        set_timer_slack(USUAL_S if before_s is None else before_s)
