"""An embedded server for one command: started if no server answers, stopped afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from harvester.cli.client import Client
from harvester.cli.invocation import Invocation
from harvester.cli.slow import said_if_slow
from harvester.errors import EngineError, HarvesterError, StorageError, UnreachableError
from harvester.ports import free_port
from jobs.storage.folder import StateFolder

START_S = 900.0  # a large model may load for minutes
STOP_S = 30.0


class EmbeddedServer:
    """``harvester serve`` as a child in a process group of its own, its output in ``STATE/logs/server.log``.

    Entering starts it and waits until it answers; raises `EngineError` with the `last_word` of its log if it dies or never answers. Leaving
    stops it. ``command`` replaces the program and its arguments up to the options.
    """

    def __init__(
        self,
        state_dir: Path,
        model: str | None = None,
        command: Sequence[str] | None = None,
        poll_s: float = 0.25,
        start_s: float = START_S,
    ) -> None:
        self.log = server_log(state_dir)
        self._state = state_dir.resolve()
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._command = [
            *(command or (sys.executable, "-P", "-m", "harvester", "serve")),
            "--state",
            str(state_dir),
            "--port",
            str(port),
            "--json",
        ]
        self._command += ["--model", model] if model else []
        self._poll_s = poll_s
        self._start_s = start_s
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            StateFolder(self._state).prepare()
            with open(self.log, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as output:
                self._process = subprocess.Popen(
                    self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
                )
        except OSError as error:
            raise StorageError(
                f"cannot start a server with its log in {self.log}: {error.strerror}; choose a folder with --state"
            ) from error
        try:
            with said_if_slow("Waiting for the embedded server"):
                self._wait(self._process)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Ask it to end, and kill its process group after `STOP_S`. Does nothing if it has ended."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            _kill_group(process)
        except BaseException:  # a second Ctrl-C: do not wait
            _kill_group(process)
            raise

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        end_s = time.monotonic() + self._start_s
        with Client(self.url) as client:
            while time.monotonic() < end_s:
                if process.poll() is not None:
                    raise EngineError(f"the embedded server did not start: {last_word(self.log)}; its log is {self.log}")
                try:
                    if Path(client.server().state).resolve() == self._state:  # and not another server that took the port meanwhile
                        return
                except UnreachableError:
                    pass
                time.sleep(self._poll_s)
        raise EngineError(f"the embedded server was not ready after {self._start_s:.0f} s: {last_word(self.log)}; its log is {self.log}")


def server_log(state_dir: Path) -> Path:
    return StateFolder(state_dir).logs / "server.log"


@contextmanager
def serving(here: Invocation, model: str | None, say: Callable[[str], None]) -> Iterator[tuple[Client, bool]]:
    """A client of the server, or of an embedded one if none answers and the user named none; and whether it is embedded."""
    client = _reach(here, say)
    if client is not None:
        with client:
            yield client, False
        return
    say(f"No server answers at {here.url}: starting an embedded one for this command (its log: {server_log(here.state_dir)})")
    with _ending_on_signals():
        began_s = time.monotonic()
        with EmbeddedServer(here.state_dir, model) as server, Client(server.url) as client:
            say(f"Ready after {time.monotonic() - began_s:.0f} s with model {client.server().model}")
            yield client, True
            say("Stopping the embedded server")


def _reach(here: Invocation, say: Callable[[str], None], poll_s: float = 0.25) -> Client | None:
    """A client of the server; waits for one that is starting. None if there is no server and the user named none."""
    end_s: float | None = None
    while True:
        try:
            return here.reach()[0]
        except UnreachableError:
            if here.url_given or (end_s is not None and time.monotonic() >= end_s):
                raise
        if not StateFolder(here.state_dir).is_served():
            return None
        if end_s is None:
            end_s = time.monotonic() + START_S
            say(f"A server is starting or stopping on {here.state_dir}: waiting for it")
        time.sleep(poll_s)


def last_word(log: Path) -> str:
    """The last ``error:`` line of a log, else its last line that is not blank."""
    try:
        lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    named = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return [*lines, *named][-1][:300] if lines else "it said nothing"


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


@contextmanager
def _ending_on_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exception, so that the child does not outlive this process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def unwind(number: int, frame: FrameType | None) -> Any:
        raise HarvesterError(f"stopped by {signal.Signals(number).name}")

    before = {number: signal.signal(number, unwind) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
