"""The embedded server: a child that is waited for, watched, and always stopped."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from harvester.cli.client import Client
from harvester.cli.invocation import Invocation
from harvester.cli.server import local
from harvester.cli.server.local import EmbeddedServer, last_word, serving
from harvester.errors import EngineError, StorageError, UnreachableError
from jobs.storage.folder import StateFolder

SERVE = """
import json, signal, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
if "{mode}" == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
class Handler(BaseHTTPRequestHandler):
    asked = 0
    def do_GET(self):
        Handler.asked += 1
        self.send_response(503 if Handler.asked < 3 else 200)
        self.end_headers()
        self.wfile.write(json.dumps({{"version": "x", "model": sys.argv[-1], "state": words["--state"], "url": ""}}).encode())
print("serving", flush=True)
HTTPServer(("127.0.0.1", int(words["--port"])), Handler).serve_forever()
"""


def command(tmp_path: Path, text: str) -> list[str]:
    (tmp_path / "child.py").write_text(text)
    return [sys.executable, str(tmp_path / "child.py")]


def test_it_waits_until_the_server_is_ready_and_stops_it_at_the_end(tmp_path, state):
    with EmbeddedServer(state, "big", command(tmp_path, SERVE.format(mode="")), poll_s=0.01) as server:
        with Client(server.url) as client:
            info = client.server()
        process = server._process
        assert process is not None
        assert (info.state, info.model) == (str(state), "big")
        assert os.getpgid(process.pid) == process.pid
    assert process.returncode == -signal.SIGTERM
    assert "serving" in (state / "logs" / "server.log").read_text()


def test_a_server_that_does_not_heed_sigterm_is_killed(tmp_path, state, monkeypatch):
    monkeypatch.setattr(local, "STOP_S", 0.05)
    with EmbeddedServer(state, None, command(tmp_path, SERVE.format(mode="stubborn")), poll_s=0.01) as server:
        process = server._process
    assert process is not None
    assert process.returncode == -signal.SIGKILL


def test_a_server_that_dies_is_reported_with_its_last_word(tmp_path, state):
    child = command(tmp_path, "import sys; print('error: port 1 is in use', flush=True); print('bye'); sys.exit(1)")
    with pytest.raises(EngineError, match=r"did not start: port 1 is in use; its log is .*server\.log"), EmbeddedServer(state, None, child):
        pass


def test_a_server_of_another_state_folder_is_not_taken_for_it(tmp_path, state):
    other = command(tmp_path, SERVE.format(mode="").replace('words["--state"]', '"/elsewhere"'))
    with pytest.raises(EngineError, match="was not ready after"), EmbeddedServer(state, None, other, poll_s=0.01, start_s=1.0):
        pass


def test_a_server_that_is_never_ready_is_stopped(tmp_path, state, monkeypatch):
    started = []

    class Noted(subprocess.Popen):
        def __init__(self, *given, **named):
            super().__init__(*given, **named)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Noted)
    child = command(tmp_path, "import signal; signal.pause()")
    with pytest.raises(EngineError, match="was not ready after"), EmbeddedServer(state, None, child, poll_s=0.01, start_s=0.3):
        pass
    assert [process.returncode for process in started] == [-signal.SIGTERM]


def test_a_state_folder_that_cannot_be_made_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="give another one with --state"), EmbeddedServer(tmp_path / "file" / "state"):
        pass


@contextmanager
def locked(state: Path) -> Iterator[None]:
    StateFolder(state).prepare()
    with StateFolder(state).lock.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_a_server_that_is_starting_is_waited_for(tmp_path, state):
    said: list[str] = []
    child = command(tmp_path, SERVE.format(mode=""))
    with locked(state), EmbeddedServer(state, None, child, poll_s=0.01) as server:

        def ready(line: str) -> None:
            said.append(line)
            StateFolder(state).server.write_text(json.dumps({"url": server.url}))

        with serving(Invocation(state_given=state), None, ready) as (client, is_embedded):
            assert (client.server().state, is_embedded) == (str(state), False)
    assert said == [f"A server is starting or stopping on {state}: waiting for it"]


def test_where_the_server_that_was_starting_gave_up_another_is_started(tmp_path, state, monkeypatch):
    embedded = EmbeddedServer(state, None, command(tmp_path, SERVE.format(mode="")), poll_s=0.01)
    monkeypatch.setattr(local, "EmbeddedServer", lambda *_: embedded)
    said: list[str] = []
    with ExitStack() as lock:
        lock.enter_context(locked(state))

        def gives_up(line: str) -> None:
            said.append(line)
            lock.close()

        with serving(Invocation(state_given=state), None, gives_up) as (_, is_embedded):
            assert is_embedded
    assert said[0].split(":")[0] == f"A server is starting or stopping on {state}"
    assert any("starting an embedded one" in line for line in said)


def test_a_server_that_never_answers_is_not_waited_for_without_end(state, monkeypatch):
    monkeypatch.setattr(local, "START_S", 0.3)
    with locked(state), pytest.raises(UnreachableError), serving(Invocation(state_given=state), None, lambda _: None):
        pass


LOGS = {
    "an error line wins": ("a\nerror: b\nc\n\n", "b"),
    "else the last line": ("a\nc\n\n", "c"),
    "silence": ("", "it said nothing"),
}


@pytest.mark.parametrize(("text", "word"), LOGS.values(), ids=LOGS.keys())
def test_the_last_word_of_a_log(tmp_path, text, word):
    (tmp_path / "log").write_text(text)
    assert last_word(tmp_path / "log") == word
