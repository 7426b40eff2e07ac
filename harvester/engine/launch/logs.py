"""Keeps this process's logging as it is while vLLM is imported and started."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import MemoryHandler


@contextmanager
def kept_logs() -> Iterator[None]:
    """Leave levels and handlers as they were before the block.

    vLLM's set-up closes every handler of the process; one that buffers, as Ray Serve's does, has no target from then on. A library under
    vLLM's routes sets the root logger to ERROR.
    """
    root = logging.getLogger()
    level, levels = root.level, {handler: handler.level for handler in root.handlers}
    targets = {handler: handler.target for handler in _buffers()}
    try:
        yield
    finally:
        root.setLevel(level)
        for handler, before in levels.items():
            handler.setLevel(before)
        for buffer, target in targets.items():
            if buffer.target is None:
                buffer.setTarget(target)


def _buffers() -> list[MemoryHandler]:
    """The buffering handlers of all loggers."""
    loggers = [logging.getLogger(), *(one for one in logging.Logger.manager.loggerDict.values() if isinstance(one, logging.Logger))]
    return [handler for one in loggers for handler in one.handlers if isinstance(handler, MemoryHandler)]
