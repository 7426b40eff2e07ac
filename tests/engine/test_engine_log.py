"""A process whose engine starts goes on to write its log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from logging.handlers import MemoryHandler
from pathlib import Path

import pytest
from model_hosting_container_standards.logging_config import configure_root_logger
from vllm.config.logging import LoggingConfig
from vllm.logger import configure_logging

from harvester.engine.launch.logs import kept_logs


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    """What the logger ``served`` writes, through a buffer as Ray Serve has it."""
    path = tmp_path / "replica.log"
    target = logging.FileHandler(path)
    buffer, served, root = MemoryHandler(1, target=target), logging.getLogger("served"), logging.getLogger()
    served.addHandler(buffer)
    level = root.level
    root.setLevel(logging.INFO)
    yield path
    root.setLevel(level)
    served.removeHandler(buffer)
    buffer.close()
    target.close()


def start() -> None:
    """What starting an engine does to logging."""
    configure_logging(LoggingConfig())
    configure_root_logger()


def test_warnings_after_the_start_are_in_the_log(file: Path) -> None:
    with kept_logs():
        start()
    logging.getLogger("served").info("slow_step ms=%d", 7)
    assert file.read_text() == "slow_step ms=7\n"


def test_without_that_they_are_lost(file: Path) -> None:
    levels = {handler: handler.level for handler in logging.getLogger().handlers}
    start()
    logging.getLogger("served").warning("lost")
    for handler, level in levels.items():
        handler.setLevel(level)
    assert file.read_text() == "", "if vLLM leaves logs alone by now, kept_logs can go"
