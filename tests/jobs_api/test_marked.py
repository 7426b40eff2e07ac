"""A server's processes are found by the mark in their environment, whatever they did to the rest of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from harvester.serve import processes
from harvester.serve.processes import MARK, marked, stop_marked

BLANKS = """
import ctypes
first = ctypes.POINTER(ctypes.c_void_p).in_dll(ctypes.CDLL(None), "environ")[0]
ctypes.memset(first, 0, len(ctypes.string_at(first)))
"""
WAITS = "print('there', flush=True); sys.stdin.read()"


@pytest.mark.skipif(sys.platform != "linux", reason="of /proc")
@pytest.mark.parametrize("does", ["", BLANKS], ids=["nothing", "blanks it"])
def test_a_process_is_found_though_it_has_blanked_the_beginning_of_its_environment(does: str) -> None:
    mark = f"test-{os.getpid()}"
    command = [sys.executable, "-c", f"import sys\n{does}\n{WAITS}"]
    variables = {"FIRST": "blanked", **os.environ, MARK: mark}
    with subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"there\n"
        assert [process.pid for process in marked(mark)] == [child.pid]
        assert stop_marked(mark) == 1
    assert list(marked(mark)) == []


def test_what_one_of_the_processes_starts_while_they_are_stopped_is_stopped_too(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", f"import sys\n{WAITS}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as first, subprocess.Popen(command, stdin=subprocess.PIPE) as late:
        both = [psutil.Process(first.pid), psutil.Process(late.pid)]

        def living(mark: str) -> Iterator[psutil.Process]:
            yield from [process for process in both if process.is_running()][:1]

        monkeypatch.setattr(processes, "marked", living)
        assert stop_marked("mark") == 2
