"""A function in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from harvester.engine.processes.in_subprocess import run_in_process
from harvester.errors import EngineError, UsageError

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

PATIENCE_S = 240.0  # a fork server imports vLLM first
SCRIPT = """
import os, sys, time
from pathlib import Path
from harvester.engine.processes.in_subprocess import run_in_process

def work(folder):
    (folder / "pid").write_text(str(os.getpid()))
    try:
        time.sleep(300)
    finally:
        time.sleep(0.5)
        (folder / "cleaned").write_text("")

if __name__ == "__main__":
    import signal
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    run_in_process(work, Path(sys.argv[1]))
"""


def fails(word: str) -> None:
    raise UsageError(word)


def test_it_gives_what_the_function_gives_from_another_process() -> None:
    assert run_in_process(os.getpid) != os.getpid()
    with pytest.raises(UsageError, match="bad"):
        run_in_process(fails, "bad")


def test_a_process_that_dies_by_itself_is_an_error() -> None:
    with pytest.raises(EngineError, match="exit code 7"):
        run_in_process(os._exit, 7)


@pytest.mark.parametrize("tell", [os.kill, os.killpg], ids=["the first alone", "both, as a terminal does"])
def test_told_to_end_it_ends_the_other_process_which_cleans_up(tmp_path: Path, tell: Callable[[int, int], None]) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with subprocess.Popen([sys.executable, str(script), str(tmp_path)], stderr=subprocess.DEVNULL, start_new_session=True) as one:
        pid = _read(tmp_path / "pid")
        tell(one.pid, signal.SIGTERM)
        assert one.wait(PATIENCE_S) != 0
    assert (tmp_path / "cleaned").exists()
    assert not psutil.pid_exists(pid)


def _read(path: Path) -> int:
    until_s = time.monotonic() + PATIENCE_S
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < until_s
        time.sleep(0.05)
    return int(path.read_text())
