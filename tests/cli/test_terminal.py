"""What a terminal and a shell see: bars for several jobs, no colour, completion, readers that leave early."""

from __future__ import annotations

import json
import os
import pty
import shlex
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.fakes.http_server import job_view

HARVESTER = [sys.executable, "-m", "harvester"]


class Several:
    """Serves the views of two jobs by id, one after the other; the last one stays."""

    def __init__(self) -> None:
        self.views = {
            "a-1": [job_view(id="a-1", state="queued", rows_ok=0), job_view(id="a-1", state="running", rows_ok=1), job_view(id="a-1")],
            "b-2": [job_view(id="b-2", state="running", rows_ok=2), job_view(id="b-2", state="failed", message="gone")],
        }

    def answer(self, path: str) -> dict | None:
        views = self.views.get(path.rpartition("/")[2])
        return None if views is None else (views.pop(0) if len(views) > 1 else views[0]).model_dump(mode="json")


@pytest.fixture
def several(server, monkeypatch):
    told = Several()
    real = server.answer

    def answer(method, path):
        if path.partition("?")[0] == "/api/jobs":
            return 200, {"jobs": [views[0].model_dump(mode="json") for views in told.views.values()]}
        found = told.answer(path)
        return (200, found) if found else real(method, path)

    monkeypatch.setattr(server, "answer", answer)
    return server


@pytest.mark.parametrize("asked", [("a-1", "b-2"), ()], ids=["named", "all that run"])
def test_several_jobs_are_watched_as_event_lines(cli, several, asked):
    result = cli("watch", *asked, "--json")
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(line["id"], line["event"]) for line in events] == [
        ("a-1", "job"), ("b-2", "job"), ("a-1", "state"), ("b-2", "ended"), ("a-1", "ended"),
    ]  # fmt: skip
    assert result.exit_code == 1
    assert result.stderr == "error: job b-2 is failed: gone\n"


def test_a_job_named_twice_is_watched_once(cli, several):
    events = [json.loads(line) for line in cli("watch", "a-1", "a-1", "--json").stdout.splitlines()]
    assert [line["event"] for line in events] == ["job", "state", "ended"]


def on_a_terminal(command: list[str], env: dict[str, str]) -> str:
    """What a program shows on a terminal of its own."""
    main, child = pty.openpty()
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=child, stderr=child, env=os.environ | env) as process:
        os.close(child)
        shown = b""
        with suppress(OSError):  # where the other end is closed
            while piece := os.read(main, 65536):
                shown += piece
        process.wait(30)
    os.close(main)
    return shown.decode()


@pytest.mark.parametrize("no_color", [True, False])
def test_bars_of_all_jobs_are_shown_and_no_color_is_obeyed(several, no_color):
    env = {"HARVESTER_URL": several.url, "TERM": "xterm-256color", "COLUMNS": "120"} | ({"NO_COLOR": "1"} if no_color else {})
    shown = on_a_terminal([*HARVESTER, "watch"], env)
    assert "a-1 completed, 4/4 rows (100%)" in shown
    assert "b-2 failed" in shown
    assert "━" in shown
    coloured = [code for code in ("\x1b[38;", "\x1b[3", "\x1b[9") if code in shown]
    assert bool(coloured) is not no_color


@pytest.fixture
def job(state: Path) -> Path:
    folder = state / "jobs" / "docs-7f3a" / "results"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"row_id": range(300_000), "output": ["x" * 50] * 300_000}), folder / "part-000000.parquet")
    return state


@pytest.mark.parametrize(
    "words",
    [("results", "docs-7f3a"), ("results", "-f", "csv"), ("results", "-f", "json"), ("sql", "from results('latest')", "-f", "markdown")],
    ids=["lines", "csv", "array", "markdown"],
)
def test_a_reader_that_leaves_early_is_no_error(job, words):
    command = f"{' '.join(map(quoted, [*HARVESTER, *words]))} | head -c 10; echo ${{PIPESTATUS[0]}}"
    env = os.environ | {"HARVESTER_STATE": str(job), "HARVESTER_URL": "http://127.0.0.1:9"}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=env, timeout=60)
    assert (done.stdout[10:].strip(), done.stderr) == ("0", "")


@pytest.mark.parametrize("shape", ["csv", "jsonl"])
def test_rows_on_a_terminal_cannot_give_it_orders(state, shape):
    query = "select concat('ü', chr(27), ']52;c;aGk=', chr(7), chr(155), '2J', chr(127)) as x"
    env = {"HARVESTER_STATE": str(state), "HARVESTER_URL": "http://127.0.0.1:9", "COLUMNS": "120"}
    shown = on_a_terminal([*HARVESTER, "sql", query, "-f", shape], env)
    assert "ü" in shown
    assert "]52;c;aGk=" in shown
    assert [letter for letter in shown if letter in "\x1b\x07\x9b\x7f"] == []
    done = subprocess.run([*HARVESTER, "sql", query, "-f", shape], capture_output=True, text=True, env=os.environ | env)
    assert "\x9b" in done.stdout  # what is piped is exact


def quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def test_help_into_a_reader_that_has_left_is_no_error():
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m harvester --help | true; echo ${{PIPESTATUS[0]}}"], capture_output=True, text=True
    )
    assert (done.stdout.strip(), done.stderr) == ("0", "")


COMPLETIONS = {
    "commands": ("harvester wat", 1, ["watch"]),
    "jobs": ("harvester show do", 2, ["docs-7f3a"]),
    "latest": ("harvester watch docs-7f3a la", 3, ["latest"]),
    "tasks": ("harvester submit x --task summ", 4, ["summarize"]),
    "options": ("harvester submit --int", 2, ["--into"]),
    "formats": ("harvester submit - --input-format js", 4, ["jsonl"]),
}


@pytest.mark.parametrize(("line", "word", "found"), COMPLETIONS.values(), ids=COMPLETIONS.keys())
def test_the_shell_completes(state, line, word, found):
    (state / "jobs" / "docs-7f3a").mkdir(parents=True)
    env = {"_HARVESTER_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(word), "HARVESTER_STATE": str(state)}
    done = subprocess.run(HARVESTER, capture_output=True, text=True, env=os.environ | env)
    assert (done.stdout.split(), done.stderr) == (found, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_printed_for_each_shell(shell):
    done = subprocess.run(HARVESTER, capture_output=True, text=True, env=os.environ | {"_HARVESTER_COMPLETE": f"source_{shell}"})
    assert f"_HARVESTER_COMPLETE=complete_{shell}" in done.stdout
    assert done.stderr == ""


def test_the_completion_of_the_shell_it_is_asked_from_is_shown():
    asked = f"{shlex.join([*HARVESTER, '--show-completion'])}; exit $?"  # a last command alone would take the shell's place
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True)
    assert "_HARVESTER_COMPLETE=complete_bash" in done.stdout
