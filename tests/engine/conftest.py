"""vLLM, imported once for the tests of this room."""

from __future__ import annotations

import importlib
import warnings

import pytest

# Every module of ours that vLLM stands behind, and those of vLLM's that tests import themselves.
MODULES = (
    "harvester.engine.checkpoints.connector",
    "harvester.engine.core.scheduler",
    "harvester.engine.launch.arguments",
    "harvester.engine.worker.preemptible",
    "bench.harness.engine.counting_harvest",
    "vllm.v1.structured_output",
    "vllm.v1.cudagraph_dispatcher",
    "vllm.v1.worker.gpu.cudagraph_utils",
)


@pytest.fixture(scope="session", autouse=True)
def _vllm() -> None:
    """What these modules warn of on import is not ours to mend; a test that imports one of them first would fail by it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in MODULES:
            importlib.import_module(module)
