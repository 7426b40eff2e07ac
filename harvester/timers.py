"""How late the kernel may wake a sleeping thread (Linux: timer slack), so that those who sleep beside each other wake together.

Ray's processes wake a hundred times a second each to see whether there is anything to do. On few cores, every time costs whoever computes
there: measured on two, an idle Ray cluster made a step of the model 5% longer. What another process sends still wakes at once.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

USUAL_S, PATIENT_S = 0.00005, 0.05
PR_SET_TIMERSLACK, PR_GET_TIMERSLACK = 29, 30  # include/uapi/linux/prctl.h


def set_timer_slack(seconds: float) -> None:
    """Of the calling thread, and of the threads and processes that it starts from now on. Elsewhere than on Linux nothing happens."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(max(1, round(seconds * 1e9))), 0, 0, 0)


def timer_slack_s() -> float | None:
    """Of the calling thread, seconds; None where the system does not tell."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            return float(ctypes.CDLL(None).prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0)) / 1e9
    return None


@contextmanager
def patient_children() -> Iterator[None]:
    """What is started in here may be woken `PATIENT_S` late."""
    before_s = timer_slack_s()
    set_timer_slack(PATIENT_S)
    try:
        yield
    finally:
        set_timer_slack(USUAL_S if before_s is None else before_s)
