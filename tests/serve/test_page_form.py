"""A job of the reader's own file, in a real Chromium; the server is in this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, Request, Route, expect

from jobs.ledger.ledger import Ledger
from tests.fakes.page_server import PageServer
from tests.serve.conftest import open_page

pytestmark = pytest.mark.serve

PIECE_BYTES = 8 << 20


class Uploads:
    """The pieces that a tab sends. ``refuse``: what is done with the second one, once."""

    def __init__(self, tab: Page, refuse: Callable[[Route], None] = Route.continue_) -> None:
        self.sent = list[str]()
        self._refuse = refuse
        tab.route("**/api/uploads/**", self._take)

    @property
    def ids(self) -> list[str]:
        return [urlsplit(url).path.split("/")[3] for url in self.sent]

    @property
    def offsets(self) -> list[int]:
        return [int(parse_qs(urlsplit(url).query)["offset"][0]) for url in self.sent]

    def _take(self, route: Route) -> None:
        if route.request.method == "PUT":
            self.sent.append(route.request.url)
            if len(self.sent) == 2:
                return self._refuse(route)
        return route.continue_()


def refused(status: int) -> Callable[[Route], None]:
    return lambda route: route.fulfill(status=status, json={"error": {"message": "The disk is full.", "code": "refused"}})


@pytest.fixture
def form(tab: Page, page_server: PageServer, tmp_path: Path) -> Page:
    """A page whose form has a file of two pieces."""
    path = tmp_path / "my rows.csv"
    path.write_text("text\n" + f"{'One text. ' * 10_000}\n" * 90)
    open_page(tab, page_server)
    tab.get_by_label("Or a file from this device").set_input_files(path)
    return tab


def submit(form: Page) -> None:
    form.get_by_role("button", name="Submit").click()


def test_a_piece_whose_connection_broke_is_sent_again(form: Page) -> None:
    uploads = Uploads(form, lambda route: route.abort("connectionreset"))
    submit(form)
    expect(form.locator("#submit-note")).to_contain_text("was made, of 90 rows")
    assert uploads.offsets == [0, PIECE_BYTES, PIECE_BYTES]
    assert len(set(uploads.ids)) == 1


def test_an_upload_that_failed_goes_on_where_it_was_when_it_is_submitted_again(form: Page) -> None:
    uploads = Uploads(form, refused(500))
    submit(form)
    expect(form.locator("#submit-fault")).to_have_text("The disk is full.")
    submit(form)
    expect(form.locator("#submit-note")).to_contain_text("was made, of 90 rows")
    assert uploads.offsets == [0, PIECE_BYTES, PIECE_BYTES]
    assert len(set(uploads.ids)) == 1


def test_what_was_sent_of_a_file_that_is_refused_is_removed(form: Page) -> None:
    uploads = Uploads(form, refused(413))
    removed = list[Request]()
    form.on("request", lambda request: removed.append(request) if request.method == "DELETE" else None)
    submit(form)
    expect(form.locator("#submit-fault")).to_have_text("The disk is full.")
    assert [urlsplit(request.url).path for request in removed] == [urlsplit(uploads.sent[0]).path]
    submit(form)
    expect(form.locator("#submit-note")).to_contain_text("was made, of 90 rows")
    assert uploads.offsets == [0, PIECE_BYTES, 0, PIECE_BYTES]


def test_a_file_that_went_with_its_job_is_sent_again_for_the_next(form: Page, page_server: PageServer) -> None:
    uploads = Uploads(form)
    submit(form)
    expect(form.locator("#submit-note")).to_contain_text("was made")
    job = form.locator("#submit-note").inner_text().split()[1]

    def cancel(ledger: Ledger) -> None:
        ledger.cancel(job, time.time())

    page_server.ask(cancel)
    assert form.request.delete(f"{page_server.url}/api/jobs/{job}").ok
    submit(form)
    expect(form.locator("#submit-note")).to_contain_text("was made")
    assert uploads.offsets == [0, PIECE_BYTES] * 2
    submit(form)
    expect(form.locator("#submit-note")).to_contain_text("is the same")
    assert len(uploads.sent) == 4, "a file that is there is not sent again"
