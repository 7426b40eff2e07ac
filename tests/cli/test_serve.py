"""`harvester serve` and `stop`, without an engine."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

import psutil
import pytest

from harvester.cli.server import serve as serve_commands
from harvester.serve.processes import numbering
from jobs.storage.folder import StateFolder

URL = "http://127.0.0.1:8000"
STARTING = {"model": "tiny", "note": "embedded, for trying things out", "state": "/s", "url": URL, "engine": "cpu, small"}
EVENTS: list[tuple[str, dict[str, Any]]] = [
    ("starting", STARTING),
    ("warning", {"message": "one CPU only"}),
    ("ready", {"url": URL, "model": "tiny", "seconds": 31.2}),
    ("stopping", {}),
    ("stopped", {}),
]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list:
    """The server's part, played from `EVENTS`; records what it was started with."""
    asked: list = []

    def run(config, state_dir, on_event):
        asked.append((config, state_dir))
        for kind, fields in EVENTS:
            on_event(kind, fields)

    real = importlib.import_module
    monkeypatch.setattr(
        importlib, "import_module", lambda name: SimpleNamespace(run=run) if name == "harvester.serve.server" else real(name)
    )
    monkeypatch.setattr(serve_commands, "require_engine", lambda *modules: None)
    return asked


def test_the_options_lie_over_the_config_file(cli, runs, tmp_path, state):
    (tmp_path / "c.yaml").write_text("model: from-file\nreplicas: 2\n")
    words = ("--config", tmp_path / "c.yaml", "--model", "from-line", "--port", 9001, "--host", "0.0.0.0", "--address", "auto")
    assert cli("serve", *words).exit_code == 0
    config, state_dir = runs[0]
    assert (config.model, config.replicas.min, config.port, config.host, config.address) == ("from-line", 2, 9001, "0.0.0.0", "auto")
    assert state_dir == state


CONFIG_FAULTS = {
    "ours": ("schedule: {online_order: lifo}", "schedule.online_order: unknown online_order 'lifo'; use one of: mlfq, "),
    "of a section": ("harvest: {lease_s: 2, heartbeat_s: 1}", "harvest: lease_s=2.0 must be at least three times heartbeat_s=1.0"),
    "with a password": ("ledger: mysql://bob:secret@db/x", "ledger: not a PostgreSQL database; give postgresql://USER@HOST/DATABASE, or"),
    "no cluster's head": ("address: 10.0.0.1", "address: '10.0.0.1' is no Ray cluster's head; give HOST:PORT, such as "),
    "of Ray's client": ("address: ray://10.0.0.1:10001", "address: 'ray://10.0.0.1:10001' is no Ray cluster's head"),
    "a port that is none": ("address: 10.0.0.1:99999", "address: '10.0.0.1:99999' is no Ray cluster's head"),
    "no address": ('address: ""', "address: '' is no Ray cluster's head"),
    "of a type": ("port: soon", "(given 'soon')"),
}


@pytest.mark.parametrize(("text", "message"), CONFIG_FAULTS.values(), ids=CONFIG_FAULTS.keys())
def test_a_config_error_says_the_value_once(cli, runs, tmp_path, text, message):
    (tmp_path / "c.yaml").write_text(text)
    result = cli("serve", "--config", tmp_path / "c.yaml")
    assert result.exit_code == 2
    assert message in result.stderr
    assert runs == []
    assert ("(given" in result.stderr) is ("(given" in message)


def test_ready_prints_the_url_the_model_and_what_to_do_next(cli, runs):
    shown = cli("serve").stdout
    assert "Ready after 31 s: http://127.0.0.1:8000" in shown
    assert "embedded, for trying things out" in shown
    assert "\nEngine: cpu, small\n" in shown
    assert "--model Qwen/Qwen3-8B" in shown
    assert "in a browser: http://127.0.0.1:8000/\n" in shown
    assert [line.split()[1] for line in shown.split("Next:\n")[1].splitlines()[:3]] == ["submit", "chat", "sql"]


def test_a_model_that_was_asked_for_is_not_called_embedded(cli, runs):
    assert "Qwen/Qwen3-8B" not in cli("serve", "--model", "big").stdout


def test_json_prints_an_object_a_line_for_each_event(cli, runs):
    lines = [json.loads(line) for line in cli("serve", "--json").stdout.splitlines()]
    assert [line["event"] for line in lines] == [kind for kind, _ in EVENTS]
    assert lines[2]["url"] == "http://127.0.0.1:8000"


@pytest.fixture
def unread() -> TextIO:
    """An output whose reader has left."""
    reading, writing = os.pipe()
    os.close(reading)
    return open(writing, "w", encoding="utf-8")  # noqa: PTH123


def test_a_server_whose_output_nobody_reads_any_more_serves_on(unread, monkeypatch):
    """As in `harvester serve | grep -m1 Ready`."""
    monkeypatch.setattr(sys, "stdout", unread)  # here: pytest puts its own in place after the fixtures
    tell = serve_commands.unharmed(serve_commands.Announcer(is_embedded=True))
    for kind, fields in EVENTS:
        tell(kind, fields)
    assert Path(f"/proc/self/fd/{unread.fileno()}").samefile(os.devnull), "what comes now is dropped"
    unread.close()  # as at the end of the program: nothing is left to write


def test_output_that_finds_no_room_comes_with_the_next_event():
    told, faults = [], [OSError(28, "No space left on device")]

    def on_event(kind: str, fields: dict) -> None:
        told.append(kind)
        if faults:
            raise faults.pop()

    tell = serve_commands.unharmed(on_event)
    for kind, fields in EVENTS:
        tell(kind, fields)
    assert told == [kind for kind, _ in EVENTS]


def test_without_an_engine_serve_says_what_to_install(cli, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = cli("serve")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ray and vllm not installed; install it with: pip install 'harvester-llm[cuda]'")


def _first_line(process: subprocess.Popen[bytes]) -> None:
    """Wait for the line that the process prints once it runs."""
    assert process.stdout is not None
    process.stdout.readline()


@pytest.fixture
def child() -> Iterator[Callable[..., subprocess.Popen]]:
    """A process that waits for its standard input to end, with words of our choice on its command line."""
    made: list[subprocess.Popen] = []

    def start(*words: str) -> subprocess.Popen:
        line = "import sys; print(flush=True); sys.stdin.read()"
        made.append(subprocess.Popen([sys.executable, "-c", line, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        _first_line(made[-1])
        return made[-1]

    yield start
    for process in made:
        process.communicate()


def note(state: Path, pid: object, **more: object) -> None:
    state.mkdir(exist_ok=True)
    (state / "server.json").write_text(json.dumps({"pid": pid, "url": "http://127.0.0.1:9", **more}))


def test_stop_ends_the_server_of_the_state_folder(cli, state, child):
    process = child("/venv/bin/harvester", "serve")
    note(state, process.pid)
    result = cli("stop", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {"stopped": True, "pid": process.pid, "left_in": None, "state": str(state)}
    assert process.poll() is not None


def test_stop_leaves_a_process_that_only_took_the_number_over(cli, state, child):
    process = child("/home/harvester/other", "serve")
    note(state, process.pid)
    result = cli("stop")
    assert result.exit_code == 0
    assert "no server is running" in result.stdout
    assert process.poll() is None


@pytest.mark.parametrize("pid", [None, "x", 2**22 + 1], ids=["none", "no number", "no such process"])
def test_stop_with_nothing_running_says_so(cli, state, pid):
    note(state, pid)
    assert "no server is running on" in cli("stop").stdout
    assert json.loads(cli("stop", "--json").stdout)["stopped"] is False


def test_stop_does_not_call_a_folder_unserved_whose_server_has_just_begun(cli, state):
    folder = StateFolder(state)
    folder.prepare()
    with folder.locked():
        result = cli("stop")
    assert result.exit_code == 1
    assert "is in use by a server that is just starting or stopping" in result.stderr
    assert "no server" not in result.stdout


def test_stop_leaves_a_process_with_the_number_of_a_server_on_another_machine(cli, state, child):
    process = child("/venv/bin/harvester", "serve")
    folder = StateFolder(state)
    folder.prepare()
    note(state, process.pid, host="another-machine")
    with folder.locked():
        result = cli("stop")
    assert (result.exit_code, process.poll()) == (1, None)
    assert f"the server on {state} runs on another-machine as process {process.pid}; run harvester stop there" in result.stderr


@pytest.mark.parametrize(
    ("host", "numbering", "is_here"),
    [
        ("as-it-was-called", numbering(), True),
        (socket.gethostname(), "another start", False),
        (socket.gethostname(), None, True),
        ("as-it-was-called", None, False),
    ],
    ids=["it has another name now", "another one of this name", "its numbering unknown", "another of an earlier version"],
)
def test_stop_knows_its_machine_whatever_it_is_called(cli, state, child, host, numbering, is_here):
    """A laptop gets another name from each network, and containers of one machine may share a name."""
    process = child("/venv/bin/harvester", "serve")
    folder = StateFolder(state)
    folder.prepare()
    note(state, process.pid, host=host, **({} if numbering is None else {"numbering": numbering}))
    with folder.locked():
        assert (cli("stop").exit_code == 0) is is_here
    assert (process.poll() is not None) is is_here


def name_cluster(folder: StateFolder) -> None:
    folder.cluster.write_text("10.0.0.1:6379\n")


def name_cluster_as_before(folder: StateFolder) -> None:
    """As servers did that had no file for the address."""
    folder.server.write_text(json.dumps({"pid": 2**22 + 1, "url": "http://127.0.0.1:9", "address": "10.0.0.1:6379"}))


@pytest.mark.parametrize("name", [name_cluster, name_cluster_as_before], ids=["of today", "of an earlier version"])
def test_stop_ends_what_a_server_without_a_process_left_in_a_cluster(cli, state, monkeypatch, name):
    folder = StateFolder(state)
    folder.prepare()
    name(folder)
    ended: list = []
    real = importlib.import_module
    serving = SimpleNamespace(end_joined=lambda *given: ended.append(given))
    monkeypatch.setattr(importlib, "import_module", lambda name: serving if name == "harvester.serve.machine.leaving" else real(name))
    monkeypatch.setattr(serve_commands, "require_engine", lambda *modules: None)
    assert "stopped the applications in the Ray cluster at 10.0.0.1:6379" in cli("stop").stdout
    assert ended == [("10.0.0.1:6379", state)]


def test_stop_says_what_a_stopped_server_has_left_in_a_cluster(cli, state, child):
    process = child("/venv/bin/harvester", "serve")
    note(state, process.pid)
    StateFolder(state).cluster.write_text("10.0.0.1:6379\n")
    result = cli("stop")
    assert result.exit_code == 0
    assert (
        "applications are left in the Ray cluster at 10.0.0.1:6379, where open chats may end; harvester stop again waits for them and ends "
        "the rest" in result.stdout
    )


@pytest.mark.parametrize(
    ("address", "told"),
    [(None, "harvester stop again ends them"), ("10.0.0.1:6379", "harvester stop again ends the server; they go on in the Ray cluster")],
    ids=["of its own", "joined"],
)
def test_a_second_stop_ends_no_chat_in_a_joined_cluster_and_says_so(cli, state, monkeypatch, address, told):
    StateFolder(state).prepare()
    if address is not None:
        StateFolder(state).cluster.write_text(f"{address}\n")

    class Draining:
        pid = 7

        def send_signal(self, number: int) -> None:
            pass

        def wait(self, seconds: float) -> None:
            raise psutil.TimeoutExpired(seconds, self.pid)

    monkeypatch.setattr(serve_commands, "_server_process", lambda state_dir: Draining())
    result = cli("stop")
    assert result.exit_code == 1
    assert told in result.stderr


def test_stop_does_not_wait_for_ever(cli, state, child, monkeypatch):
    line = "import signal, sys; signal.signal(15, signal.SIG_IGN); print(flush=True); sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", line, "harvester", "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    _first_line(process)
    monkeypatch.setattr(serve_commands, "STOP_S", 0.05)
    note(state, process.pid)
    result = cli("stop")
    process.communicate()
    assert result.exit_code == 1
    assert f"kill -9 {process.pid}" in result.stderr
