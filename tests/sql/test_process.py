"""SQL in processes of their own: answers as before, an end for each query that is over a limit, and nothing left of it."""

from __future__ import annotations

import errno
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from harvester.errors import QueryError, StorageError
from jobs.sql import forkserver, process
from jobs.sql.process import QueryProcesses
from jobs.sql.scratch import forget_scratch, make_scratch

TABLES = {"jobs": pa.table({"id": ["docs-7f3a"], "key": ["k"], "spec": ["{}"], "created_at_s": [1.0], "state": ["running"]})}
SLOW_TO_PLAN = "select 1" + " union all select 1" * 1000  # DuckDB cannot be interrupted while it plans
LONG = "select count(*) from range(1_000_000_000) a, range(1_000) b where a.range % 7 = b.range"


@pytest.fixture(scope="module")
def processes() -> Iterator[QueryProcesses]:
    made = QueryProcesses({"HARVESTER_TEST_MARK": "here"})
    yield made
    made.close()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "jobs").mkdir()
    return tmp_path


def ask(processes: QueryProcesses, state: Path, query: str, **options: Any) -> Any:
    return json.loads(processes.run(state, TABLES, query, **{"limit_rows": 10, "seconds": 60.0} | options))


def test_an_answer_is_what_the_client_gets(processes: QueryProcesses, state: Path) -> None:
    answer = ask(processes, state, "select id, 1.5::double as x, [1, null] as l, 'ä' as s from jobs")
    assert answer["columns"][1] == {"name": "x", "type": "double"}
    assert (answer["rows"], answer["is_cut"]) == ([["docs-7f3a", 1.5, [1, None], "ä"]], False)
    assert ask(processes, state, "from range(99)", limit_rows=2) == {
        "columns": [{"name": "range", "type": "int64"}],
        "rows": [[0], [1]],
        "is_cut": True,
    }


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("selec 1", "syntax error"),
        ("from read_text('/etc/hostname')", "files and addresses cannot be read here"),
        ("drop view jobs", "DROP"),
    ],
)
def test_a_refusal_comes_as_it_was_raised(processes: QueryProcesses, state: Path, query: str, says: str) -> None:
    with pytest.raises(QueryError, match=says):
        ask(processes, state, query)


def test_a_query_that_cannot_be_interrupted_is_killed(processes: QueryProcesses, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "GRACE_S", -60.0)
    with pytest.raises(QueryError, match="took more than 60 s and was stopped"):
        ask(processes, state, SLOW_TO_PLAN)
    monkeypatch.undo()
    assert ask(processes, state, "select 1")["rows"] == [[1]]


def test_a_query_above_the_resident_limit_is_killed(processes: QueryProcesses, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MAX_RESIDENT_BYTES", 1 << 20)
    with pytest.raises(QueryError, match="GiB of memory and was stopped"):
        ask(processes, state, LONG)


def test_what_may_not_run_any_longer_is_killed(processes: QueryProcesses, state: Path) -> None:
    seen: list[psutil.Process] = []

    def check_long(cpu_s: float) -> bool:
        seen.append(_query())
        raise StorageError("enough")

    with pytest.raises(StorageError, match="enough"):
        ask(processes, state, LONG, check_long=check_long)
    (query,) = seen
    query.wait(60)


def test_a_query_whose_process_dies_is_an_error_and_the_next_one_runs(processes: QueryProcesses, state: Path) -> None:
    with pytest.raises(QueryError, match="ended its process"):
        ask(processes, state, LONG, check_long=lambda cpu_s: bool(_query().kill()))
    assert ask(processes, state, "select 1")["rows"] == [[1]]


def test_a_fork_server_that_dies_is_replaced(processes: QueryProcesses, state: Path) -> None:
    ask(processes, state, "select 1")
    server = _server()
    server.kill()
    server.wait(60)
    assert ask(processes, state, "select 1")["rows"] == [[1]]


def test_a_process_has_none_of_our_environment_and_leaves_no_file(
    processes: QueryProcesses, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARVESTER_API_KEY", "secret")
    fresh = QueryProcesses({"HARVESTER_TEST_MARK": "here"})
    try:
        environments: list[dict[str, str]] = []
        with pytest.raises(QueryError):
            ask(fresh, state, LONG, check_long=lambda cpu_s: bool(environments.append(_killed())))
        assert environments[0]["HARVESTER_TEST_MARK"] == "here"
        assert "HARVESTER_API_KEY" not in environments[0]
        assert list(fresh._scratch.iterdir()) == []
    finally:
        fresh.close()
    assert not fresh._scratch.exists()


def test_a_server_that_is_killed_leaves_no_file(tmp_path: Path) -> None:
    made = "made = QueryProcesses(); made.start(); print(made._scratch, flush=True)"
    script = f"import sys; from jobs.sql.process import QueryProcesses; {made}; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        scratch = Path(server.stdout.readline().strip())
        (scratch / "spilled").write_bytes(b"x")
        server.kill()
    end_s = time.monotonic() + 60
    while scratch.exists():
        assert time.monotonic() < end_s, "the folder stays"
        time.sleep(0.05)


def test_a_fork_server_that_is_replaced_takes_no_folder_with_it(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = QueryProcesses()
    try:
        assert ask(made, state, "select 1")["rows"] == [[1]]
        send, kill = socket.send_fds, subprocess.Popen.kill
        faults = [OSError(errno.EMFILE, "Too many open files")]

        def send_once(*given: Any) -> int:
            if faults:
                raise faults.pop()
            return send(*given)

        def kill_late(process: subprocess.Popen[bytes]) -> None:
            time.sleep(0.5)
            kill(process)

        monkeypatch.setattr(socket, "send_fds", send_once)
        monkeypatch.setattr(subprocess.Popen, "kill", kill_late)
        assert ask(made, state, "select 2")["rows"] == [[2]]
        assert ask(made, state, "select 3")["rows"] == [[3]]
    finally:
        made.close()


def test_a_server_forgets_the_folders_that_its_killed_processes_left_and_no_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, of_another = make_scratch("ab12"), make_scratch("ab123")
    (left / "spilled").write_bytes(b"x")
    forget_scratch("ab12")
    assert (left.exists(), of_another.exists()) == (False, True)


@pytest.mark.parametrize("is_taken", [False, True], ids=["removed", "removed, and its name taken by a link"])
def test_a_folder_that_is_removed_is_made_again(is_taken: bool, state: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = QueryProcesses(owner="ab12")
    try:
        assert ask(made, state, "select 1")["rows"] == [[1]]
        before, elsewhere = made._scratch, tmp_path / "elsewhere"
        forget_scratch("ab12")
        elsewhere.mkdir()
        if is_taken:
            before.symlink_to(elsewhere)
        assert ask(made, state, "select 2")["rows"] == [[2]]
        assert made._scratch != before
        assert made._scratch.stat().st_mode & 0o777 == 0o700
        assert list(made._scratch.iterdir()) == []
    finally:
        made.close()
    assert not made._scratch.exists()
    assert before.is_symlink() == is_taken
    assert elsewhere.is_dir()


def test_nothing_runs_after_the_end(state: Path) -> None:
    made = QueryProcesses()
    ask(made, state, "select 1")
    server = _server()
    made.close()
    assert not server.is_running()


def test_a_reply_is_an_answer_or_the_code_and_words_of_an_error(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reply(query: str) -> tuple[bool, Any]:
        request = forkserver.Request(state, dict(TABLES), query, limit_rows=10, seconds=60.0, scratch=state)
        is_answer, body = forkserver.reply_to(request)
        return is_answer, json.loads(body)

    assert reply("select 1 as a")[1]["rows"] == [[1]]
    assert reply("select") == (False, ["bad_query", "Parser Error: SELECT clause without selection list"])
    monkeypatch.setattr(forkserver, "MAX_REPLY_BYTES", 1 << 20)
    assert "the answer has 2 MiB as JSON; the limit is 1" in reply("select repeat('x', 2_097_152)")[1][1]
    monkeypatch.setattr(forkserver, "ask", _without_memory)
    assert reply("select 1")[1] == ["bad_query", "the query needs too much memory (MemoryError); select less"]


def _without_memory(*_: object, **__: object) -> None:
    raise MemoryError


def _killed() -> dict[str, str]:
    query = _query()
    environment = query.environ()
    query.kill()
    return environment


def _server() -> psutil.Process:
    """The fork server that was started last."""
    alive = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    servers = [child for child in alive if "jobs.sql.forkserver" in child.cmdline()]
    return max(servers, key=lambda server: server.create_time())  # process ids start anew at their highest


def _query() -> psutil.Process:
    """The one query that runs; a busy machine may take a while to show it."""
    end_s = time.monotonic() + 60
    while (found := next(_queries(), None)) is None:
        assert time.monotonic() < end_s, "no query runs"
        time.sleep(0.05)
    return found


def _queries() -> Iterator[psutil.Process]:
    alive = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    return (query for server in alive if "jobs.sql.forkserver" in server.cmdline() for query in server.children())
