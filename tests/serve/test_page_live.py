"""What an open page shows as it happens, in a real Chromium; the server is in this process, and its replicas are made up."""

from __future__ import annotations

import re
import time

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from jobs.ledger.ledger import Ledger
from jobs.testing import scripted_plan
from tests.fakes.page_server import PageServer
from tests.fakes.replica_report import replica
from tests.serve.conftest import open_page

pytestmark = pytest.mark.serve

HIDDEN = "window.isHidden = true; Object.defineProperty(Document.prototype, 'hidden', { get: () => window.isHidden })"
SEEN = "window.isHidden = false; document.dispatchEvent(new Event('visibilitychange'))"


# -- the stream ---------------------------------------------------------------------------------------------------------------------


def test_a_tab_that_is_opened_in_the_background_holds_no_stream_until_it_is_seen(tab: Page, page_server: PageServer) -> None:
    tab.add_init_script(HIDDEN)
    asked = list[str]()
    tab.on("request", lambda request: asked.append(request.url.removeprefix(page_server.url)))
    tab.goto(f"{page_server.url}/#/jobs/unknown")
    expect(tab.locator("#rows-fault")).to_contain_text("unknown job")  # the page has done all that it does at first
    assert "/api/page/page.js" in asked
    assert "/api/events" not in asked
    tab.evaluate(SEEN)
    expect(tab.locator("#link")).to_have_text("Live")
    assert asked.count("/api/events") == 1


# -- clocks -------------------------------------------------------------------------------------------------------------------------


def run_a_job(ledger: Ledger) -> None:
    ledger.submit(scripted_plan("docs", 4, 4, created_at_s=time.time()), new=True)
    assert ledger.lease("a", "scripted", time.time()) is not None


@pytest.mark.parametrize("ahead_s", [-600.0, 600.0], ids=["slow", "fast"])
def test_how_long_a_job_took_is_by_the_clock_of_the_server(tab: Page, page_server: PageServer, ahead_s: float) -> None:
    page_server.ask(run_a_job)
    tab.clock.install(time=time.time() + ahead_s)
    open_page(tab, page_server)
    expect(tab.get_by_role("row", name="docs").locator("[data-label=Took]")).to_have_text(re.compile(r"^\d\d? s$"))


def test_a_page_whose_device_has_slept_connects_anew(tab: Page, page_server: PageServer) -> None:
    tab.clock.install()
    open_page(tab, page_server)
    with tab.expect_request("**/api/events"):
        tab.clock.set_system_time(time.time() + 3600.0)


# -- replicas -----------------------------------------------------------------------------------------------------------------------


def test_a_replica_keeps_its_number_and_its_place(tab: Page, page_server: PageServer) -> None:
    page_server.replicas = [replica(1.0, "b"), replica(1.0, "d")]
    open_page(tab, page_server)
    titles = tab.locator(".replica h3")
    expect(titles).to_have_text(["Replica 1, b", "Replica 2, d"])
    page_server.replicas = [replica(2.0, name) for name in ("b", "c", "d")]
    expect(titles).to_have_text(["Replica 1, b", "Replica 2, d", "Replica 3, c"])
    page_server.replicas = [replica(3.0, name) for name in ("c", "d")]
    expect(titles).to_have_text(["Replica 2, d", "Replica 3, c"])
    page_server.replicas = [replica(4.0, name) for name in ("c", "d", "e")]
    expect(titles).to_have_text(["Replica 1, e", "Replica 2, d", "Replica 3, c"])


def test_the_line_of_a_figure_has_a_gap_where_the_figure_was_missing(tab: Page, page_server: PageServer) -> None:
    chat = {"count": 1, "p50": 0.25, "p99": 0.25}
    page_server.replicas = [replica(1.0, ttft=chat)]
    open_page(tab, page_server)
    tile = tab.locator("[data-tile=ttft]")
    for at_s, ttft, told in ((1.0, chat, "250ms"), (2.0, None, "none yet"), (3.0, chat, "250ms")):
        page_server.replicas = [replica(at_s, ttft=ttft)]
        expect(tile.locator(".big")).to_have_text(told)
    curve = tile.locator(".curve")
    expect(curve).to_have_attribute("d", re.compile("^M[^M]+M[^M]+$"))
    page_server.replicas = [replica(3600.0, ttft=chat)]
    expect(curve).to_have_attribute("d", re.compile("^M[^M]+$"))


# -- for who sees little ------------------------------------------------------------------------------------------------------------


def test_a_page_that_lost_its_server_can_be_read_as_well(tab: Page, page_server: PageServer) -> None:
    page_server.ask(run_a_job)
    page_server.replicas = [replica(1.0)]
    open_page(tab, page_server)
    expect(tab.locator(".replica")).to_have_count(1)
    tab.route("**/api/events", lambda route: route.fulfill(status=503, json={"error": {"message": "Starting.", "code": "busy"}}))
    tab.evaluate(SEEN)  # connects anew
    expect(tab.locator("#link")).to_have_text("Not connected: Starting.")
    found = Axe().run(tab, options={"runOnly": {"type": "rule", "values": ["color-contrast"]}}).response["violations"]
    assert [node["html"] for one in found for node in one["nodes"]] == []


def test_charts_say_in_words_what_they_show_and_at_which_time(tab: Page, page_server: PageServer) -> None:
    now_s = time.time()
    for ago_s, p99_s in ((60.0, 0.1), (40.0, 0.9), (20.0, 0.2)):
        chat = {"running": 1, "waiting": 0, "tokens": int(1000 - ago_s)}
        told = replica(now_s - ago_s, online=chat, ttft={"count": 9, "p50": p99_s / 2, "p99": p99_s})
        page_server.remember(told, now_s - ago_s)
    open_page(tab, page_server)
    chart = tab.get_by_role("img", name=re.compile("^Chat: time to first token, ms"))
    expect(chart).to_have_attribute(
        "aria-label",
        "Chat: time to first token, ms. P50: last 100 ms, highest 450 ms; P99: last 200 ms, highest 900 ms; "
        "P99 alone: none; SLO: last 500 ms, highest 500 ms.",
    )
    tab.locator("#chart-ttft .u-over").hover()
    expect(tab.locator("#chart-ttft .u-legend .u-series").first).to_have_text(re.compile(r"^Time\d\d:\d\d:\d\d$"))
    expect(tab.locator("#chart-ttft .u-legend .u-series").first).to_be_visible()
