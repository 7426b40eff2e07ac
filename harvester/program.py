"""Where the program begins: its own packages first, then what it was asked."""

from __future__ import annotations

import os
import sys


def main(arguments: list[str] | None = None) -> None:
    """Run the program on ``arguments`` (the command line's where None) and exit. Ctrl-C ends it without a traceback at any time."""
    try:
        from harvester.own import claim

        claim()
        from harvester.cli.main import run

        run(arguments)
    except KeyboardInterrupt:
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115  # what is half written stays so
        os._exit(130)
