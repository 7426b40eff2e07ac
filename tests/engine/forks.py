"""The children of these tests, forked from a process that has imported vLLM: `python -m` would import it for each."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from harvester.engine.processes.in_subprocess import run_in_process


def run(module: str, words: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
    """As ``python -m tests.engine.{module} {words}`` with more of the ``environment``. Fails with the end of its ``log``."""
    code = run_in_process(_as_main, f"tests.engine.{module}", list(words), dict(environment or {}), log=log)
    assert code == 0, log.read_text("utf-8", "replace")[-3000:]


def _as_main(module: str, words: list[str], environment: dict[str, str]) -> int:
    os.environ.update(environment)
    sys.argv = [module, *words]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0
