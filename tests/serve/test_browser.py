"""The page in a real Chromium, against the real server. Screenshots are left in `build/page/`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import duckdb
import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Route, expect

from tests.real_server import RealServer
from tests.serve.conftest import PATIENCE_MS, SHOTS
from tests.serve.test_jobs import SPEECHES

pytestmark = pytest.mark.serve
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


class Tab:
    """A page, and everything that its console and network said against it."""

    def __init__(self, page: Page, server: RealServer) -> None:
        self.page, self.faults = page, list[str]()
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda message: self.faults.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("request", lambda asked: None if asked.url.startswith((f"{server.url}/", "data:")) else self.faults.append(asked.url))
        page.goto(f"{server.url}/")
        expect(page.locator("#link")).to_have_text("Live")
        expect(page.locator(".replica")).to_have_count(1)
        expect(page.get_by_label("Task", exact=True)).to_have_value("summarize")

    def expect_state(self, job: str, state: str) -> None:
        expect(self.page.get_by_role("row", name=job).locator(".state")).to_have_text(state)

    def job_made(self) -> str:
        """Id in the note that a submit leaves."""
        note = self.page.locator("#submit-note")
        expect(note).to_contain_text("was made")
        return note.inner_text().split()[1]

    def shoot(self, name: str) -> None:
        self.page.screenshot(path=SHOTS / f"{name}.png", full_page=True)

    def expect_accessible(self) -> None:
        """No violation of axe-core's rules that it calls serious or critical."""
        found = Axe().run(self.page).response["violations"]
        grave = [f"{one['id']}: {one['nodes'][0]['html']}" for one in found if one["impact"] in ("serious", "critical")]
        assert grave == []


@pytest.fixture
def open_tab(browser: Browser, server: RealServer, request: pytest.FixtureRequest) -> Iterator[Tab]:
    context = browser.new_context(**getattr(request, "param", {}))
    tab = Tab(context.new_page(), server)
    yield tab
    context.close()


@pytest.fixture
def speeches(tmp_path: Path) -> Path:
    """Enough rows to be cancelled in the middle."""
    path = tmp_path / "speeches.parquet"
    duckdb.sql(f"COPY (SELECT id, title, substr(text, 1, 6000) AS text FROM '{SPEECHES}') TO '{path}'")
    return path


def chat(server: RealServer, model: str) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 24, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=60) as answer:
        answer.read()


def test_a_job_is_submitted_watched_read_asked_about_and_retried(open_tab: Tab, server: RealServer, model: str, tmp_path: Path) -> None:
    path = tmp_path / "mixed.parquet"
    pq.write_table(pa.table({"text": ["A short text.", None, HOSTILE, ""], "note": [HOSTILE] * 4}), path)
    page = open_tab.page
    page.get_by_label("Source", exact=True).fill(str(path))
    page.get_by_label("Task", exact=True).select_option("classify")
    page.get_by_label("labels", exact=True).fill("war,peace")
    page.get_by_label("Text column", exact=True).fill("text")
    page.get_by_role("button", name="Submit").click()
    job = open_tab.job_made()
    open_tab.expect_state(job, "completed")
    chatting = threading.Thread(target=chat, args=(server, model))
    chatting.start()
    expect(page.locator("[data-tile=ttft] .small")).to_contain_text("P99")
    chatting.join()

    page.get_by_role("link", name=job, exact=True).click()
    expect(page).to_have_url(f"{server.url}/#/jobs/{job}")
    rows = page.get_by_role("table", name=f"Rows of {job}").locator("tbody tr")
    expect(rows).to_have_count(4)
    assert [row.locator("td").nth(1).inner_text() for row in rows.all()] == ["error", "error", "ok", "ok"]
    expect(rows.nth(3)).to_contain_text(HOSTILE)
    assert page.title() == f"{job} - harvester", "text of a row is text"
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
    assert Path(download.value.path()).read_text().count("\n") >= 5
    open_tab.expect_accessible()
    open_tab.shoot("job")
    page.get_by_role("link", name="All jobs").click()

    page.get_by_label("Query over jobs").fill(f"select status, count(*) as n from results('{job}') group by status order by status")
    page.get_by_role("button", name="Run", exact=True).click()
    answer = page.get_by_role("table", name="Answer of the query")
    expect(answer.locator("tbody")).to_have_text("error2ok2")

    page.get_by_role("button", name=f"Retry {job}").click()
    page.get_by_role("button", name="Retry job").click()
    expect(page.locator("#news")).to_contain_text(f"Job {job} is completed: 4 of 4 rows, 2 errors.")
    open_tab.expect_accessible()
    open_tab.shoot("light")
    page.goto(f"{server.url}/#/jobs/{job}")
    page.get_by_role("button", name=f"Remove {job}").click()
    page.get_by_role("button", name="Remove job").click()
    expect(page.locator("#job-list")).not_to_contain_text(job)
    assert open_tab.faults == []


def open_job_while_its_rows_are_held(open_tab: Tab, server: RealServer, tmp_path: Path) -> tuple[str, list[Route]]:
    """Id of an ended job whose page is open, and the reads of its rows so far, none of which is answered."""
    pq.write_table(pa.table({"text": ["One text."]}), tmp_path / "one.parquet")
    job = server.submit(source={"uri": str(tmp_path / "one.parquet")}, max_tokens=4)["id"]
    open_tab.expect_state(job, "completed")
    page, reads = open_tab.page, list[Route]()

    def hold(read: Route) -> None:
        reads.append(read)

    page.route("**/api/sql", hold)
    page.get_by_role("link", name=job, exact=True).click()
    expect(page.locator("#rows-note")).to_have_text("Reading")
    return job, reads


def test_rows_of_a_job_that_is_removed_are_read_no_more(open_tab: Tab, server: RealServer, tmp_path: Path) -> None:
    job, reads = open_job_while_its_rows_are_held(open_tab, server, tmp_path)
    open_tab.page.get_by_role("button", name=f"Remove {job}").click()
    open_tab.page.get_by_role("button", name="Remove job").click()
    expect(open_tab.page.locator("#job-list")).not_to_contain_text(job)
    assert [read.request.failure for read in reads] == ["net::ERR_ABORTED"], "the server would answer 400 to a read of a job that is gone"
    assert open_tab.faults == []


def test_rows_are_read_again_where_the_removal_is_refused(open_tab: Tab, server: RealServer, tmp_path: Path) -> None:
    job, _ = open_job_while_its_rows_are_held(open_tab, server, tmp_path)
    page = open_tab.page

    def refuse(removal: Route) -> None:
        removal.fulfill(status=409, json={"error": {"message": "Rows are in flight; try again."}})

    page.unroute("**/api/sql")
    page.route(f"**/api/jobs/{job}", refuse)
    page.get_by_role("button", name=f"Remove {job}").click()
    page.get_by_role("button", name="Remove job").click()
    expect(page.locator("#rows-note")).to_have_text("1 to 1")
    expect(page.locator("#rows-fault")).to_have_text("Rows are in flight; try again.")


def test_the_picture_of_the_promise_is_there_again_after_a_reload(open_tab: Tab, server: RealServer, model: str) -> None:
    page = open_tab.page
    for _ in range(2):
        chat(server, model)
    expect(page.locator("#kept-1h .small")).to_contain_text("with chat")
    page.reload()
    expect(page.locator("#kept-1h .small")).to_contain_text("with chat")
    expect(page.locator(".picture canvas")).to_have_count(3)
    for span in ("1 hour", "1 day"):
        page.get_by_role("button", name=span).click()
        expect(page.get_by_role("button", name=span)).to_have_attribute("aria-pressed", "true")
    open_tab.expect_accessible()
    assert open_tab.faults == []


def test_a_file_of_the_reader_is_tried_then_sent_and_listed_by_filter_and_order(open_tab: Tab, tmp_path: Path) -> None:
    page = open_tab.page
    (tmp_path / "my rows.csv").write_text("text\nOne.\nTwo.\n")
    page.get_by_label("Or a file from this device").set_input_files(tmp_path / "my rows.csv")
    page.get_by_role("button", name="Dry run").click()
    expect(page.locator("#submit-note")).to_contain_text("2 rows over column text")
    page.get_by_role("button", name="Submit").click()
    job = open_tab.job_made()
    open_tab.expect_state(job, "completed")
    page.get_by_label("Filter jobs").fill("no such job")
    expect(page.locator("#none-found")).to_be_visible()
    page.get_by_label("Filter jobs").fill("my_rows")
    expect(page.get_by_role("row", name=job)).to_be_visible()
    page.get_by_role("button", name="Errors").click()
    expect(page.locator('th[aria-sort="descending"]')).to_have_text("Errors")
    assert open_tab.faults == []


@pytest.mark.parametrize("open_tab", [{"color_scheme": "dark"}], ids=["dark"], indirect=True)
def test_a_job_is_made_and_cancelled_by_the_keyboard_alone(open_tab: Tab, speeches: Path) -> None:
    page = open_tab.page

    def tab_to(name: str) -> None:
        focused = "document.activeElement.getAttribute('aria-label') ?? document.activeElement.id"
        for _ in range(120):
            page.keyboard.press("Tab")
            if page.evaluate(focused) == name:
                return
        raise AssertionError(f"{name} is not reached by Tab")

    tab_to("source")
    page.keyboard.type(str(speeches))
    page.keyboard.press("Enter")
    job = open_tab.job_made()
    open_tab.expect_state(job, "running")
    tab_to(f"Cancel {job}")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name=f"Cancel {job}?")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("Enter")
    open_tab.expect_accessible()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    open_tab.expect_state(job, "cancelled")
    assert page.evaluate("document.activeElement.textContent") == job, "the button that went leaves its focus to the job's name"

    tab_to("query")
    page.keyboard.press("Control+A")
    page.keyboard.type(f"select state from jobs where id = '{job}'")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("table", name="Answer of the query").locator("tbody")).to_have_text("cancelled")
    open_tab.expect_accessible()
    open_tab.shoot("dark")
    assert open_tab.faults == []


@pytest.mark.parametrize("open_tab", [{"viewport": {"width": 360, "height": 740}}], ids=["360 px"], indirect=True)
def test_a_small_screen_shows_all_without_scrolling_aside(open_tab: Tab, server: RealServer, tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["One text.", "Another."]}), tmp_path / "two.parquet")
    job = server.submit(source={"uri": str(tmp_path / "two.parquet")}, max_tokens=4)["id"]
    open_tab.expect_state(job, "completed")
    assert open_tab.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    open_tab.expect_accessible()
    open_tab.shoot("small")
    assert open_tab.faults == []


def test_what_cannot_be_done_is_said_in_one_line(open_tab: Tab) -> None:
    page = open_tab.page
    page.get_by_role("button", name="Submit").click()
    expect(page.locator("#submit-fault")).to_have_text("Source is missing.")
    page.get_by_label("Source", exact=True).fill("/nowhere.parquet")
    page.get_by_role("button", name="Submit").click()
    expect(page.locator("#submit-fault")).to_contain_text("/nowhere.parquet")
    page.get_by_label("Query over jobs").fill("select * from '/etc/passwd'")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator("#sql-fault")).not_to_be_empty()
    assert "\n" not in page.locator("#sql-fault").inner_text()


def test_the_page_finds_a_server_that_came_back(open_tab: Tab, server: RealServer) -> None:
    server.kill_one("jobs app")
    expect(open_tab.page.locator("#link")).to_contain_text("Not connected")
    expect(open_tab.page.locator("#link")).to_have_text("Live")
    expect(open_tab.page.locator("#job-list tr").first).to_be_visible()
