"""Imported by a fork server (`harvester.engine.processes.forked`): what every process of an engine imports, before any is forked.

The server stays until the last of them has ended, so it ignores SIGTERM: a signal to the whole process group is for them to handle.
"""

from __future__ import annotations

import gc
import importlib
import signal

from harvester.engine.processes.forked import uncollected

MODULES = ("vllm.v1.engine.core", "harvester.engine.vllm.launch", "harvester.engine.vllm.core.scheduler", "harvester.engine.vllm.connector")

signal.signal(signal.SIGTERM, signal.SIG_IGN)
with uncollected():
    for module in MODULES:
        importlib.import_module(module)
gc.freeze()  # collecting would write to the pages that the processes share
