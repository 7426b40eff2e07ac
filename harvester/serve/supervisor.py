"""Keep a server alive: run one session after another, each with a cluster of its own, with a growing backoff between them."""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from harvester.errors import EngineError, HarvesterError, StorageError
from harvester.serve.ingress.front import Front
from harvester.serve.processes import stop_marked
from harvester.serve.session import Deployment, run_session

START_TRIES = 6  # while the server was never ready because Ray itself did not start
FIRST_WAIT_S, MAX_WAIT_S = 1.0, 30.0
WELL_S = 30.0  # a server that was ready for so long is started again at once
STOP_MARGIN_S = 30.0  # on top of `drain_s`
POLL_S = 0.1
END_S = 10.0  # for the session's process to exit, once it has said why it ends

OnEvent = Callable[[str, dict[str, Any]], None]


class Supervisor:
    """Runs sessions. ``on_ready`` is called each time the server gets ready, with the seconds it was not (at first: since ``began_s``)."""

    def __init__(
        self, deployment: Deployment, front: Front | None, on_event: OnEvent, on_ready: Callable[[float], None], began_s: float
    ) -> None:
        self._deployment = deployment
        self._front = front
        self._on_event = on_event
        self._on_ready = on_ready
        self._was_ready = False
        self._ready_s: float | None = None  # when this session was ready
        self._shut_s = began_s  # since when the server has not answered
        self._failures = 0

    def run(self, stop: threading.Event, hurry: threading.Event) -> None:
        """Run sessions until ``stop`` is set, and open requests have ended or ``hurry`` is set.

        Raises `HarvesterError` if the server never was ready.
        """
        if self._front is not None:
            self._front.forget()
        while not stop.is_set():
            self._ready_s = None
            failure = self._session(stop, hurry)
            if stop.is_set():
                return
            wait_s = self._wait_s(time.monotonic())
            self._report(failure, wait_s)
            self._clear()
            stop.wait(wait_s)

    def _wait_s(self, now_s: float) -> float:
        """Backoff before the next session: 0 after a session that was ready for `WELL_S`, else doubled with each one."""
        if self._ready_s is not None:
            self._shut_s = now_s
            if now_s - self._ready_s >= WELL_S:
                self._failures = 0
                return 0.0
        self._failures += 1
        return min(MAX_WAIT_S, FIRST_WAIT_S * float(2 ** (self._failures - 1)))

    def _session(self, stop: threading.Event, hurry: threading.Event) -> HarvesterError | str:
        """Run one session. Returns what ended it: an error of ours, or what happened to Ray."""
        process, ours = self._start()
        failure: HarvesterError | str | None = None
        asked, patience_s = 0, float("inf")
        try:
            while failure is None and time.monotonic() < patience_s:
                try:
                    told = ours.recv() if ours.poll(POLL_S) else None
                except (EOFError, OSError):  # it has ended, maybe within a message
                    break
                failure = None if told is None else self._handle(*told)
                if stop.is_set() + hurry.is_set() > asked:
                    asked += 1
                    process.terminate()
                    patience_s = time.monotonic() + STOP_MARGIN_S + (self._deployment.config.drain_s if asked == 1 else 0.0)
                    if asked == 1:
                        self._on_event("stopping", {})
        except BaseException:  # of who is told: the server ends
            process.kill()
            raise
        finally:
            _end(process)
        return failure or "the process that runs the cluster has died"

    def _start(self) -> tuple[BaseProcess, Connection]:
        context = multiprocessing.get_context("fork")  # from a process that has loaded nothing and has no threads
        ours, its = context.Pipe(duplex=False)
        process = context.Process(target=run_session, args=(self._deployment, self._front, its), name="harvester-session")
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # until the session listens to it
        process.start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        its.close()
        return process, ours

    def _handle(self, kind: str, given: Any) -> HarvesterError | str | None:
        """Handle a message of the session. Returns why it ends, if it says so."""
        match kind:
            case "ready":
                self._was_ready = True
                self._ready_s = time.monotonic()
                self._on_ready(self._ready_s - self._shut_s)
            case "failed" | "lost":
                return _named(given, self._deployment)
            case _:
                self._on_event(kind, {"message": given})
        return None

    def _report(self, failure: HarvesterError | str, wait_s: float) -> None:
        """Warn that the session failed. Raises if another try is useless."""
        message = failure if isinstance(failure, str) else failure.message
        if not self._was_ready and isinstance(failure, HarvesterError):
            raise failure
        if not self._was_ready and self._failures >= START_TRIES:
            raise EngineError(f"Ray did not start in {START_TRIES} tries, the last time: {message}; see logs/ray in the state folder")
        when = f"in {wait_s:g} s" if wait_s else "now"
        self._on_event("warning", {"message": f"{message}; starting again {when}"})

    def _clear(self) -> None:
        """End what is left of the cluster; the port answers 503 from here on."""
        if self._front is not None and self._was_ready:
            self._front.hold()
        stop_marked(self._deployment.mark, keep=self._front.own if self._front is not None else set())
        if self._front is not None:
            self._front.forget()


def _end(process: BaseProcess) -> None:
    process.join(END_S)
    if process.is_alive():
        process.kill()
        process.join()


def _named(given: HarvesterError | OSError | str, deployment: Deployment) -> HarvesterError | str:
    if isinstance(given, OSError):
        return StorageError(f"the server cannot use state folder {deployment.folder.root}: {given.strerror or given}; free space there")
    return given
