"""Shared memory of one replica, through which front end, engine core and workers tell each other about the steps in flight.

One writer for each field, so that no lock is needed: a field is 8 bytes, aligned, and written at once. Times are CLOCK_MONOTONIC, which all
processes of a machine share.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from pathlib import Path

from harvester.policy.step.preempt import Flight

PREFIX = "harvester-state-"
YOUNG_S = 60.0  # age up to which a file may not be locked yet
COEFFICIENTS = 16  # fields reserved for the latency model's
RING = 512
MAX_SAFEPOINTS = 4096  # in a step; leaves room for 2**41 step numbers in a float64
DEPTH = 8  # more steps than vLLM ever has in flight
LENGTHS = 21  # requests of 1, 2, 4 .. 2**20 tokens, for each of which the KV blocks are told


class Field(IntEnum):
    """Index of each field in the shared state. Its comment names the writer first."""

    PLANNED = 0  # engine core: number of the step planned last
    ANSWERED = 1  # engine core: number of the step answered last
    ON_DEVICE = 2  # worker 0: the last step that its device is known to have begun
    ABORT_FROM = 3  # front end: the first step that should end early
    ABORT_UPTO = 4  # front end: the last such step, written after the first
    ABORT_AT_S = 5  # front end: when it asked for that
    DECIDED = 6  # worker 0: the step that all workers end, and at which safepoint; see `decide`
    ENDED_STEP = 8  # worker 0: the last step that ended early
    ENDED_AT_S = 9  # worker 0: when its device had none of that step's work left
    MARGIN = 10  # engine core: P99 of actual over predicted step time
    READY = 11  # engine core: 1 where the latency model may be used
    SAFEPOINT_S = 12  # worker 0: what one safepoint costs
    SAVE_PROFILE = 13  # front end: incremented to have the profile written
    SAVED_PROFILE = 14  # engine core: the last such request that was served
    ASKED = 15  # front end: how often it asked steps to end
    PLACES = 16  # worker 0: layers at which a safepoint can stand; 0: no step can end early
    YIELD_UNTIL_S = 17  # front end: until when offline work stands still, because chat waits too long
    KV_BLOCKS = 18  # engine core: those of all requests together; 0: `Field.HELD_BLOCKS` is not told
    CHAT_FRESH = 19  # engine core: average share of a chat's prompt that is computed, and not found in the prefix cache
    MODEL = 24  # engine core: the first coefficient of the latency model
    COUNTERS = 40  # engine core: the first field of `Count`
    STEPS_S = 120  # engine core: seconds of the last `RING` steps of offline work alone, a ring
    IN_FLIGHT = STEPS_S + RING  # a ring of `DEPTH` steps, each with the fields of `StepField`
    HELD_BLOCKS = IN_FLIGHT + 8 * DEPTH  # engine core: KV blocks that a request holds, for each of `LENGTHS`


class StepField(IntEnum):
    """Fields of one step in flight, as offsets from its place in the ring."""

    ENDABLE = 0  # engine core: 1 if it has safepoints
    ESTIMATE_S = 1  # engine core: predicted duration; 0: unknown
    BEGAN_STEP = 2  # worker 0: number of the step that the next field belongs to
    BEGAN_S = 3  # worker 0: when its host began it, and later when its device did
    BESIDE_CHAT = 4  # engine core: 1 where chat decodes in it
    TPOT_S = 5  # engine core: the tightest TPOT SLO of that chat


class Count(IntEnum):
    """Counters and gauges of the engine core, from `Field.COUNTERS` on."""

    STEPS = 0
    OFFLINE_STEPS = 1  # with offline work alone
    MIXED_STEPS = 2  # with both
    ONLINE_TOKENS = 3
    OFFLINE_TOKENS = 4
    ENDED_STEPS = 5
    TAKEN_BACK_TOKENS = 6  # planned in steps that were rolled back
    PREEMPTED = 7  # offline requests that lost their KV to an arrival
    PAUSED_STEPS = 8  # offline requests left out of a step, summed over steps
    BUDGET_TOKENS = 9  # gauge: offline token budget of the last step with online work
    ERROR_P50 = 10  # gauge: actual over predicted step time
    ERROR_P99 = 11  # gauge
    DETECT_S = 12  # seconds from the signal, or the later start of the step, to its end, summed
    DETECTED = 13  # number of those
    BUSY_S = 14  # seconds in steps
    HARVESTED_S = 15  # seconds in steps with offline work alone
    RESERVED_SLOTS = 16  # gauge
    RESERVED_BLOCKS = 17  # gauge
    STORED_BLOCKS = 18  # copied to host memory
    LOADED_BLOCKS = 19  # copied back
    STORED_BYTES = 20  # of all ranks
    LOADED_BYTES = 21
    STORE_S = 22  # seconds of copying, of all ranks
    LOAD_S = 23
    FAILED_COPIES = 24  # copy jobs, in either direction
    WAITED_BLOCKS = 25  # stored while a step waited
    HOST_BLOCKS = 26  # gauge
    HOST_BYTES = 27  # gauge
    COVERED_BLOCKS = 28  # gauge: of running requests
    LAG_TOKENS = 29  # gauge: computed tokens of running requests that are not covered
    RESUMED = 30  # preempted requests that run again
    RESUMED_WHOLE = 31  # of those, with all full blocks back
    LOST_TOKENS = 32  # whose KV was taken from requests
    EDGE_TOKENS = 33  # of those, recomputed because they filled a block only partly
    UNCOVERED_TOKENS = 34  # recomputed because they were not copied, or were evicted from host memory
    FAILED_TOKENS = 35  # recomputed because their copy failed
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
    WITHIN_HIGH = 50  # of those, no longer than the predicted P90
    LENGTH_ERROR = 51  # gauge: median of abs(predicted - made) / made of the latest, where there are any
    CHATS_GONE = 52  # online requests that ended without a first token
    JOBS_S = 53  # of `HARVESTED_S`, the part of jobs by tokens: without flex chat and measurements


SIZE = (Field.HELD_BLOCKS + LENGTHS) * 8


class SharedState:
    """Reads and writes fields as floats: ``shared[Field.PLANNED]``."""

    def __init__(self, path: Path) -> None:
        """Map the shared state that `make` made. Raises `OSError` where it is gone."""
        self.path = path
        self._lock: int | None = None
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), SIZE)
        self._cells = memoryview(self._map).cast("d")

    @classmethod
    def make(cls) -> SharedState:
        """Create one, all zero: in ``/dev/shm`` where that can be written to, else in the folder for temporary files.

        Those of processes that were killed are removed: the lock on a file ends with the process that made it. Raises `OSError`.
        """
        shared = Path("/dev/shm")
        folder = shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
        _remove_left(folder)
        handle, name = tempfile.mkstemp(prefix=PREFIX, dir=folder)
        fcntl.flock(handle, fcntl.LOCK_SH)
        os.posix_fallocate(handle, 0, SIZE)  # a write to a hole would end the process once the folder is full
        made = cls(Path(name))
        made._lock = handle
        return made

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

    def tell_kv(self, blocks: int, blocks_of: Callable[[int], int]) -> None:
        """Engine core: it has so many KV blocks. ``blocks_of``: those that a request holds, by its computed tokens."""
        for place in range(LENGTHS):
            self._cells[Field.HELD_BLOCKS + place] = blocks_of(1 << place)
        self._cells[Field.KV_BLOCKS] = blocks

    def kv_tokens(self, request_tokens: float) -> float | None:
        """Front end: tokens of requests with so many each whose KV all blocks hold; None: not told. Between two lengths by a line."""
        blocks, length = self._cells[Field.KV_BLOCKS], max(1.0, request_tokens)
        place = min(int(length).bit_length(), LENGTHS - 1) - 1
        less, more = self._cells[Field.HELD_BLOCKS + place], self._cells[Field.HELD_BLOCKS + place + 1]
        held = less + (more - less) * (length / (1 << place) - 1.0)
        return blocks * length / held if blocks else None

    # Steps in flight

    def planned(self, number: int, endable: bool, estimate_s: float, *, beside_chat: bool = False, tpot_s: float = math.inf) -> None:
        """Engine core: the step is about to be sent to the workers. Its number is written last: a reader of it finds the rest set."""
        place = _place(number)
        self._cells[place + StepField.ENDABLE] = float(endable)
        self._cells[place + StepField.ESTIMATE_S] = estimate_s
        self._cells[place + StepField.BESIDE_CHAT] = float(beside_chat)
        self._cells[place + StepField.TPOT_S] = tpot_s
        self._cells[Field.PLANNED] = number

    def refine_estimate(self, number: int, estimate_s: float) -> None:
        """Engine core: set a better estimate of how long a step in flight takes."""
        self._cells[_place(number) + StepField.ESTIMATE_S] = estimate_s

    def began(self, number: int, now_s: float, *, on_device: bool) -> None:
        """Worker 0: its host begins the step, or with ``on_device`` its device does."""
        place = _place(number)
        self._cells[place + StepField.BEGAN_S] = now_s
        self._cells[place + StepField.BEGAN_STEP] = number
        if on_device:
            self._cells[Field.ON_DEVICE] = number

    def in_flight(self) -> list[Flight]:
        """Front end: steps planned and not over, oldest first. A step is over once the device has begun a later one, answered or not."""
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
        """Workers: the safepoint at which the step ends; None: not decided."""
        step, safepoint = divmod(int(self._cells[Field.DECIDED]), MAX_SAFEPOINTS)
        return safepoint if step == number else None

    def remove(self) -> None:
        """Unlink the file; processes that have mapped it can go on using it."""
        self.path.unlink(missing_ok=True)
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def _place(number: int) -> int:
    return int(Field.IN_FLIGHT) + number % DEPTH * len(StepField)


def _remove_left(folder: Path) -> None:
    for path in folder.glob(f"{PREFIX}*"):
        with suppress(OSError), path.open("rb") as file:  # another user's, or gone
            if time.time() - os.fstat(file.fileno()).st_mtime > YOUNG_S:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
