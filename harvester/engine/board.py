"""Shared memory of one replica: what its front end, its engine core and its workers tell each other while a step runs.

One writer for each field, so that no lock is needed: a field is 8 bytes, aligned, and written at once. Times are CLOCK_MONOTONIC, which all
processes of a machine share.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from enum import IntEnum
from pathlib import Path

COEFFICIENTS = 16  # places for those of the latency model
RING = 512


class Field(IntEnum):
    """Places of the board. The comment says who writes it."""

    STEP = 0  # engine core: number of the running step; 0 between steps
    OFFLINE_ONLY = 1  # engine core: 1 where the running step holds offline work only
    STARTED_S = 2  # engine core
    ESTIMATE_S = 3  # engine core: how long the running step takes; 0 where it cannot tell
    ABORT_STEP = 4  # front end: the step that should end
    ABORT_AT_S = 5  # front end: when it asked
    DECIDED_AT = 6  # worker 0: the safepoint at which all workers end the step, written before the next field
    DECIDED_STEP = 7  # worker 0: the step meant
    ENDED_STEP = 8  # worker 0: the last step that was ended
    ENDED_AT_S = 9  # worker 0
    MARGIN = 10  # engine core: P99 of actual over predicted step time
    READY = 11  # engine core: 1 where the latency model may be used
    SAFEPOINT_S = 12  # worker 0: what one safepoint costs
    SAVE_PROFILE = 13  # front end: raised by one to have the profile written
    SAVED_PROFILE = 14  # engine core: the last such wish that was fulfilled
    COUNTERS = 16  # engine core: the first of `Count`
    MODEL = 64  # engine core: the first coefficient
    STEPS_S = 80  # engine core: seconds of the last `RING` steps of offline work alone, a ring


class Count(IntEnum):
    """Counters and gauges of the engine core, from `Field.COUNTERS` on."""

    STEPS = 0
    OFFLINE_STEPS = 1  # with offline work alone
    MIXED_STEPS = 2  # with both
    ONLINE_TOKENS = 3
    OFFLINE_TOKENS = 4
    ENDED_STEPS = 5
    TAKEN_BACK_TOKENS = 6  # planned in steps that ended early
    PREEMPTED = 7  # offline requests that lost their KV to an arrival
    PAUSED_STEPS = 8  # offline requests left out of a step, summed over steps
    BUDGET_TOKENS = 9  # gauge: offline tokens that the last step beside online work had room for
    ERROR_P50 = 10  # gauge: actual over predicted step time
    ERROR_P99 = 11  # gauge
    DETECT_S = 12  # from the signal to the end of the step, summed
    DETECTED = 13  # how many of those
    BUSY_S = 14  # in steps
    HARVESTED_S = 15  # in steps with offline work alone
    RESERVED_SLOTS = 16  # gauge
    RESERVED_BLOCKS = 17  # gauge
    STORED_BLOCKS = 18  # to host memory
    LOADED_BLOCKS = 19  # back
    STORED_BYTES = 20  # of all ranks
    LOADED_BYTES = 21
    STORE_S = 22  # of copying, of all ranks
    LOAD_S = 23
    FAILED_COPIES = 24  # jobs of a step, or a checkpoint read back
    WAITED_BLOCKS = 25  # stored while a step waited
    HOST_BLOCKS = 26  # gauge
    HOST_BYTES = 27  # gauge
    COVERED_BLOCKS = 28  # gauge: of running requests
    LAG_TOKENS = 29  # gauge: computed tokens of running requests that are not covered
    RESUMED = 30  # preempted requests that run again
    RESUMED_WHOLE = 31  # of those, with all full blocks back
    LOST_TOKENS = 32  # whose KV requests lost
    EDGE_TOKENS = 33  # of those, computed again: of a partly filled block
    UNCOVERED_TOKENS = 34  # not copied, or given up for want of host memory
    FAILED_TOKENS = 35  # copied, but the copy failed
    EVICTED_BLOCKS = 36  # host blocks given up for want of memory
    SWAPPED = 38  # online requests that gave up KV for one whose turn comes sooner
    RESUME_S = 37  # from the start of reading back to the first step, summed
    ONLINE_RUNNING = 39  # gauge: requests of the last step
    OFFLINE_RUNNING = 40  # gauge
    KV_USED = 41  # gauge: share of the KV blocks


SIZE = (Field.STEPS_S + RING) * 8


class Board:
    """Reads and writes fields as floats: ``board[Field.STEP]``."""

    def __init__(self, path: Path) -> None:
        """Map the board that `make` made. Raises `OSError` where it is gone."""
        self.path = path
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), SIZE)
        self._cells = memoryview(self._map).cast("d")

    @classmethod
    def make(cls) -> Board:
        """A new board, all zero, in shared memory where the machine has a folder for it."""
        shared = Path("/dev/shm")
        folder = shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
        handle, name = tempfile.mkstemp(prefix="harvester-board-", dir=folder)
        try:
            os.truncate(handle, SIZE)
        finally:
            os.close(handle)
        return cls(Path(name))

    def __getitem__(self, place: int) -> float:
        return self._cells[place]

    def __setitem__(self, place: int, value: float) -> None:
        self._cells[place] = value

    def add(self, count: Count, value: float) -> None:
        self._cells[Field.COUNTERS + count] += value

    def set(self, count: Count, value: float) -> None:
        self._cells[Field.COUNTERS + count] = value

    def count(self, count: Count) -> float:
        return self._cells[Field.COUNTERS + count]

    def steps_s(self) -> list[float]:
        """Seconds of the latest steps of offline work alone, unordered."""
        count = min(RING, int(self.count(Count.OFFLINE_STEPS)))
        return list(self._cells[Field.STEPS_S : Field.STEPS_S + count])

    def remove(self) -> None:
        """Take its name away; processes that have mapped it go on."""
        self.path.unlink(missing_ok=True)
