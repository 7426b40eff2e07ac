"""A server's processes are found by the mark in their environment, whatever they did to the rest of it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

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
