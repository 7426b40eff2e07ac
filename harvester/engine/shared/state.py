"""Shared memory of one replica: what its front end, its engine core and its workers tell each other while a step runs.

One writer for each field, so that no lock is needed: a field is 8 bytes, aligned, and written at once. Times are CLOCK_MONOTONIC, which all
processes of a machine share.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from enum import IntEnum
from pathlib import Path

from harvester.policy.step.preempt import Flight

COEFFICIENTS = 16  # places for those of the latency model
RING = 512
MAX_SAFEPOINTS = 4096  # of a step: a float64 then counts 2**41 steps
DEPTH = 8  # more steps than vLLM ever has in flight


class Field(IntEnum):
    """Places of the shared state. The comment says who writes it."""

    PLANNED = 0  # engine core: number of the step planned last
    ANSWERED = 1  # engine core: number of the step answered last
    ON_DEVICE = 2  # worker 0: the last step that its device is known to have begun
    ABORT_FROM = 3  # front end: of the steps that should end, the first
    ABORT_UPTO = 4  # front end: and the last, written after the first
    ABORT_AT_S = 5  # front end: when it asked
    DECIDED = 6  # worker 0: where all workers end which step, see `decide`
    ENDED_STEP = 8  # worker 0: the last step that was ended
    ENDED_AT_S = 9  # worker 0: when its device had nothing left to do of it
    MARGIN = 10  # engine core: P99 of actual over predicted step time
    READY = 11  # engine core: 1 where the latency model may be used
    SAFEPOINT_S = 12  # worker 0: what one safepoint costs
    SAVE_PROFILE = 13  # front end: raised by one to have the profile written
    SAVED_PROFILE = 14  # engine core: the last such wish that was fulfilled
    ASKED = 15  # front end: how often it asked that steps end
    PLACES = 16  # worker 0: how many safepoints the model has room for; 0: its steps cannot be ended
    YIELD_UNTIL_S = 17  # front end: until then chat waits so long that offline work stands still
    MODEL = 24  # engine core: the first coefficient
    COUNTERS = 40  # engine core: the first of `Count`
    STEPS_S = 120  # engine core: seconds of the last `RING` steps of offline work alone, a ring
    IN_FLIGHT = STEPS_S + RING  # a ring of `DEPTH` steps, each with the places of `StepField`


class StepField(IntEnum):
    """Of one step in flight, from its place in the ring on."""

    ENDABLE = 0  # engine core: 1 where it has safepoints
    ESTIMATE_S = 1  # engine core: how long it takes; 0 where it cannot tell
    BEGAN_STEP = 2  # worker 0: the step that the next field is of
    BEGAN_S = 3  # worker 0: when its host began it, and later when its device did
    BESIDE_CHAT = 4  # engine core: 1 where chat decodes in it
    TPOT_S = 5  # engine core: least promised to that


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
    DETECT_S = 12  # from the signal, or the beginning of the step, to its end, summed
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
    FIRST_TOKENS = 42  # of online requests
    TTFT_S = 43  # summed over those
    TTFT_ALONE_S = 44  # the same, as they would have been without offline work
    GAPS = 45  # between two tokens of online requests
    GAP_S = 46  # summed over those
    GAP_ALONE_S = 47  # the same, as they would have been without offline work
    PREDICTED_ANSWERS = 48  # online answers that ended after their length was predicted
    WITHIN_MEDIAN = 49  # of those, no longer than the predicted median
    WITHIN_HIGH = 50  # no longer than what was predicted that nine of ten would not exceed
    LENGTH_ERROR = 51  # gauge: median of abs(predicted - made) / made of the latest, where there are any
    CHATS_GONE = 52  # online requests that ended without a first token


SIZE = (Field.IN_FLIGHT + DEPTH * len(StepField)) * 8


class SharedState:
    """Reads and writes fields as floats: ``board[Field.STEP]``."""

    def __init__(self, path: Path) -> None:
        """Map the shared state that `make` made. Raises `OSError` where it is gone."""
        self.path = path
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), SIZE)
        self._cells = memoryview(self._map).cast("d")

    @classmethod
    def make(cls) -> SharedState:
        """A new one, all zero, in shared memory where the machine has a folder for it."""
        shared = Path("/dev/shm")
        folder = shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
        handle, name = tempfile.mkstemp(prefix="harvester-state-", dir=folder)
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

    # Steps in flight

    def planned(self, number: int, endable: bool, estimate_s: float, *, beside_chat: bool = False, tpot_s: float = math.inf) -> None:
        """Engine core: the step is about to be sent to the workers. Who reads its number finds the rest set."""
        place = _place(number)
        self._cells[place + StepField.ENDABLE] = float(endable)
        self._cells[place + StepField.ESTIMATE_S] = estimate_s
        self._cells[place + StepField.BESIDE_CHAT] = float(beside_chat)
        self._cells[place + StepField.TPOT_S] = tpot_s
        self._cells[Field.PLANNED] = number

    def told_better(self, number: int, estimate_s: float) -> None:
        """Engine core: the length of a step in flight is known better now."""
        self._cells[_place(number) + StepField.ESTIMATE_S] = estimate_s

    def began(self, number: int, now_s: float, *, on_device: bool) -> None:
        """Worker 0: it begins the step, or its device does."""
        place = _place(number)
        self._cells[place + StepField.BEGAN_S] = now_s
        self._cells[place + StepField.BEGAN_STEP] = number
        if on_device:
            self._cells[Field.ON_DEVICE] = number

    def in_flight(self) -> list[Flight]:
        """Front end: the steps that are planned and not over, oldest first. One that the device has passed is over, answered or not."""
        first = int(max(self._cells[Field.ANSWERED] + 1, self._cells[Field.ON_DEVICE], self._cells[Field.PLANNED] - DEPTH + 1))
        return [self.flight(number) for number in range(first, int(self._cells[Field.PLANNED]) + 1)]

    def flight(self, number: int) -> Flight:
        """One of the last `DEPTH` steps."""
        cells, place = self._cells, _place(number)
        began_s = cells[place + StepField.BEGAN_S] if cells[place + StepField.BEGAN_STEP] == number else None
        endable, estimate_s, beside_chat, tpot_s = (
            cells[place + one] for one in (StepField.ENDABLE, StepField.ESTIMATE_S, StepField.BESIDE_CHAT, StepField.TPOT_S)
        )
        return Flight(number, bool(endable), began_s, estimate_s, bool(beside_chat), tpot_s)

    def ask_to_end(self, first: int, now_s: float) -> None:
        """Front end: the steps in flight from ``first`` on should end at their next safepoint."""
        self._cells[Field.ABORT_AT_S] = now_s
        self._cells[Field.ABORT_FROM] = first
        self._cells[Field.ABORT_UPTO] = self._cells[Field.PLANNED]
        self._cells[Field.ASKED] += 1

    def should_end(self, number: int) -> bool:
        """Workers: whether the step was asked to end."""
        return bool(self._cells[Field.ABORT_FROM] <= number <= self._cells[Field.ABORT_UPTO])

    def decide(self, number: int, safepoint: int) -> None:
        """Worker 0: all workers end the step at this safepoint. One store, since others may see two in another order (ARM)."""
        assert safepoint < MAX_SAFEPOINTS
        self._cells[Field.DECIDED] = number * MAX_SAFEPOINTS + safepoint

    def decided(self, number: int) -> int | None:
        """Workers: the safepoint at which the step ends; None: nothing was decided of it."""
        step, safepoint = divmod(int(self._cells[Field.DECIDED]), MAX_SAFEPOINTS)
        return safepoint if step == number else None

    def remove(self) -> None:
        """Take its name away; processes that have mapped it go on."""
        self.path.unlink(missing_ok=True)


def _place(number: int) -> int:
    return int(Field.IN_FLIGHT) + number % DEPTH * len(StepField)
