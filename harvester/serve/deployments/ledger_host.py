"""The ledger's process: a Ray actor that opens the ledger, and opens it again if it must."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import ray

from harvester.errors import DamageError, HarvesterError, OwnerError, ReopenError, StorageError
from harvester.logs import LogConfig, write_logs
from harvester.serve.processes import lower_priority
from jobs.config import DeadlineConfig
from jobs.frozen import Frozen
from jobs.ledger.clock import ClockWatch
from jobs.ledger.ledger import Ledger
from jobs.ledger.store.place import Place, PostgresPlace, ledger_place
from jobs.run.client import apply
from jobs.spec import JobPlan, JobView
from jobs.storage.folder import StateFolder, keep_private
from jobs.storage.hold import hold_ledger
from jobs.storage.place import state_folder

if TYPE_CHECKING:
    from harvester.config import ServeConfig

log = logging.getLogger("harvester.ledger")

LOCK_WAIT_S = 20.0
BUSY_S = 1.0
PAUSE_S = 0.05  # if more passes between two calls, no call was waiting
AGAIN_S = 5.0  # between two tries to open a ledger that could not be opened


class LedgerSettings(Frozen):
    """What a ledger is started with. Ray starts the actor again with the same, even if the configuration has changed since."""

    state: Path
    place: Place
    lease_s: float
    deadlines: DeadlineConfig = DeadlineConfig()
    logs: LogConfig = LogConfig()
    storage: str | None = None

    @classmethod
    def of(cls, config: ServeConfig, folder: StateFolder) -> Self:
        return cls(
            state=folder.root,
            place=ledger_place(folder),
            lease_s=config.harvest.lease_s,
            deadlines=config.deadlines,
            logs=config.logs,
            storage=config.storage,
        )

    @classmethod
    def of_earlier(cls, state: str, *given: Any) -> tuple[Self, tuple[Any, ...]]:
        """The settings of an actor that an earlier build started, and what was given after them."""
        named = dict(zip(("place", "lease_s", "deadlines", "logs", "storage"), given, strict=False))
        return cls(state=Path(state), **named), given[len(named) :]


class LedgerHost:
    """The actor. Calls arrive one at a time. A restarted actor, or one that takes over, opens the ledger again and continues.

    If it cannot (storage or database away, disk full), callers get the reason and later calls try again, because Ray does not restart
    an actor whose constructor failed. A ledger that was replaced by another tells every caller so, and decides nothing any more.
    """

    def __init__(self, settings: LedgerSettings | str, *given: Any, takes_over: bool = False) -> None:
        """``given``: the digest of what it is started with. ``takes_over``: from an actor with another digest, whose leases go on.

        Ray starts the actor of an earlier build again with its own arguments: the folder, and the other settings one by one.
        """
        if isinstance(settings, str):
            settings, given = LedgerSettings.of_earlier(settings, *given)
        digest = given[0] if given else ""
        lower_priority()
        keep_private()
        again = ray.get_runtime_context().was_current_actor_reconstructed
        self._opening = _Opening(settings)
        self._digest, self._queue = digest, BusyQueue()
        self._clock = ClockWatch(time.time, time.monotonic)
        self._try_at_s = 0.0
        self._over: OwnerError | None = None
        self._why: HarvesterError | None = None  # why the ledger is not open
        self._ledger: Ledger | None = None
        if again or takes_over:  # the jobs application goes on, and may be in the middle of a submit
            with suppress(HarvesterError):
                self._opened()
        else:
            self._ledger = self._opening.open(new_server=True, wait_s=LOCK_WAIT_S)
            self._opening.folder().forget_unmade({view.id for view in self._ledger.jobs()})

    def digest(self) -> str:
        """Digest of what it was started with."""
        return self._digest

    def call(self, method: str, args: tuple[Any, ...], timed: bool = False) -> Any:
        """`apply` a call to the ledger. ``timed`` is ignored: replicas of an earlier build send it."""
        by_s = self._clock.set_by_s()
        if by_s is not None:
            log.warning("clock_set by_s=%.1f", by_s)
            if self._ledger is not None:
                self._ledger.clock_set(by_s)
        return self._asked(lambda ledger: apply(ledger, method, args, time.time()))

    def submit(self, plan: JobPlan, new: bool) -> tuple[JobView, bool]:
        view, created = self._asked(lambda ledger: ledger.submit(plan, new=new))
        return view, created

    def _asked(self, work: Callable[[Ledger], Any]) -> Any:
        if self._over is not None:
            raise self._over.with_traceback(None)
        began_s = time.monotonic()
        try:
            return work(self._opened())
        except OwnerError as error:
            log.error("ledger_owner %s", error.message)
            self._over = error
            raise
        except ReopenError as error:
            log.warning("ledger_reopen %s", error.message)
            if self._ledger is not None:
                with suppress(StorageError):  # it could not write what it had learnt
                    self._ledger.close()
                self._ledger = None
            self._opened()
            raise
        finally:
            busy_s = self._queue.took(began_s, time.monotonic())
            if busy_s > 0.0 and self._ledger is not None:
                self._ledger.was_busy(busy_s)

    def _opened(self) -> Ledger:
        """The ledger, opened if it is not. If that fails, raises why, for `AGAIN_S` without another try, because callers stand in line."""
        if self._ledger is not None:
            return self._ledger
        if self._why is not None and time.monotonic() < self._try_at_s:
            raise self._why.with_traceback(None)
        try:
            self._ledger, self._why = self._opening.open(new_server=False, wait_s=LOCK_WAIT_S if self._why is None else 0.0), None
        except Exception as error:  # whatever it is: Ray would not start the actor again
            told = f"cannot open the ledger: {type(error).__name__}: {error}"
            self._why = error if isinstance(error, HarvesterError) else StorageError(told)
            self._try_at_s = time.monotonic() + AGAIN_S
            log.error("ledger_closed %s", self._why.message)
            raise self._why from None
        return self._ledger


class BusyQueue:
    """Measures calls that follow each other without a pause: heartbeats wait behind them, however short each of them is."""

    def __init__(self) -> None:
        self._ended_s = float("-inf")
        self._busy_s = 0.0  # since the last pause, and not yet returned by `took`

    def took(self, began_s: float, ended_s: float) -> float:
        """Count a call. Returns the seconds by which leases are to last longer: 0 until `BUSY_S` have come together."""
        if began_s - self._ended_s > PAUSE_S:
            self._busy_s = 0.0
        self._busy_s, self._ended_s = self._busy_s + ended_s - began_s, ended_s
        if self._busy_s <= BUSY_S:
            return 0.0
        log.warning("ledger_busy seconds=%.1f", self._busy_s)
        busy_s, self._busy_s = self._busy_s, 0.0
        return busy_s


class _Opening:
    """Opens the ledger, as often as it must be, with the same settings."""

    def __init__(self, settings: LedgerSettings) -> None:
        self._settings = settings
        self._folder: StateFolder | None = None
        self._opener, self._was_open = secrets.token_hex(4), False
        self._held: int | None = None  # a lock against `harvester repair`, from the first opening to the end of the process

    def folder(self) -> StateFolder:
        if self._folder is None:
            folder = state_folder(self._settings.state, self._settings.storage)
            write_logs(self._settings.logs, folder.logs, "ledger")
            self._folder = folder
        return self._folder

    def open(self, *, new_server: bool, wait_s: float) -> Ledger:
        """Waits up to ``wait_s`` for the lock of a killed owner. Raises `HarvesterError`, `OSError`."""
        folder, deadline_s = self.folder(), time.monotonic() + wait_s
        settings = self._settings
        options: dict[str, Any] = {"deadlines": settings.deadlines, "mirror": folder.mirror}
        place = settings.place
        if isinstance(place, PostgresPlace):
            place = replace(place, opener=self._opener, reopens=self._was_open)
        while True:
            try:
                if self._held is None:
                    self._held = hold_ledger(folder)
                found = Ledger(place, folder.jobs, lease_s=settings.lease_s, now_s=time.time(), new_server=new_server, **options)
            except StorageError as error:
                is_lost = self._was_open and isinstance(error, OwnerError)
                if is_lost or isinstance(error, DamageError) or time.monotonic() > deadline_s:
                    raise
                time.sleep(0.2)
            else:
                self._was_open = True
                return found
