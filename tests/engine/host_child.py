"""What children of the tests share: an engine with its host in this process, and what it found written down."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from bench.harness.device import on_cpu
from tests.engine.forks import run


async def with_host(model: Path, config: dict[str, Any], work: Callable[[Any], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    """What ``work`` finds on an `EngineHost` of ``model``."""
    from harvester.config import parse_config
    from harvester.engine.frontend.host import EngineHost
    from harvester.engine.launch.arguments import engine_arguments
    from harvester.engine.shared.state import SharedState

    shared = SharedState.make()
    values = engine_arguments(parse_config(config, "test"), str(model), model.name, cpu=on_cpu(), embedded=False, shared=shared.path)
    host = await EngineHost.start(values)
    try:
        return await work(host)
    finally:
        host.close()


def main(about: str | None, run: Callable[[Path], Awaitable[dict[str, Any]]]) -> int:
    """The child's command: ``run`` is given a folder for models."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()

    async def found() -> dict[str, Any]:
        return await run(given.models)

    given.output.write_text(json.dumps(asyncio.run(found())), encoding="utf-8")
    return 0


def found_by(module: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the child ``tests.engine.MODULE`` wrote down."""
    folder = tmp_path_factory.mktemp(module)
    output, log = folder / "found.json", folder / "log.txt"
    run(module, ["--models", str(folder), "--output", str(output)], log)
    return dict(json.loads(output.read_text("utf-8")))
