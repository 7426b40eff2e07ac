"""What an open page shows as it happens, in a real Chromium; the server is in this process, and its replicas are made up."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.fakes.page_server import PageServer
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
