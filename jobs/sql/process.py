"""SQL in processes of their own, each with limits on time, memory and output, killed when over one."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil
import pyarrow as pa

from connectors.errors import HarvesterError, StorageError
from connectors.processes.environment import environment
from jobs.errors import QueryError
from jobs.sql.forkserver import GRACE_S, PID, REPLY, Request
from jobs.sql.scratch import is_scratch, make_scratch

MAX_RESIDENT_BYTES = 3 << 29  # 1.5 GiB; DuckDB's own limit is 1 GB, which its parser and planner do not count
START_S = 60.0  # longest start of the fork server, on a busy machine
LOOK_S = 0.05  # between two looks at a running query
LONG_NICE = 15  # behind short queries
# Without threads: a process that has some cannot be forked safely.
_ENVIRONMENT = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}

# Seconds of CPU that a query has used -> whether it counts as long from now on. By CPU, since a busy machine makes a short one late.
CheckLong = Callable[[float], bool]


class QueryProcesses:
    """Forks a process for each query. Thread-safe; `start` makes the first query as quick as later ones.

    ``marks``: environment variables of the processes, by which a later server finds those of a killed one. ``owner``: part of the name of
    the folder that queries spill to, for `jobs.sql.scratch.forget_scratch`.
    """

    def __init__(self, marks: Mapping[str, str] | None = None, owner: str = "") -> None:
        self._marks = dict(marks or {})
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._owner = owner
        self._count = 0
        self._make_scratch()
        self._end: weakref.finalize[..., QueryProcesses] | None = None

    def start(self) -> None:
        """Start the fork server, without waiting until it answers."""
        with self._lock:
            if self._control is None:
                self._launch()

    def close(self) -> None:
        """End the fork server. A query that runs goes on until its own end."""
        with self._lock:
            self._stop()
        self._close()

    def run(
        self,
        state_dir: Path,
        tables: Mapping[str, pa.Table | None],
        query: str,
        *,
        limit_rows: int,
        seconds: float,
        check_long: CheckLong = lambda cpu_s: False,
        kept: Path | None = None,
        min_free_bytes: int = 0,
    ) -> bytes:
        """The answer, as a JSON object with ``columns``, ``rows`` and ``is_cut`` (`jobs.sql.sandbox.QueryAnswer`).

        With ``kept`` the whole answer is in that file, as an Arrow IPC stream, and the object has ``rows`` and ``bytes``.

        ``check_long`` is called every 50 ms; what it raises ends the query. Raises `QueryError`, also for a query that was killed, and
        `StorageError`.
        """
        scratch = self._claim()
        try:
            with self._connect() as connection:
                asked = Request(state_dir, dict(tables), query, limit_rows, seconds, scratch, kept, min_free_bytes)
                return _Run(connection, seconds, check_long).ask(asked)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _make_scratch(self) -> None:
        self._scratch = make_scratch(self._owner)
        self._close = weakref.finalize(self, shutil.rmtree, self._scratch, ignore_errors=True)

    def _claim(self) -> Path:
        """A new folder for the files of one query."""
        with self._lock:
            if not is_scratch(self._scratch):  # removed as an old temporary file; by now somebody else's may have its name
                self._stop()  # the fork server would remove the folder that it was started with
                self._close.detach()
                self._make_scratch()
            self._count += 1
            scratch = self._scratch / str(self._count)
            scratch.mkdir(mode=0o700)
            return scratch

    def _connect(self) -> socket.socket:
        """A socket whose other end a new process holds. A fork server that died is replaced, once."""
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            for is_last in (False, True):
                if self._control is None:
                    self._launch()
                assert self._control is not None
                try:
                    socket.send_fds(self._control, [b"q"], [theirs.fileno()])
                    return ours
                except OSError as error:
                    self._stop()
                    if is_last:
                        ours.close()
                        raise StorageError(
                            f"no process for SQL can be started: {error.strerror}; its machine is short of processes or memory: try again"
                        ) from error
        raise AssertionError("unreachable")

    def _launch(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "jobs.sql.forkserver", str(theirs.fileno()), str(self._scratch)],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=environment(**_ENVIRONMENT) | self._marks,
                cwd="/",
            )
        self._control = ours
        self._end = weakref.finalize(self, _end, process, ours)

    def _stop(self) -> None:
        if self._end is not None:
            self._end()
        self._control = self._end = None


def _end(process: subprocess.Popen[bytes], control: socket.socket) -> None:
    process.kill()  # first: at the end of ``control`` it would take us for dead and remove the folder that its successor uses
    process.wait()
    control.close()


class _Run:
    """One query on one process, watched from here."""

    def __init__(self, connection: socket.socket, seconds: float, check_long: CheckLong) -> None:
        self._connection = connection
        self._seconds = seconds
        self._check_long = check_long
        self._is_long = False
        self._process: psutil.Process | None = None

    def ask(self, request: Request) -> bytes:
        self._connection.settimeout(LOOK_S)
        began_s = time.monotonic()
        (pid,) = PID.unpack(self._read(PID.size, lambda: self._check_start(time.monotonic() - began_s)))
        try:
            self._process = psutil.Process(pid)
            self._connection.settimeout(START_S)
            self._connection.sendall(pickle.dumps(request, protocol=5))
            self._connection.settimeout(LOOK_S)
            began_s = time.monotonic()
            is_answer, size = REPLY.unpack(self._read(REPLY.size, lambda: self._check(time.monotonic() - began_s)))
            reply = self._read(size, lambda: self._check(time.monotonic() - began_s))
        except (psutil.NoSuchProcess, BrokenPipeError, ConnectionResetError, TimeoutError) as error:
            raise _died() from error
        finally:
            self._kill()
        if not is_answer:
            code, message = json.loads(reply)
            raise next((kind for kind in (QueryError, StorageError) if kind.code == code), HarvesterError)(message)
        return reply

    def _read(self, size: int, look: Callable[[], None]) -> bytes:
        read = bytearray()
        while len(read) < size:
            try:
                some = self._connection.recv(min(size - len(read), 1 << 20))
            except TimeoutError:
                look()
                continue
            if not some:
                raise _died()
            read += some
        return bytes(read)

    def _check_start(self, seconds: float) -> None:
        if seconds > START_S:
            raise StorageError(f"no process for SQL was ready after {START_S:.0f} s; try again when the server's machine is less busy")

    def _check(self, seconds: float) -> None:
        if seconds > self._seconds + GRACE_S:
            raise QueryError(f"the query took more than {self._seconds:.0f} s and was stopped; narrow it with WHERE or LIMIT")
        with suppress(psutil.NoSuchProcess):  # it has ended, and its reply, if any, is on the way
            self._look()

    def _look(self) -> None:
        assert self._process is not None
        if self._process.memory_info().rss > MAX_RESIDENT_BYTES:
            raise QueryError(f"the query took more than {MAX_RESIDENT_BYTES / 2**30:.1f} GiB of memory and was stopped; select less")
        used = self._process.cpu_times()
        if self._check_long(used.user + used.system) and not self._is_long:
            self._is_long = True
            for thread in self._process.threads():  # on Linux each has a niceness of its own
                with suppress(ProcessLookupError):
                    os.setpriority(os.PRIO_PROCESS, thread.id, LONG_NICE)

    def _kill(self) -> None:
        if self._process is not None:
            with suppress(psutil.NoSuchProcess):  # also raised where the process id was reused
                self._process.kill()


def _died() -> QueryError:
    return QueryError("the query ended its process, for want of memory or by its depth; simplify it")
