"""Engine processes that are forked: their surroundings, their signals, and what becomes of them without the fork server."""

from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing import forkserver
from pathlib import Path

import pytest

from harvester.engine.processes import forked
from tests.engine.forked_child import CORE
from tests.engine.host_child import found_by

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="engines are forked on Linux alone"),
]

SERVED = """
import os, sys
from harvester.engine.processes import forked

def first(arguments):
    os.environ["FIRST"] = arguments["word"]

def tell(pipe, word):
    pipe.send((os.environ.get("LATER"), os.environ.get("GONE"), os.environ["FIRST"], sorted(os.sched_getaffinity(0))))

if __name__ == "__main__":
    os.environ["GONE"] = "before"
    forked.begin(["json"], sys.argv[1])
    assert forked.has_begun()
    assert [name for name in os.listdir(sys.argv[1]) if name.startswith("listener-")]
    del os.environ["GONE"]
    os.environ["LATER"] = "after"
    core = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    context = forked.ServedContext(first)
    ours, theirs = context.Pipe()
    process = context.Process(target=tell, args=(theirs,), kwargs={"word": "told"})
    process.start()
    assert ours.recv() == ("after", None, "told", [core])
    process.join()
    assert process.exitcode == 0
"""
FORKED = """
import asyncio, os, signal
from harvester.engine.processes import forked

def work(pipe):
    signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
    pipe.send("ready")
    signal.pause()

async def main():
    told = []
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.append, "the front end")
    assert forked.is_single()
    context = forked.ForkedContext()
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs,))
    process.start()
    assert ours.recv() == "ready"
    process.terminate()
    process.join()
    for _ in range(20):  # a signal is told to the loop by a socket
        await asyncio.sleep(0.01)
    assert (process.exitcode, told) == (7, []), (process.exitcode, told)

asyncio.run(main())
"""


@pytest.mark.parametrize("script", [SERVED, FORKED], ids=["of the server: surroundings", "of this process: signals"])
def test_a_forked_process_has_what_one_that_is_spawned_would_have(tmp_path: Path, script: str) -> None:
    file = tmp_path / "script.py"
    file.write_text(script, encoding="utf-8")
    done = subprocess.run([sys.executable, str(file), str(tmp_path)], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def test_nothing_is_forked_where_the_user_has_told_vllm_to_spawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(forked.METHOD, "spawn")
    monkeypatch.setattr(forkserver, "ensure_running", lambda: pytest.fail("a server was started"))
    forked.begin()
    with forked.method_kept() as may_fork:
        assert not may_fork


def test_vllm_s_own_setting_of_the_method_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(forked.METHOD, raising=False)
    with forked.method_kept() as may_fork:
        assert may_fork
        os.environ[forked.METHOD] = "spawn"
    assert forked.is_wanted()
    monkeypatch.setenv(forked.METHOD, "spawn")
    with forked.method_kept():
        pass
    assert not forked.is_wanted()


def test_an_engine_of_the_fork_server_answers_and_ends_with_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Its worker keeps to its core. A server that is killed takes core and worker with it, and the front end says so."""
    found = found_by("forked_child", tmp_path_factory)
    assert found["names"] == ["VLLM::EngineCore", "VLLM::Worker"]
    assert found["cores"] == [CORE]
    assert found["tokens"] == 4
    assert found["left"] == 0
    assert found["is_noticed"]
