"""An engine whose processes must be killed, one of which ends by itself meanwhile."""

from __future__ import annotations

import subprocess
import sys
import time
import warnings
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.engine

PARENT = """
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"]).pid, flush=True)
time.sleep(300)
"""


def test_all_processes_end_where_vllm_fails_to_kill_one_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        from vllm.v1.engine.async_llm import AsyncLLM

        from harvester.engine.vllm.frontend.client import HarvestLLM

    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    cleaned: list[bool] = []

    class Resources(SimpleNamespace):
        def __call__(self) -> None:
            cleaned.append(True)

    class Llm(HarvestLLM):
        def __del__(self) -> None:
            """Nothing was begun."""

    def fails(llm: Any, timeout: float | None = None) -> None:
        raise psutil.NoSuchProcess(gone.pid)

    monkeypatch.setattr(AsyncLLM, "shutdown", fails)
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        llm = object.__new__(Llm)
        llm.engine_core = SimpleNamespace(resources=Resources(engine_manager=SimpleNamespace(processes=[gone, parent])))
        llm.shutdown()
        assert parent.wait(60) < 0
    ended_by_s = time.monotonic() + 60
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:  # a killed process takes its time on a busy machine
        assert time.monotonic() < ended_by_s
        time.sleep(0.01)
    assert cleaned == [True]
