"""What it takes to start the program: few modules for what is asked often, and an end without a traceback whenever that comes."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

HEAVY = {"pyarrow", "duckdb", "numpy", "pydantic", "httpx", "jsonschema", "yaml", "fsspec", "torch", "vllm", "ray", "transformers"}
LOADED = """import sys
from harvester.program import main
try:
    main({words!r})
except SystemExit:
    print(*sys.modules, sep="\\n", file=sys.stderr)
"""
SLOW = """import builtins, time
real = builtins.__import__
begun = []
def late(*words, **named):
    if not begun:
        begun.append(True)
        print("begun", flush=True)
    time.sleep(0.02)
    return real(*words, **named)
from harvester.program import main
builtins.__import__ = late
main(["jobs"])
"""
CATCHING = """import signal
from harvester import own, program
def claim():
    try:
        print("begun", flush=True)
        signal.pause()
    except BaseException:
        print("caught", flush=True)
own.claim = claim
program.main(["--version"])
"""


@pytest.mark.parametrize("words", [["--version"], ["--help"]], ids=["version", "help"])
def test_what_needs_no_table_loads_no_library_of_tables(words):
    done = subprocess.run([sys.executable, "-P", "-c", LOADED.format(words=words)], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    assert loaded & HEAVY == set()
    assert len(done.stderr.split()) < 250


def test_jobs_are_listed_without_a_library_of_tables_but_arrow(tmp_path):
    words = ["--state", str(tmp_path), "jobs"]
    done = subprocess.run([sys.executable, "-P", "-c", LOADED.format(words=words)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("No jobs yet")
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    assert "pyarrow" in loaded
    assert loaded & {"duckdb", "fsspec", "jsonschema", "torch", "vllm", "ray", "transformers"} == set()


@pytest.mark.parametrize("program", [SLOW, CATCHING], ids=["slow", "a module that catches everything"])
def test_ctrl_c_while_modules_are_loaded_ends_without_a_traceback(program):
    command = [sys.executable, "-P", "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert process.returncode in (130, -signal.SIGINT)
    assert "Traceback" not in said
