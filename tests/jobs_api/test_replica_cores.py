"""Which cores each replica of a CPU machine computes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harvester.serve.machine.cores import allowed_cores, claim_part, on_own_cores, share

CORES = [[0, 4], [1, 5], [2, 6], [3, 7]]


@pytest.mark.parametrize(
    ("replicas", "shares"),
    [
        pytest.param(1, [{0, 1, 2, 3, 4, 5, 6, 7}], id="one has all"),
        pytest.param(2, [{0, 4, 1, 5}, {2, 6, 3, 7}], id="two have whole cores"),
        pytest.param(3, [{0, 4}, {1, 5}, {2, 6, 3, 7}], id="three have all between them"),
        pytest.param(5, [{0, 4}, {1, 5}, {2, 6}, {3, 7}, {0, 4}], id="more than cores take turns"),
    ],
)
def test_each_replica_has_cores_of_its_own(replicas: int, shares: list[set[int]]) -> None:
    assert [share(CORES, part, replicas) for part in range(replicas)] == shares
    assert share(CORES, replicas + 1, replicas) == shares[1 % replicas], "of a replica more than there are parts"


def test_a_replica_has_the_lowest_part_that_no_other_has(tmp_path: Path) -> None:
    claim = f"claim_part(Path({str(tmp_path)!r}), 'chat', 2, otherwise=7)"
    script = f"import sys; from pathlib import Path; from harvester.serve.machine.cores import claim_part; print({claim}, flush=True)"
    command = [sys.executable, "-c", f"{script}; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "0\n"
        assert claim_part(tmp_path, "chat", 2, otherwise=7) == 1
        assert claim_part(tmp_path, "chat", 2, otherwise=7) == 7, "none is free"
        assert claim_part(tmp_path, "model-org/small", 2, otherwise=7) == 0, "another model's replicas divide the machine anew"
        first.kill()
    assert claim_part(tmp_path, "chat", 2, otherwise=7) == 0, "it went with its replica, whatever its rank was"


def test_threads_of_one_core_are_told_by_the_system(tmp_path: Path) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    for cpu in cpus:
        (tmp_path / f"cpu{cpu}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}" / "topology" / "thread_siblings_list").write_text(f"{cpus[0]},{cpu}\n")
    assert allowed_cores(tmp_path) == [cpus]
    assert allowed_cores(tmp_path / "none") == [[cpu] for cpu in cpus]


def test_a_thread_may_go_anywhere_again_after_it_has_started_its_engine() -> None:
    before, own = os.sched_getaffinity(0), share(allowed_cores(), 0, 2)
    with on_own_cores(0, 2):
        assert os.sched_getaffinity(0) == own
    assert os.sched_getaffinity(0) == before
