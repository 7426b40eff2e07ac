"""Small files that become gigabytes are refused with one line, by a process that could not hold them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.doors.bombs import BOMBS, long_entry

PEAK_BYTES = 800 << 20  # of the whole process, whose imports take 200 MB


def opened(path: Path) -> dict[str, Any]:
    environment = {
        **os.environ,
        "ARROW_DEFAULT_MEMORY_POOL": "system",
    }  # Arrow's own pool reserves 1 GiB of addresses at once, which it does not use
    command = [sys.executable, "-m", "tests.doors.bombs", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_with_one_line(tmp_path: Path, name: str) -> None:
    make, expected = BOMBS[name]
    make(tmp_path / name)
    answer = opened(tmp_path / name)
    assert expected in answer["said"]
    assert str(tmp_path / name) in answer["said"] or "slices" in answer["said"]
    assert "\n" not in answer["said"]
    assert answer["peak_bytes"] < PEAK_BYTES


@pytest.mark.parametrize("column", ["text", "Review.Text"])
def test_a_long_entry_of_a_dictionary_is_read_row_by_row(tmp_path: Path, column: str) -> None:
    long_entry(tmp_path / "docs.parquet", column)
    answer = opened(tmp_path / "docs.parquet")
    assert answer["said"] == "read 1"
    assert answer["peak_bytes"] < PEAK_BYTES
