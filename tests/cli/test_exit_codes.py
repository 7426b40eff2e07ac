"""Exit codes 0, 1, 2 and 3, with one line that says why; no traceback unless it is asked for."""

from __future__ import annotations

import errno

import pytest

from harvester.cli.job import status
from harvester.errors import EngineError
from tests.fakes.http_server import job_view


def one_line(result) -> str:
    assert result.stderr.count("\n") == 1, result.stderr
    assert "Traceback" not in result.output
    return result.stderr.strip()


FAILURES = {
    "failed": ({"state": "failed", "message": "the source changed"}, "error: job docs-7f3a is failed: the source changed"),
    "cancelled": ({"state": "cancelled"}, "error: job docs-7f3a is cancelled"),
    "all rows failed": ({"rows_ok": 0, "rows_error": 4}, "error: all 4 rows of job docs-7f3a ended as errors"),
}


@pytest.mark.parametrize(("fields", "message"), FAILURES.values(), ids=FAILURES.keys())
def test_watching_a_job_that_ends_badly_exits_with_1(cli, server, fields, message):
    server.views = [job_view(**fields)]
    watched = cli("watch", "docs-7f3a", "--json")
    assert watched.exit_code == 1
    assert message in one_line(watched)


def test_watching_a_job_that_ends_well_exits_with_0(cli, server):
    server.views = [job_view(rows_ok=3, rows_error=1)]
    assert cli("watch").exit_code == 0


WRONG = {
    "unknown command": ("nope",),
    "unknown option": ("jobs", "--nope"),
    "missing argument": ("cancel",),
    "a source that is not there": ("submit", "nowhere.parquet"),
    "a statement that writes": ("sql", "create table t as select 1"),
    "a job that is not there": ("show", "nope"),
    "a config that is not there": ("serve", "--config", "nowhere.yaml"),
    "a task that is not there": ("tasks", "nope"),
    "an id with a slash": ("cancel", "../server"),
}


@pytest.mark.parametrize("words", WRONG.values(), ids=WRONG.keys())
def test_wrong_use_exits_with_2(cli, server, words):
    server.answers["/api/jobs/nope"] = (404, {"error": {"code": "not_found", "message": "there is no job nope"}})
    result = cli(*words)
    assert result.exit_code == 2
    assert result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize("verb", ["watch", "cancel", "pause", "resume", "retry"])
def test_without_a_server_a_command_that_needs_one_exits_with_3(cli, verb):
    result = cli(verb, "docs-7f3a")
    assert result.exit_code == 3
    assert one_line(result) == "error: no server answers at http://127.0.0.1:9; start one with: harvester serve"


@pytest.mark.parametrize("words", [("submit", "{here}"), ("chat", "hello"), ("jobs",)], ids=["submit", "chat", "jobs"])
@pytest.mark.parametrize("by_option", [True, False], ids=["--url", "HARVESTER_URL"])
def test_a_named_server_that_does_not_answer_is_not_replaced_by_an_embedded_one(cli, words, by_option):
    given = [word.format(here=__file__) for word in words]
    url = "http://127.0.0.1:9/"
    result = cli(*given, "--url", url) if by_option else cli(*given, env={"HARVESTER_URL": url})
    assert result.exit_code == 3
    assert "no server answers at http://127.0.0.1:9;" in one_line(result)


def test_what_is_no_harvester_counts_as_no_server(cli, server):
    server.answers["/api/server"] = (200, {"hello": "world"})
    result = cli("watch")
    assert result.exit_code == 3
    assert "is not from a ready harvester server" in one_line(result)


def test_a_server_over_another_state_folder_is_not_the_one_meant(cli, server, tmp_path):
    result = cli("watch", "--state", tmp_path / "other")
    assert result.exit_code == 3
    assert f"works on {server.state}" in one_line(result)


def test_a_server_noted_in_the_state_folder_is_found(cli, silent_server, state):
    state.mkdir()
    (state / "server.json").write_text(f'{{"pid": 1, "url": "{silent_server.url}"}}')
    assert cli("watch").exit_code == 0


def test_an_error_of_the_server_keeps_its_exit_code_and_message(cli, server):
    server.answers["/api/jobs/docs-7f3a/pause"] = (409, {"error": {"code": "bad_state", "message": "job docs-7f3a is completed"}})
    result = cli("pause", "docs-7f3a")
    assert result.exit_code == 1
    assert one_line(result) == "error: job docs-7f3a is completed"


def test_an_answer_of_another_version_is_one_line(cli, server):
    server.answers["/api/jobs/latest"] = (200, {**job_view().model_dump(mode="json"), "surprise": 1})
    result = cli("show")
    assert result.exit_code == 1
    assert "runs another version of harvester (surprise:" in one_line(result)


RAISED = {
    "our own": (EngineError("the engine died"), 1, "error: the engine died\n"),
    "a bug": (ZeroDivisionError("x\ny"), 1, "error: internal: ZeroDivisionError: x y; --debug shows where\n"),
    "a full disk": (OSError(errno.ENOSPC, "No space left"), 1, "error: internal: OSError: [Errno 28] No space left; --debug shows where\n"),
    "Ctrl-C": (KeyboardInterrupt(), 130, ""),
}


@pytest.mark.parametrize(("error", "exit_code", "line"), RAISED.values(), ids=RAISED.keys())
def test_whatever_a_command_raises_becomes_one_line_and_an_exit_code(cli, monkeypatch, error, exit_code, line):
    def broken(here, limit):
        raise error

    monkeypatch.setattr(status, "newest_views", broken)
    result = cli("jobs")
    assert (result.exit_code, result.stderr) == (exit_code, line)


@pytest.mark.parametrize("words", [("--debug", "jobs"), ("jobs", "--debug")], ids=["before", "after"])
def test_debug_shows_the_traceback_and_is_taken_before_or_after_the_command(cli, monkeypatch, words):
    def broken(here, limit):
        raise ZeroDivisionError("x")

    monkeypatch.setattr(status, "newest_views", broken)
    result = cli(*words)
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert "error: internal: ZeroDivisionError: x" in result.stderr


@pytest.mark.parametrize("words", [("--url", "{url}", "watch"), ("watch", "--url", "{url}")], ids=["before", "after"])
def test_url_is_taken_before_or_after_the_command(cli, silent_server, words):
    assert cli(*(word.format(url=silent_server.url) for word in words)).exit_code == 0
