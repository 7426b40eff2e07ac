"""``python -m tests.engine.forked_child``: an engine of the fork server. Who its processes are, and who is left when the server dies."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from harvester.engine.processes import forked
from harvester.errors import EngineError
from tests.engine.host_child import main, with_host

PATIENCE_S = 60.0
CORE = max(os.sched_getaffinity(0))


async def _found(_: Path) -> dict[str, Any]:
    from harvester.engine.embedded import embedded_model

    async def work(host: Any) -> dict[str, Any]:
        server = next(child for child in psutil.Process().children() if "multiprocessing.forkserver" in " ".join(child.cmdline()))
        core = server.children()[0]
        worker = next(child for child in core.children() if "resource_tracker" not in " ".join(child.cmdline()))
        answer = await host.llm.complete("one", [1, 2, 3], max_tokens=4)
        found = {
            "names": [one.cmdline()[0] for one in (core, worker)],
            "cores": worker.cpu_affinity(),
            "tokens": len(answer.token_ids),
        }
        os.kill(server.pid, signal.SIGKILL)
        return {**found, "left": await _left([core, worker]), "is_noticed": await _is_noticed(host)}

    return await with_host(embedded_model(), {}, work)


async def _left(processes: Sequence[psutil.Process]) -> int:
    _, alive = await asyncio.to_thread(psutil.wait_procs, processes, timeout=PATIENCE_S)
    return len([one for one in alive if one.status() != psutil.STATUS_ZOMBIE])


async def _is_noticed(host: Any) -> bool:
    for _ in range(int(PATIENCE_S / 0.1)):
        try:
            await host.check()
        except EngineError:
            return True
        await asyncio.sleep(0.1)
    return False


if __name__ == "__main__":
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = str(CORE)  # of several cores, vLLM spawns the worker
    forked.begin()
    sys.exit(main(__doc__, _found))
