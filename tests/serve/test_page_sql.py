"""The SQL box in a real Chromium, with the server in this process."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.fakes.page_server import PageServer
from tests.serve.conftest import open_page

pytestmark = pytest.mark.serve

BIG = 1234567890123456789  # no double is this number
QUERY = f"select {BIG}::bigint as big, {-BIG} as low, 7 as small, 0.25::double as share, 'id {BIG}, \"{BIG}' as told, [{BIG}, 2] as listed"


@pytest.mark.parametrize("is_old", [False, True], ids=["a browser of today", "one without raw JSON"])
def test_integers_of_64_bits_are_shown_digit_by_digit(tab: Page, page_server: PageServer, is_old: bool) -> None:
    if is_old:
        tab.add_init_script("delete JSON.rawJSON")
    open_page(tab, page_server)
    tab.get_by_label("Query over jobs").fill(QUERY)
    tab.get_by_role("button", name="Run", exact=True).click()
    answer = tab.get_by_role("table", name="Answer of the query")
    expect(answer.locator("tbody tr")).to_have_count(1)
    listed = f'["{BIG}",2]' if is_old else f"[{BIG},2]"
    assert answer.locator("tbody td").all_inner_texts() == [str(BIG), str(-BIG), "7", "0.25", f'id {BIG}, "{BIG}', listed]
    expect(answer.locator("tbody td").first).to_have_class("n")
