"""One real server for the whole suite: Ray Serve, HAProxy, vLLM on CPU, the embedded model. And a Chromium."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.real_server import RealServer

PROFILE_WAIT_S = 300.0
SHOTS = Path(__file__).parents[2] / "build" / "page"
PATIENCE_MS = 120_000
CONFIG = Path(__file__).parents[1] / "small.yaml"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    state = tmp_path_factory.mktemp("serve") / "state"
    config = state.with_name("config.yaml")  # the page names files of the tests
    config.write_text(CONFIG.read_text() + f"sources: {{roots: ['{tmp_path_factory.getbasetemp()}']}}\n")
    with RealServer(state, config) as running:
        end_s = time.monotonic() + PROFILE_WAIT_S
        while not list(state.glob("profiles/*.json")):  # a new server measures its engine first, with requests of its own
            assert time.monotonic() < end_s, "the engine was not profiled"
            time.sleep(0.2)
        yield running


@pytest.fixture(scope="session")
def model(server: RealServer) -> str:
    return str(server.get("/api/server")["model"])


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = os.environ.get("HARVESTER_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no Chromium here, and none was installed; install chromium (as root, make test does it)")
    SHOTS.mkdir(parents=True, exist_ok=True)
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield running
        running.close()
