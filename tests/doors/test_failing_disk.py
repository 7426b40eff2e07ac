"""A disk that is full or fails under ledger or parts: one line, and nothing is lost. A library makes the calls of the process fail."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.ledger.ledger import Ledger
from jobs.storage.folder import StateFolder
from jobs.testing import ScriptedEngine
from tests.fakes.scripted_job import SLICE_ROWS, ended_job, harvest, opened, results

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler for the library that makes calls fail")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("library") / "failing_disk.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", path, HERE / "failing_disk.c", "-ldl"], check=True)
    return path


def repaired(folder: StateFolder, failing: dict[str, str]) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "harvester", "repair", "--state", str(folder.root)]
    env = os.environ | failing | {"FAIL_ERRNO": str(errno.EIO)}
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=120, check=False)


async def test_repair_puts_a_part_aside_that_the_disk_cannot_read(library: Path, tmp_path: Path) -> None:
    folder, clock, plan = await ended_job(tmp_path, 2)
    flag = tmp_path / "flag"
    flag.touch()
    part = folder.results(plan.spec.id) / "part-000000.parquet"
    done = repaired(folder, {"LD_PRELOAD": str(library), "FAIL_SUFFIX": part.name, "FAIL_FLAG": str(flag), "FAIL_READS": "1"})
    assert done.returncode == 0, done.stderr
    assert f"A part that is damaged or fits no slice was put aside as {part}.damaged" in done.stdout
    again = opened(folder.ledger, folder, clock)
    again.resume(plan.spec.id, clock())
    engine = ScriptedEngine()
    await harvest(again, folder, clock, engine)
    again.check()
    again.close()
    assert engine.calls == SLICE_ROWS
    assert [row["row_id"] for row in results(folder, plan.spec.id)] == [*range(2 * SLICE_ROWS)]


@pytest.mark.parametrize("suffix", ["-wal", ".commits", ".sums", ".sqlite"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=["full", "failing"])
def test_what_was_acknowledged_is_there_whatever_the_disk_did(library: Path, tmp_path: Path, suffix: str, number: int) -> None:
    folder = StateFolder(tmp_path / "state")
    folder.prepare()
    flag = tmp_path / "flag"
    words = [sys.executable, str(HERE / "failing_disk_child.py"), str(folder.root), str(flag)]
    failing = {"LD_PRELOAD": str(library), "FAIL_SUFFIX": suffix, "FAIL_FLAG": str(flag), "FAIL_ERRNO": str(number)}
    done = subprocess.run(words, env=os.environ | failing, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    for name, is_ours, message in told["raised"]:
        assert is_ours, f"{name}: {message}"
        assert "\n" not in message
        assert "harvester repair" not in message, "a disk that fails is no damage"
    assert bool(told["raised"]) == (suffix == "-wal")
    ledger = Ledger(folder.ledger, folder.jobs, lease_s=60.0, now_s=1.0, new_server=True)
    ledger.check()
    found = {view.id for view in ledger.jobs()}
    ledger.close()
    assert set(told["taken"]) <= found
    assert {"job-0", "job-1"} <= found
