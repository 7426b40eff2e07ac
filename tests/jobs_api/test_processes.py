"""A server's processes: who steps back for whom, and who may be woken late."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from harvester import timers
from harvester.serve.processes import HOUSEKEEPING_NICENESS, MARK, lower_housekeeping

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="scheduling classes and timer slack are Linux's")

TWO_THREADS = """
import sys, threading, time
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print(flush=True)
sys.stdin.read()
"""


@contextmanager
def process_named(name: str, mark: str) -> Iterator[psutil.Process]:
    """A marked process of two threads with ``name`` in its command line."""
    command = [sys.executable, "-c", f"{TWO_THREADS} # {name}"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env={**os.environ, MARK: mark}, **pipes) as child:  # type: ignore[call-overload]
        assert child.stdout.readline() == b"\n"
        try:
            yield psutil.Process(child.pid)
        finally:
            child.kill()


def standing(process: psutil.Process) -> list[tuple[int, int]]:
    """Scheduling class and niceness, main thread first."""
    threads = sorted(thread.id for thread in process.threads())
    assert len(threads) == 2
    return [(os.sched_getscheduler(thread), os.getpriority(os.PRIO_PROCESS, thread)) for thread in threads]


@pytest.mark.parametrize(("is_haproxy", "niceness"), [(True, HOUSEKEEPING_NICENESS), (False, 0)], ids=["behind HAProxy", "the ingress"])
def test_serves_proxies_are_housekeeping_only_behind_haproxy(is_haproxy: bool, niceness: int) -> None:
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    with process_named("ray::ProxyActor", "a1") as proxy:
        lower_housekeeping("a1", is_haproxy=is_haproxy)
        kind = os.SCHED_BATCH if is_haproxy else os.SCHED_OTHER
        assert standing(proxy) == [(kind, max(usual, niceness))] * 2


@pytest.mark.parametrize(
    ("name", "main", "others"),
    [
        ("ServeController", (os.SCHED_BATCH, HOUSEKEEPING_NICENESS), (os.SCHED_BATCH, HOUSEKEEPING_NICENESS)),
        ("ray::HAProxyManager", (os.SCHED_BATCH, 0), (os.SCHED_OTHER, 0)),
        ("VLLM::EngineCore", (os.SCHED_OTHER, 0), (os.SCHED_OTHER, 0)),
    ],
)
def test_housekeeping_takes_no_core_from_a_step(name: str, main: tuple[int, int], others: tuple[int, int]) -> None:
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    with process_named(name, "a1") as ours, process_named(name, "b2") as another:
        lower_housekeeping("a1", is_haproxy=True)
        assert standing(ours) == [(kind, max(usual, nice)) for kind, nice in (main, others)]
        assert standing(another) == [(os.SCHED_OTHER, usual)] * 2


def test_housekeeping_stays_off_the_cores_that_another_process_is_bound_to() -> None:
    cores = psutil.Process().cpu_affinity()
    if len(cores) < 2:
        pytest.skip("needs two cores")
    with process_named("anything", "a1") as worker, process_named("ServeController", "a1") as ours:
        worker.cpu_affinity(cores[:1])
        lower_housekeeping("a1", is_haproxy=True)
        lower_housekeeping("a1", is_haproxy=True)  # processes that its first call has bound do not count as bound
        assert ours.cpu_affinity() == cores[1:]


def test_where_the_class_may_not_be_set_the_niceness_still_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError

    with process_named("ServeController", "a1") as ours:
        usual = standing(ours)[0][0]
        monkeypatch.setattr(os, "sched_setscheduler", forbidden)
        lower_housekeeping("a1", is_haproxy=True)
        assert standing(ours) == [(usual, max(os.getpriority(os.PRIO_PROCESS, 0), HOUSEKEEPING_NICENESS))] * 2


@pytest.mark.parametrize(("whole", "others"), [("True", os.SCHED_BATCH), ("False", os.SCHED_OTHER)])
def test_a_process_stands_back_with_all_threads_or_with_its_main_one(whole: str, others: int) -> None:
    told = """
import os, threading, time, psutil
from harvester.serve.processes import lower_priority
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
lower_priority(whole=WHOLE)
print(*(os.sched_getscheduler(thread.id) for thread in sorted(psutil.Process().threads())))
""".replace("WHOLE", whole)
    said = subprocess.run([sys.executable, "-c", told], capture_output=True, check=True, text=True).stdout
    assert [int(kind) for kind in said.split()] == [os.SCHED_BATCH, others]


def slack_ns(command: list[str]) -> int:
    return int(subprocess.run(command, capture_output=True, check=True).stdout)


def test_what_is_started_patiently_may_be_woken_late_and_what_comes_after_it_not() -> None:
    told = ["cat", "/proc/self/timerslack_ns"]
    before_ns = slack_ns(told)
    with timers.patient_children():
        assert slack_ns(told) == round(timers.PATIENT_S * 1e9)
    assert slack_ns(told) == before_ns
    assert int(Path("/proc/self/timerslack_ns").read_text()) == before_ns == round((timers.timer_slack_s() or 0.0) * 1e9)
