"""vLLM, imported once for the tests of this folder, the embedded model, and a core for the engines of each test process."""

from __future__ import annotations

import importlib
import logging
import os
import warnings
from pathlib import Path

import pytest

# Every module of ours that vLLM stands behind, and those of vLLM's that tests import themselves.
MODULES = (
    "harvester.engine.vllm.core.scheduler",
    "harvester.engine.vllm.launch",
    "harvester.engine.vllm.worker.workers",
    "bench.harness.engine.counting_harvest",
    "bench.harness.servers.raw_server",
    "vllm.v1.structured_output",
    "vllm.v1.cudagraph_dispatcher",
    "vllm.v1.worker.gpu.cudagraph_utils",
)


@pytest.fixture(scope="session", autouse=True)
def _vllm() -> None:
    """Import these modules once without warnings, which are not ours to mend; a test that imports one first would fail by them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in MODULES:
            importlib.import_module(module)


@pytest.fixture(autouse=True)
def _logs() -> None:
    """Reset the root logger: a library under vLLM's routes sets it to ERROR when a test imports them."""
    logging.getLogger().setLevel(logging.WARNING)


@pytest.fixture(autouse=True)
def _method() -> None:
    """Undo what making a configuration for a CPU leaves behind: vLLM would spawn all processes from then on."""
    os.environ.pop("VLLM_WORKER_MULTIPROC_METHOD", None)


@pytest.fixture(scope="session")
def model() -> Path:
    """The embedded model's folder."""
    from harvester.engine.embedded import embedded_model

    return embedded_model()


@pytest.fixture(scope="session", autouse=True)
def _core(worker_id: str) -> None:
    """With several test processes, give the engines of each a core of its own: vLLM would bind those of all to the first."""
    if worker_id.startswith("gw"):
        cores = sorted(os.sched_getaffinity(0))
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = str(cores[int(worker_id.removeprefix("gw")) % len(cores)])
