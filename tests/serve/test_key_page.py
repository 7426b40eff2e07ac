"""The page of a server that asks for a key, in a real Chromium; the applications run in this process, without Ray."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from harvester.core import Role
from harvester.serve.access.gate import Gate
from harvester.serve.access.keys import KeyFile, KeyRing
from jobs.testing import scripted_plan
from tests.fakes.page_server import PageServer

pytestmark = pytest.mark.serve


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    """Keys of the server besides ``other`` and ``right``, which may do everything."""
    return KeyFile(tmp_path / "keys.json")


@pytest.fixture
def guarded(tmp_path: Path, keys: KeyFile) -> Iterator[str]:
    """Address of a server with the key ``right`` and one job."""
    with PageServer(tmp_path, Gate(KeyRing(["other", "right"], keys.path))) as server:
        server.ask(lambda ledger: ledger.submit(scripted_plan("docs-7f3a", 4, 4, created_at_s=time.time()), new=True))
        yield server.url


@pytest.fixture
def page(browser: Browser, guarded: str) -> Iterator[Page]:
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(20_000)
    page.goto(guarded)
    yield page
    context.close()


def unlock(page: Page, key: str) -> None:
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_role("button", name="Continue").click()


def test_the_page_asks_for_a_key_once_and_then_shows_and_does_everything(page: Page) -> None:
    asked = page.get_by_role("dialog", name="API key")
    expect(asked).to_be_visible()
    expect(page.locator("#link")).to_contain_text("a key is needed")
    expect(page.locator("#job-list tr")).to_have_count(0)
    grave = [one["id"] for one in Axe().run(page).response["violations"] if one["impact"] in ("serious", "critical")]
    assert grave == []
    unlock(page, "")
    expect(page.locator("#unlock-fault")).to_have_text("Key is missing.")
    unlock(page, "wrong")
    expect(page.locator("#unlock-fault")).to_have_text("The server does not know this key.")
    unlock(page, "right")
    expect(asked).to_be_hidden()
    expect(page.locator("#link")).to_have_text("Live")
    expect(page.get_by_label("Task", exact=True)).to_have_value("summarize")
    page.get_by_role("button", name="Pause docs-7f3a").click()
    page.get_by_role("button", name="Pause job").click()
    expect(page.get_by_role("row", name="docs-7f3a").locator(".state")).to_have_text("paused")
    page.get_by_label("Query over jobs").fill("select id from jobs")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("table", name="Answer of the query").locator("tbody")).to_have_text("docs-7f3a")
    page.reload()
    expect(page.locator("#link")).to_have_text("Live")
    expect(asked).to_be_hidden()


def test_what_a_job_becomes_is_shown_as_it_comes(page: Page, guarded: str) -> None:
    unlock(page, "right")
    expect(page.get_by_role("row", name="docs-7f3a").locator(".state")).to_have_text("queued")
    answer = page.request.post(f"{guarded}/api/jobs/docs-7f3a/cancel", headers={"authorization": "Bearer other"})
    assert answer.ok
    expect(page.get_by_role("row", name="docs-7f3a").locator(".state")).to_have_text("cancelled")


def test_a_key_that_may_not_see_jobs_is_told_so_and_another_can_be_given(page: Page, keys: KeyFile) -> None:
    unlock(page, keys.add("chatty", [Role.CHAT]))
    asked = page.get_by_role("dialog", name="API key")
    expect(page.locator("#unlock-fault")).to_contain_text("key chatty has chat")
    expect(asked).to_be_visible()
    expect(page.locator("#link")).to_contain_text("this key may not see jobs")
    unlock(page, "right")
    expect(asked).to_be_hidden()
    expect(page.locator("#link")).to_have_text("Live")
    expect(page.get_by_role("row", name="docs-7f3a")).to_be_visible()


def test_a_job_that_is_opened_before_the_key_is_given_is_shown_after_it(browser: Browser, guarded: str) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.goto(f"{guarded}/#/jobs/docs-7f3a")
        unlock(page, "right")
        expect(page.locator("#link")).to_have_text("Live")
        expect(page.locator("#job-facts")).to_contain_text("queued")
        expect(page.get_by_role("button", name="Pause docs-7f3a")).to_be_visible()


def test_the_page_says_why_the_server_refuses_it(page: Page) -> None:
    told = {"error": {"message": "Key right is above its limit; wait 9 s.", "code": "rate_limit_exceeded"}}
    page.route("**/api/events", lambda route: route.fulfill(status=429, json=told))
    unlock(page, "right")
    expect(page.locator("#link")).to_have_text("Not connected: Key right is above its limit; wait 9 s.")
    page.unroute("**/api/events")
    expect(page.locator("#link")).to_have_text("Live")
    expect(page.get_by_role("row", name="docs-7f3a")).to_be_visible()
