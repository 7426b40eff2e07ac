"""Listing, showing and changing jobs, with a server and without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harvester.api.flow import PATIENCE_S
from harvester.cli.client import Client
from harvester.cli.job.progress import updates
from harvester.cli.job.text import duration, share_done
from harvester.errors import StateError, UnreachableError
from jobs.testing import ManualClock
from tests.fakes.http_server import job_view
from tests.fakes.ledger_file import add_job, ledger_file


@pytest.fixture
def ledger(state: Path) -> Path:
    state.mkdir()
    with ledger_file(state) as file:
        for number, name in enumerate(["old-1111", "new-2222"]):
            add_job(file, name, float(number), state="paused", rows_total=10, rows_ok=4)
    return state


def test_jobs_are_listed_newest_first_from_the_ledger_file_without_a_server(cli, ledger):
    listed = json.loads(cli("jobs", "--json").stdout)["jobs"]
    assert [job["id"] for job in listed] == ["new-2222", "old-1111"]


@pytest.mark.parametrize(("asked", "found"), [("latest", "new-2222"), ("old-1111", "old-1111")], ids=["latest", "by id"])
def test_show_works_from_the_ledger_file_without_a_server(cli, ledger, asked, found):
    view = json.loads(cli("show", asked, "--json").stdout)
    assert (view["id"], view["state"], view["rows_ok"], view["offline_tokens_per_s"]) == (found, "paused", 4, None)
    assert view["results"] == str(ledger / "jobs" / found / "results")


def test_show_of_an_unknown_job_names_the_newest(cli, ledger):
    assert "the newest are: new-2222, old-1111" in cli("show", "nope").stderr


def test_show_json_has_what_programs_rely_on(cli, server):
    view = json.loads(cli("show", "--json").stdout)
    assert {"id", "state", "rows_total", "rows_ok", "rows_error", "rows_recomputed", "offline_tokens_per_s", "eta_s"} <= set(view)


def test_jobs_prints_a_table_a_person_can_read(cli, server):
    server.views = [job_view(state="running", rows_total=12000, rows_ok=3000, rows_error=7, eta_s=7500.0, offline_tokens_per_s=4040.2)]
    header, _, line = cli("jobs").stdout.splitlines()
    assert header.split("  ")[0] == "job"
    assert line.split() == ["docs-7f3a", "running", "12,000", "25%", "7", "4,040", "2", "h", "05", "min", "summarize", "/docs.parquet"]


def test_jobs_are_limited_and_the_older_ones_counted(cli, ledger):
    *_, newest, older = cli("jobs", "--limit", "1").stdout.splitlines()
    assert (newest.split()[0], older) == ("new-2222", "... and 1 older; --limit shows more")


@pytest.mark.parametrize("answer", [{"sent": 2, "older": 1}, {"sent": 3}], ids=["by the server", "by an earlier server not"])
def test_jobs_of_a_server_are_limited(cli, server, answer):
    views = [job_view(id=f"docs-{number}").model_dump(mode="json") for number in range(answer.pop("sent"))]
    server.answers["/api/jobs?limit=2"] = (200, {"jobs": views, **answer})
    *_, first, second, older = cli("jobs", "--limit", "2").stdout.splitlines()
    assert [first.split()[0], second.split()[0]] == ["docs-0", "docs-1"]
    assert older == "... and 1 older; --limit shows more"


def test_no_jobs_at_all_is_no_error(cli):
    result = cli("jobs")
    assert result.exit_code == 0
    assert "No jobs yet" in result.stdout


def test_rm_asks_the_server_to_remove_a_job_and_says_what_went(cli, server):
    server.views = [job_view(state="completed", rows_total=4, rows_ok=3, rows_error=1)]
    assert cli("rm", "docs-7f3a").stdout == "removed job docs-7f3a and its 4 rows of results\n"
    told = json.loads(cli("rm", "docs-7f3a", "--json").stdout)
    assert told == {"id": "docs-7f3a", "removed": True, "rows_total": 4, "state": "completed"}
    assert [asked[:2] for asked in server.asked if asked[0] == "DELETE"] == [("DELETE", "/api/jobs/docs-7f3a")] * 2


@pytest.mark.parametrize("verb", ["cancel", "pause", "resume", "retry"])
def test_a_change_is_posted_and_the_new_state_printed(cli, server, verb):
    server.views = [job_view(state="queued")]
    assert cli(verb, "docs-7f3a").stdout == "job docs-7f3a is queued\n"
    assert ("POST", f"/api/jobs/docs-7f3a/{verb}", None) in server.asked
    assert json.loads(cli(verb, "docs-7f3a", "--json").stdout)["state"] == "queued"


def test_watch_json_prints_a_line_only_when_something_changed(cli, server):
    one, two = job_view(state="running", rows_ok=1), job_view(state="running", rows_ok=2)
    server.views = [one, one, one, two, two, job_view()]
    lines = [json.loads(line) for line in cli("watch", "--json").stdout.splitlines()]
    assert [line["rows_ok"] for line in lines] == [1, 2, 4]


@pytest.mark.parametrize("is_before", [False, True], ids=["a server", "one of before, which sends all"])
def test_watch_without_a_job_asks_for_those_that_have_not_ended_alone(cli, server, is_before):
    running, over = job_view(id="docs-1111", state="running"), job_view(id="docs-2222")
    found = [over, running] if is_before else [running]
    server.answers["/api/jobs?active=true"] = (200, {"jobs": [view.model_dump(mode="json") for view in found]})
    server.views = [running, over.model_copy(update={"id": "docs-1111"})]
    assert cli("watch").exit_code == 0
    listings = [path for method, path, _ in server.asked if path.partition("?")[0] == "/api/jobs"]
    assert listings == ["/api/jobs?active=true"]
    assert {path for _, path, _ in server.asked if path.startswith("/api/jobs/")} == {"/api/jobs/docs-1111"}


class Away(Client):
    """A client whose server is away for a while. ``try_s``: what each request takes meanwhile."""

    def __init__(self, away: int, try_s: float = 0.0) -> None:
        self.away = away
        self.try_s = try_s
        self.clock = ManualClock(0.0)

    def job(self, job_id: str):
        self.away -= 1
        self.clock.advance(self.try_s)
        if self.away < 0:
            return job_view()
        if job_id == "latest":
            return job_view(state="running", rows_ok=1)
        raise UnreachableError("gone")


def test_a_server_that_comes_back_is_waited_for():
    assert [view.rows_ok for view in updates(Away(5), ["latest"], sleep=lambda seconds: None)] == [1, 4]


def test_a_job_that_was_ended_is_followed_until_what_it_has_done_is_published():
    publishing = [job_view(state="expired", rows_running=3)] * 3
    stands = [job_view(state="running", rows_running=3), *publishing, job_view(state="expired")]

    class Stopped(Client):
        def __init__(self) -> None:
            """It needs no server."""

        def job(self, job_id: str):
            return stands.pop(0)

    found = list(updates(Stopped(), ["latest"], sleep=lambda seconds: None))
    assert [(view.state, view.rows_running) for view in found] == [("running", 3), ("expired", 0)]


@pytest.mark.parametrize("try_s", [0.0, 30.0], ids=["refused at once", "accepted, not answered"])
def test_a_server_that_stays_away_ends_the_watch_after_as_long_as_in_python(monkeypatch, try_s):
    monkeypatch.setattr("harvester.cli.job.progress.POLL_S", 0.5)
    client = Away(1000, try_s)
    with pytest.raises(UnreachableError):
        list(updates(client, ["latest"], client.clock.advance, client.clock))
    assert PATIENCE_S < client.clock() - try_s <= PATIENCE_S + try_s + 0.5, "the first request was answered"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (119, "119 s"), (125, "2 min"), (7199, "2 h 00 min"), (7500, "2 h 05 min"), (200_000, "2 d 7 h")],
)
def test_durations_read_well(seconds, text):
    assert duration(seconds) == text


def test_a_share_is_never_rounded_up_to_all():
    assert share_done(job_view(rows_total=1000, rows_ok=999)) == 0.99


def test_a_client_needs_a_url(cli):
    result = cli("show", "--url", "nonsense")
    assert result.exit_code == 2
    assert "is not a URL" in result.stderr


def test_a_remote_server_is_asked_through_the_proxy_of_the_environment_and_a_local_one_is_not(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    for url, is_trusted in (("http://example.invalid:8000", True), ("http://127.0.0.1:8000", False), ("http://localhost:1", False)):
        with Client(url) as client:
            assert client._http.trust_env is is_trusted


def test_resume_takes_new_terms_and_then_resumes(cli, server):
    server.views = [job_view(state="expired"), job_view(state="queued")]
    result = cli("resume", "docs-7f3a", "--weight", "3", "--max-error-rate", "1")
    assert result.stdout == "job docs-7f3a is queued\n"
    assert [ask for ask in server.asked if ask[0] != "GET"] == [
        ("PATCH", "/api/jobs/docs-7f3a", {"weight": 3.0, "max_error_rate": 1.0}),
        ("POST", "/api/jobs/docs-7f3a/resume", None),
    ]


def test_resume_changes_a_job_that_runs_and_leaves_it_running(cli, server):
    server.views = [job_view(state="running")]
    assert cli("resume", "docs-7f3a", "--weight", "3").stdout == "job docs-7f3a is running\n"
    assert [ask[0] for ask in server.asked if ask[0] != "GET"] == ["PATCH"]


def test_show_tells_the_spread_and_how_the_deadline_stands(cli, server):
    server.views = [
        job_view(
            state="running", rows_ok=1, eta_s=600.0, eta_low_s=300.0, eta_high_s=1800.0, weight=2.0, deadline_at_s=2e9,
            standing="may end 10 min after its deadline; raised: 4 times its weight", boost=4.0,
        )
    ]  # fmt: skip
    shown = cli("show").stdout
    assert "10 min (5 min to 30 min)" in shown
    assert "weight       2\n" in shown
    assert "may end 10 min after its deadline; raised: 4 times its weight" in shown


def test_a_job_whose_rows_all_failed_says_so_first(cli, server):
    server.views = [job_view(state="failed", rows_ok=0, rows_error=104, rows_total=2000, message="stopped early")]
    assert cli("show").stdout.startswith("every row so far failed (104); see: harvester results docs-7f3a --errors\n")


def test_retry_takes_a_new_deadline_before_it_makes_the_job_go_on(cli, server):
    server.views = [job_view(state="expired", rows_error=1), job_view(state="expired"), job_view(state="queued")]
    assert cli("retry", "docs-7f3a", "--deadline", "2286-11-20T17:46:40Z").stdout == "job docs-7f3a is queued\n"
    assert [ask for ask in server.asked if ask[0] != "GET"] == [
        ("PATCH", "/api/jobs/docs-7f3a", {"deadline_at_s": 10_000_000_000.0}),
        ("POST", "/api/jobs/docs-7f3a/retry", None),
    ]


def test_a_retry_that_will_be_refused_leaves_the_deadline_of_a_job_that_runs(cli, server):
    server.views = [job_view(state="running")]
    server.answers["/api/jobs/docs-7f3a/retry"] = (409, StateError("job docs-7f3a is running").to_json())
    assert cli("retry", "docs-7f3a", "--deadline", "6h").exit_code == 1
    assert [ask[0] for ask in server.asked if ask[0] != "GET"] == ["POST"]


def test_a_change_says_what_the_job_says_of_itself(cli, server):
    server.views = [job_view(state="queued", message="its deadline had passed, so it goes on without one")]
    assert cli("retry", "docs-7f3a").stdout == "job docs-7f3a is queued: its deadline had passed, so it goes on without one\n"


def test_answers_that_ended_at_max_tokens_are_said(cli, server):
    server.views = [job_view(rows_cut_off=2)]
    assert "cut off      2 answers ended at max_tokens; raise --max-tokens" in cli("show", "docs-7f3a").stdout
    server.views = [job_view()]
    assert "cut off" not in cli("show", "docs-7f3a").stdout
