"""The page's list of jobs, in a real Chromium; the server is in this process."""

from __future__ import annotations

import time

import pytest
from playwright.sync_api import Page, expect

from jobs.ledger.ledger import Ledger
from jobs.testing import scripted_plan
from tests.fakes.page_server import PageServer
from tests.serve.conftest import open_page

pytestmark = pytest.mark.serve

HOUR_S = 3600.0


def begin(ledger: Ledger) -> None:
    """Made first: ``slow``, which started last; then ``fast``; then ``idle``, which has not started."""
    now_s = time.time() - HOUR_S
    for number, name in enumerate(("slow", "fast")):
        ledger.submit(scripted_plan(name, 4, 4, created_at_s=now_s + number), new=True)
    ledger.pause("slow", now_s)
    assert ledger.lease("a", "scripted", now_s + 100.0) is not None
    ledger.resume("slow", now_s + 200.0)
    assert ledger.lease("a", "scripted", now_s + 200.0) is not None
    ledger.submit(scripted_plan("idle", 4, 4, created_at_s=now_s + 300.0), new=True)


def test_a_heading_sorts_by_its_column_and_says_in_which_direction(tab: Page, page_server: PageServer) -> None:
    page_server.ask(begin)
    open_page(tab, page_server)
    names, sorted_by = tab.locator("#job-list th a"), tab.locator("th[aria-sort]:not([aria-sort=none])")
    expect(names).to_have_text(["idle", "fast", "slow"])
    expect(sorted_by).to_have_count(0)
    for heading, direction, order in (
        ("Started", "descending", ["slow", "fast", "idle"]),
        ("Started", "ascending", ["fast", "slow", "idle"]),
        ("Took", "descending", ["fast", "slow", "idle"]),
        ("Took", "ascending", ["slow", "fast", "idle"]),
        ("Job", "ascending", ["fast", "idle", "slow"]),
        ("Errors", "descending", ["idle", "fast", "slow"]),
    ):
        tab.locator("thead button", has_text=heading).click()
        expect(names).to_have_text(order)
        expect(sorted_by).to_have_text(heading)
        expect(sorted_by).to_have_attribute("aria-sort", direction)
