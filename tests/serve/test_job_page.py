"""The page of one job, in a real Chromium; the server is in this process."""

from __future__ import annotations

import time

import pytest
from playwright.sync_api import Page, Route, expect

from jobs.ledger.ledger import Ledger
from jobs.testing import scripted_plan
from tests.fakes.page_server import PageServer
from tests.serve.conftest import open_page

pytestmark = pytest.mark.serve


def submit(ledger: Ledger, *names: str) -> None:
    """Jobs of these names, each newer than the one before."""
    for name in names:
        ledger.submit(scripted_plan(name, 4, 4, created_at_s=time.time()), new=True)


def cancel(ledger: Ledger, name: str) -> None:
    ledger.cancel(name, time.time())


@pytest.fixture
def two_jobs(page_server: PageServer) -> PageServer:
    """``first`` and ``second`` wait."""
    page_server.ask(lambda ledger: submit(ledger, "first", "second"))
    return page_server


def test_a_job_that_leaves_the_list_as_it_ends_is_followed_to_its_end(
    tab: Page, two_jobs: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harvester.serve.http.live.events.MAX_ENDED", 1)
    two_jobs.ask(lambda ledger: cancel(ledger, "second"))
    open_page(tab, two_jobs, "#/jobs/first")
    expect(tab.locator("#job-facts")).to_contain_text("queued")
    two_jobs.ask(lambda ledger: cancel(ledger, "first"))
    expect(tab.locator("#job-facts")).to_contain_text("cancelled")
    expect(tab.get_by_role("button", name="Resume first")).to_be_visible()


def test_a_job_that_is_removed_elsewhere_is_said_to_be(tab: Page, two_jobs: PageServer) -> None:
    open_page(tab, two_jobs, "#/jobs/first")
    expect(tab.locator("#job-facts")).to_contain_text("queued")

    def remove(ledger: Ledger) -> None:
        cancel(ledger, "first")
        ledger.remove("first")

    two_jobs.ask(remove)
    expect(tab.locator("#job-facts")).to_contain_text("removed")
    expect(tab.locator("#job-acts button:visible")).to_have_count(0)


def test_a_job_is_shown_once_it_can_be_read(tab: Page, two_jobs: PageServer) -> None:
    refused = {"error": {"message": "The ledger is starting; try again.", "code": "unavailable"}}
    tab.route("**/api/jobs/first", lambda route: route.fulfill(status=503, json=refused))
    open_page(tab, two_jobs, "#/jobs/first")
    expect(tab.locator("#rows-fault")).to_have_text("The ledger is starting; try again.")
    tab.unroute("**/api/jobs/first")
    expect(tab.locator("#job-facts")).to_contain_text("queued")
    expect(tab.locator("#rows-fault")).to_be_empty()
    expect(tab.get_by_role("button", name="Cancel first")).to_be_visible()


def test_what_failed_on_the_job_before_is_not_said_of_the_next(tab: Page, two_jobs: PageServer) -> None:
    held = list[Route]()
    tab.route("**/api/jobs/first", lambda route: held.append(route))
    with tab.expect_request("**/api/jobs/first"):
        open_page(tab, two_jobs, "#/jobs/first")
    tab.evaluate("location.hash = '#/jobs/second'")
    expect(tab.locator("#job-facts")).to_contain_text("queued")
    with tab.expect_response("**/api/jobs/first"):
        held[0].fulfill(status=500, json={"error": {"message": "The disk is gone.", "code": "storage"}})
    tab.evaluate("fetch('/api/server').then((answer) => answer.text())")  # what came before is done by then
    expect(tab.locator("#rows-fault")).to_be_empty()
    expect(tab.get_by_role("button", name="Cancel second")).to_be_visible()
