"""Entry point: makes our own packages importable, then runs the command line."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def main(arguments: list[str] | None = None) -> None:
    """Run the program on ``arguments`` (the command line's where None) and exit. Ctrl-C ends it without a traceback at any time."""
    try:
        with ending_at_once():
            from harvester.own import claim

            claim()
            from harvester.cli.main import run
        run(arguments)
    except KeyboardInterrupt:
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115  # what is half written stays so
        os._exit(130)


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Let Ctrl-C exit the process at once while modules load, since some of them catch every exception. Main thread only."""
    before = signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
