"""The demo as a newcomer runs it, and the commands that it leaves."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]


def run(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_the_demo_compares_chat_draws_a_picture_and_its_next_commands_work() -> None:
    told = run(sys.executable, "examples/demo.py")
    assert re.search(r"^demo: ok rows=32 errors=0 right=32 ", told, re.MULTILINE)
    assert len(re.findall(r"^chat P99 alone \d+ ms, with the job \d+ ms \(", told, re.MULTILINE)) == 2
    picture = ROOT / told.partition("picture: ")[2].splitlines()[0]
    assert picture.read_bytes().startswith(b"\x89PNG")
    results, query, serve = (line.strip() for line in told.partition("Next:\n")[2].splitlines()[:3])
    assert run("bash", "-c", results)
    assert "output" in run("bash", "-c", query)
    server = subprocess.Popen(shlex.split(serve, comments=True), cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        assert any(line.startswith("Ready after") for line in server.stdout)
    finally:
        server.terminate()
        server.wait(60)
        if server.stdout is not None:
            server.stdout.close()
