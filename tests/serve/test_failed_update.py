"""A rolling update that Serve has given up is tried again by the next server, and a replica that runs is left alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.serve


def test_the_next_server_tries_a_failed_update_again_and_leaves_one_that_went_well(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "tests.serve.failed_update", str(tmp_path / "broken")]
    done = subprocess.run(program, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"is_new": True, "stays": True}
