"""kill -9 of a whole job process, many times at random moments: at every moment the results are readable and no row is in them twice."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.acceptance
ROWS = 480
KILLS, MOST_KILLS = 8, 80


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": [f"row {i} says {number(i)}" for i in range(ROWS)]}), path, row_group_size=200)
    return path


def fault(state: Path) -> str | None:
    """The oracle, on files alone: what is wrong with the results as anyone may read them now."""
    for part in sorted(state.glob("jobs/*/results/part-*.parquet")):
        try:
            pq.ParquetFile(part).read()
        except (OSError, pa.ArrowException) as error:
            return f"{part.name} cannot be read: {error}"
    seen = rows(state)
    ids = [row_id for row_id, _ in seen]
    if len(ids) != len(set(ids)):
        return "a row is in the results twice"
    if any(not answer.endswith(f"says {number(row_id)}") for row_id, answer in seen):
        return "a row has another row's answer"
    return None


def number(row_id: int) -> int:
    """The number that the row's text says; no two rows have the same."""
    return row_id * 7919 % 1000


def rows(state: Path) -> list[tuple[int, str]]:
    if not list(state.glob("jobs/*/results/part-*.parquet")):
        return []
    found = duckdb.execute(f"SELECT row_id, trim(output) FROM read_parquet('{state}/jobs/*/results/part-*.parquet')").fetchall()
    return [(int(row_id), str(answer)) for row_id, answer in found]


def start(state: Path, source: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.acceptance.child", str(state), str(source), *options]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline().startswith("rows-"), "the child did not start"
    return child


def killed_run(state: Path, source: Path, chance: random.Random, *options: str) -> list[str]:
    """Kill the job at least `KILLS` times, until a kill left only some rows done or the oracle saw a fault. Returns the faults."""
    faults, is_midway, longest_s = list[str](), False, 0.25
    for number in range(MOST_KILLS):
        if number >= KILLS and (is_midway or faults):
            return faults
        child = start(state, source, *options)
        time.sleep(chance.uniform(0.0, longest_s))
        child.kill()
        child.communicate()
        found = fault(state)
        if found:
            faults.append(found)
        else:
            is_midway = is_midway or 0 < len(rows(state)) < ROWS
        longest_s *= 1.0 if is_midway else 1.1
    raise AssertionError(f"none of {MOST_KILLS} kills came in the middle of the job")


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))])
def test_results_are_whole_at_every_kill_and_complete_at_the_end(tmp_path: Path, source: Path, seed: int) -> None:
    state = tmp_path / "state"
    assert killed_run(state, source, random.Random(seed)) == []
    child = start(state, source)
    assert child.wait(60) == 0
    child.communicate()
    assert fault(state) is None
    assert sorted(row_id for row_id, _ in rows(state)) == list(range(ROWS))


def test_the_oracle_catches_publishing_without_the_rename(tmp_path: Path, source: Path) -> None:
    assert any(killed_run(tmp_path / f"state-{seed}", source, random.Random(seed), "--torn") for seed in (1, 2, 3)), (
        "the negative control went unseen: the oracle proves nothing"
    )
