"""One real server for the whole suite: Ray Serve, HAProxy, vLLM on CPU, the embedded model. And a Chromium."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.fakes.page_server import PageServer
from tests.real_server import RealServer

PROFILE_WAIT_S = 300.0
SHOTS = Path(__file__).parents[2] / "build" / "page"
PATIENCE_MS = 120_000
TAB_PATIENCE_MS = 20_000
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


@pytest.fixture
def page_server(tmp_path: Path) -> Iterator[PageServer]:
    """A server in this process that asks for no key."""
    with PageServer(tmp_path) as running:
        yield running


@pytest.fixture
def tab(browser: Browser) -> Iterator[Page]:
    """A tab that shows nothing yet."""
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(TAB_PATIENCE_MS)
    yield page
    context.close()


def open_page(tab: Page, server: PageServer, at: str = "") -> None:
    tab.goto(f"{server.url}/{at}")
    expect(tab.locator("#link")).to_have_text("Live")
