"""A function in a process of its own, which ends when this one is told to."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import psutil

from harvester.engine.processes import forked
from harvester.errors import EngineError

T = TypeVar("T")
PATIENCE_S = 30.0  # for its cleaning up; an engine that is interrupted while it starts may wait for ever
TOLD = (signal.SIGINT, signal.SIGTERM)


def run_in_process(work: Callable[..., T], *given: object, log: Path | None = None) -> T:
    """Run ``work(*given)`` in another process and return its result. For engines, whose metrics can be registered once in a process.

    When interrupted, ends that process too, in which ``work`` sees the same `KeyboardInterrupt`, and waits for it. Raises `EngineError` if
    that process dies by itself. What it prints goes to ``log``, or to stderr if that is None: stdout belongs to the command's own result.
    """
    forked.begin()
    context = forked.ServedContext() if forked.has_begun() else get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(theirs, log, work, given))
    process.start()
    theirs.close()
    try:
        found = ours.recv()
    except EOFError:
        process.join()
        raise EngineError(f"the process of the engine ended with exit code {process.exitcode} and no result") from None
    except BaseException:  # Ctrl-C, or a caller that stops waiting
        process.terminate()
        process.join(PATIENCE_S)
        process.kill()
        raise
    finally:
        process.join()
    if isinstance(found, Exception):
        raise found
    return cast(T, found)


def _work(told: Any, log: Path | None, work: Callable[..., Any], given: tuple[object, ...]) -> None:
    _print_to(log)
    for each in TOLD:
        signal.signal(each, _interrupt)
    with suppress(KeyboardInterrupt):
        try:
            found = work(*given)
        except Exception as error:
            error.add_note(traceback.format_exc())
            found = error
        told.send(found)


def _print_to(log: Path | None) -> None:
    """Send stdout to stderr, or both to ``log``; also for the processes that this one starts."""
    sys.stdout.flush()
    if log is None:
        os.dup2(2, 1)
        return
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def _interrupt(*_: object) -> NoReturn:
    """Interrupt only once: a terminal signals the whole group and `run_in_process` its process, which is cleaning up by then."""
    for each in TOLD:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


def kill(pids: Iterable[int]) -> None:
    """Kill these processes and all that they started; those that are gone are skipped."""
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(pid)
            for process in (*parent.children(recursive=True), parent):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
