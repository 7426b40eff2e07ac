"""``python -m jobs.sql.forkserver FD SCRATCH``: forks a process for each SQL query. It has imported everything and runs no threads.

For each query a socket arrives over the socket ``FD``; the forked process answers on it. The fork server ends when ``FD`` is closed, and
removes the folder ``SCRATCH`` with the files of its queries, because the process at the other end may have been killed.
`multiprocessing` has a fork server too, but its children import the main module anew, which takes seconds within Ray.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import resource
import shutil
import signal
import socket
import struct
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from connectors.errors import HarvesterError
from jobs.errors import QueryError
from jobs.sql.sandbox import ask, keep

NICE = 5  # behind the API, which answers beside it
GRACE_S = 1.0  # beyond a query's time limit, so that its own interrupt comes first
MAX_ADDRESS_BYTES = 6 << 30  # enforced by the kernel; `jobs.sql.process` holds resident memory to a lower limit
MAX_REPLY_BYTES = 64 << 20
PID, REPLY = struct.Struct(">I"), struct.Struct(">?Q")  # REPLY: whether it is an answer, and its length in bytes


@dataclass(frozen=True, slots=True)
class Request:
    """A query and what it reads: the state folder's parts, and the ledger's ``tables``."""

    state_dir: Path
    tables: dict[str, pa.Table | None]
    query: str
    limit_rows: int
    seconds: float
    scratch: Path  # of this query's process; the caller removes it, since the process may be killed
    kept: Path | None = None  # file for the whole answer, as an Arrow IPC stream; None: the reply holds as much as fits
    min_free_bytes: int = 0  # that must stay free on that file's disk


def main() -> None:  # pragma: no cover  # it and what forks from it are processes of their own
    """Fork one process for each socket that arrives, until the control socket is closed."""
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the children
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the server ends this process
    os.nice(NICE)
    gc.freeze()  # collecting would write to the pages that the children share
    while True:
        _, sockets, _, _ = socket.recv_fds(control, 1, 1)
        if not sockets:
            _wait_for_all()
            shutil.rmtree(sys.argv[2], ignore_errors=True)
            return
        if os.fork() == 0:
            control.close()
            _answer(socket.socket(fileno=sockets[0]))
        os.close(sockets[0])


def _wait_for_all() -> None:  # pragma: no cover
    """Until no query runs; each has an alarm that ends it."""
    with suppress(ChildProcessError):
        while True:
            os.wait()


def _answer(connection: socket.socket) -> None:  # pragma: no cover
    """Tell the process id, take a `Request`, reply and end."""
    try:
        _limit()
        connection.sendall(PID.pack(os.getpid()))
        with connection.makefile("rb") as stream:
            request: Request = pickle.load(stream)  # from the server that started us
        signal.setitimer(signal.ITIMER_REAL, request.seconds + 2 * GRACE_S)  # ends the process, should nobody be left to do it
        tempfile.tempdir = str(request.scratch)
        is_answer, reply = reply_to(request)
        connection.sendall(REPLY.pack(is_answer, len(reply)) + reply)
    finally:
        os._exit(0)


def _limit() -> None:  # pragma: no cover
    resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_BYTES, MAX_ADDRESS_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):  # not every container has it
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")  # first choice of the OOM killer


def reply_to(request: Request) -> tuple[bool, bytes]:
    """Run the query. True and JSON for the client (with ``kept`` its ``rows`` and ``bytes``), or False and the error's code and message."""
    try:
        if request.kept is not None:
            rows = keep(request.state_dir, request.tables.get, request.query, request.kept, request.min_free_bytes, seconds=request.seconds)
            return True, json.dumps({"rows": rows, "bytes": request.kept.stat().st_size}).encode("ascii")
        found = ask(request.state_dir, request.tables.get, request.query, limit_rows=request.limit_rows, seconds=request.seconds)
        columns = [{"name": name, "type": kind} for name, kind in found.columns]
        body = json.dumps({"columns": columns, "rows": found.rows, "is_cut": found.is_cut}, separators=(",", ":"), allow_nan=False)
        if len(body) > MAX_REPLY_BYTES:
            raise QueryError(f"the answer has {len(body) >> 20} MiB as JSON; the limit is {MAX_REPLY_BYTES >> 20}: select less of it")
        return True, body.encode("ascii")
    except HarvesterError as error:
        return False, json.dumps([error.code, error.message]).encode("ascii")
    except (MemoryError, RecursionError) as error:
        return False, json.dumps([QueryError.code, f"the query needs too much memory ({type(error).__name__}); select less"]).encode(
            "ascii"
        )


if __name__ == "__main__":
    main()
