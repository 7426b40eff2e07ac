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


# -- results as a file --------------------------------------------------------------------------------------------------------------


def test_a_download_that_the_server_refuses_says_why(tab: Page, two_jobs: PageServer) -> None:
    damaged = {"error": {"message": "part-0 is damaged; run harvester repair.", "code": "damage"}}
    tab.route("**/results?format=csv", lambda route: route.fulfill(status=500, json=damaged))
    open_page(tab, two_jobs, "#/jobs/first")
    tab.get_by_role("button", name="CSV").click()
    expect(tab.locator("#rows-fault")).to_have_text("part-0 is damaged; run harvester repair.")


def test_the_browser_itself_writes_results_that_need_no_key(tab: Page, two_jobs: PageServer) -> None:
    open_page(tab, two_jobs, "#/jobs/first")
    with tab.expect_download() as begun:
        tab.get_by_role("button", name="CSV").click()
    assert begun.value.url == f"{two_jobs.url}/api/jobs/first/results?format=csv"
    assert begun.value.suggested_filename == "first.csv"


TOO_MANY = "have more than 512 MB; write them to a file with: harvester results first -o first.parquet"


@pytest.mark.parametrize(("megabytes", "told"), [(1, "1.0 MB so far"), (513, TOO_MANY)])
def test_results_that_need_a_key_are_collected_up_to_a_size(tab: Page, two_jobs: PageServer, megabytes: int, told: str) -> None:
    sends = """
        sessionStorage.setItem('harvester-api-key', 'any');
        const known = window.fetch, piece = new Uint8Array(1e6);
        const start = (to) => { (window.results = to), Array.from({ length: MEGABYTES }, () => to.enqueue(piece)); };
        window.fetch = (path, ...rest) =>
            path.includes('/results?') ? Promise.resolve(new Response(new ReadableStream({ start }))) : known(path, ...rest);
    """
    tab.add_init_script(sends.replace("MEGABYTES", str(megabytes)))
    open_page(tab, two_jobs, "#/jobs/first")
    tab.get_by_role("button", name="CSV").click()
    expect(tab.locator("#job")).to_contain_text(told)
    if megabytes == 1:
        with tab.expect_download() as begun:
            tab.evaluate("window.results.close()")
        assert begun.value.suggested_filename == "first.csv"
    expect(tab.locator("#download-note")).to_be_empty()


# -- by keyboard --------------------------------------------------------------------------------------------------------------------

FOCUSED = "document.activeElement.id"


def test_the_focus_of_a_button_that_goes_is_on_the_name_of_the_job(tab: Page, two_jobs: PageServer) -> None:
    open_page(tab, two_jobs, "#/jobs/first")
    tab.get_by_role("button", name="Cancel first").press("Enter")
    tab.get_by_role("button", name="Cancel job").press("Enter")
    expect(tab.get_by_role("button", name="Cancel first")).to_be_hidden()
    assert tab.evaluate(FOCUSED) == "job-title"


def test_the_first_link_skips_to_the_job_that_is_shown(tab: Page, two_jobs: PageServer) -> None:
    open_page(tab, two_jobs, "#/jobs/first")
    skip = tab.locator("a.skip")
    expect(skip).to_have_text("Skip to the job")
    skip.focus()
    skip.press("Enter")
    assert tab.evaluate(FOCUSED) == "job-title"
    assert tab.url == f"{two_jobs.url}/#/jobs/first"
    tab.get_by_role("link", name="All jobs").click()
    expect(skip).to_have_text("Skip to jobs")
